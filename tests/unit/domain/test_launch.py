"""Names, flags and content of a launch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opsctl.domain.launch import (
    LaunchPlan,
    base_environment,
    flags_of,
    log_path,
    tensor_parallel,
    unit_name,
    value_of,
)

PLAN = LaunchPlan(
    run="20261129-1930-ab12",
    server="glm5",
    argv=("/v/bin/python", "-m", "sglang.launch_server", "--port", "30000", "--tp", "8"),
    port=30000,
    address="127.0.0.1",
    log="/var/log/opsctl/glm5-20261129-1930-ab12.log",
    cwd="/",
    user=None,
    nofile=65536,
    public_env={"A": "1", "TOKEN": "(secret)"},
    package="sglang",
    package_version="0.5.9",
    gpu_model="H200",
)


@pytest.mark.parametrize(
    ("args", "flags"),
    [
        ({"tp": 8}, ["--tp", "8"]),
        ({"disable-cuda-graph": True}, ["--disable-cuda-graph"]),
        ({"disable-cuda-graph": False, "x": None}, []),
        ({"cuda-graph-bs": [1, 2, 4]}, ["--cuda-graph-bs", "1", "2", "4"]),
        ({"json": '{"a": 1}'}, ["--json", '{"a": 1}']),
        ({"mem-fraction-static": 0.8}, ["--mem-fraction-static", "0.8"]),
    ],
)
def test_flags_follow_the_site(args: dict[str, object], flags: list[str]) -> None:
    """true is a bare flag, false and null are left out, a list follows its flag."""
    assert flags_of(args) == flags


def test_unit_and_log_carry_the_run() -> None:
    """A launch whose reply was lost is found by the run's id; odd names become safe ones."""
    assert unit_name("glm5", "r1") == "opsctl-glm5-r1.service"
    assert unit_name("a b/../@c", "r1") == "opsctl-a-b-c-r1.service"
    assert log_path(None, "a/b", "r1") == "/var/log/opsctl/a-b-r1.log"
    assert log_path("/x/", "s", "r1") == "/x/s-r1.log"


def test_the_interpreters_programs_come_first() -> None:
    """ninja of the virtual environment is found although nobody activated it."""
    env = base_environment("r1", "s", "/v/bin/python")

    assert env["PATH"].startswith("/v/bin:")
    assert env["OPSCTL_RUN"] == "r1"


@pytest.mark.parametrize(
    ("argv", "count"),
    [
        (["--tp", "8"], 8),
        (["--tp-size=4", "--pp", "2"], 8),
        (["--tensor-parallel-size", "2"], 2),
        ([], 1),
        (["--tp", "x"], 1),
        (["--tp", "2", "--tp", "4"], 4),
    ],
)
def test_the_arguments_say_how_many_gpus(argv: list[str], count: int) -> None:
    """tp times pp, in every spelling; the last one given counts."""
    assert tensor_parallel(argv) == count


def test_a_flag_without_a_value_has_none() -> None:
    """The last element of an argv has nothing behind it."""
    assert value_of(["--tp"], ("--tp",)) is None


def test_the_request_holds_the_secrets_and_the_record_does_not() -> None:
    """Secrets go to the process; the record, the ledger and the fingerprint never see them."""
    request = PLAN.request({"A": "1", "TOKEN": "s3cr3t"}, "systemd", ["systemd-run"])

    assert request["env"]["TOKEN"] == "s3cr3t"
    assert "s3cr3t" not in str(request["record"])
    assert "s3cr3t" not in str(PLAN.to_json())
    assert request["unit"] == "opsctl-glm5-20261129-1930-ab12.service"


def test_a_plan_survives_the_ledger() -> None:
    """A resumed run launches what the cut run had planned."""
    assert LaunchPlan.from_json(PLAN.to_json()) == PLAN


def test_patches_change_the_content() -> None:
    """The same launch with another patch is another attempt."""
    patched = replace(PLAN, patches={"dyn": "aa"})

    assert patched.content().fingerprint() != PLAN.content().fingerprint()
