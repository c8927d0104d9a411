"""Each precondition: what is ok, what warns, what is bad, and that the unknown is never ok."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from opsctl.domain import doctor, doctor_gpu
from opsctl.domain.doctor import Check, State, exit_code_of, group_preflight
from opsctl.domain.preflight import judge_preflight
from opsctl.facts import GpuReport, Host, Leftover
from opsctl.output import Finding
from tests.unit.domain.tables import GPU0, GPU1, gpu
from tests.unit.domain.test_preflight import PARSED, survey, wanted

HOST = Host("b", "gpu1", "6.8", True, None, None, 0, "3.11.2", 100, 0.0)
ROOM = {"total_bytes": 64 << 30, "free_bytes": 60 << 30, "writable": True, "exists": True}
MACHINE: dict[str, Any] = {
    "shm": ROOM,
    "folders": {"/": ROOM},
    "nofile": [1024, 1 << 20],
    "memlock": [-1, -1],
    "limits_raisable": False,
    "pidfd": True,
    "iommu_groups": 0,
    "nvswitch": False,
    "daemons": [],
    "units": [],
}


def states(checks: list[Check]) -> dict[str, State]:
    return {check.name: check.state for check in checks}


def machine(**changes: Any) -> dict[str, State]:
    return states(doctor.judge_machine({**MACHINE, **changes}, serves=True, gpus=8))


def test_a_good_machine_is_ok_throughout() -> None:
    """Nothing to mend is said where nothing is wrong."""
    checks = doctor.judge_machine(MACHINE, serves=True, gpus=8)

    assert {check.state for check in checks} == {State.OK}
    assert not any(check.mend for check in checks)


@pytest.mark.parametrize(
    ("changes", "name", "state"),
    [
        ({"shm": {**ROOM, "total_bytes": 64 << 20}}, "shm", State.WARN),
        ({"shm": {**ROOM, "free_bytes": 1 << 20}}, "shm", State.WARN),
        ({"shm": {"error": "no such file"}}, "shm", State.UNKNOWN),
        ({"folders": {"/": {**ROOM, "free_bytes": 1 << 20}}}, "disk", State.BAD),
        ({"folders": {"/": {"error": "stale handle"}}}, "disk", State.UNKNOWN),
        ({"nofile": [1024, 4096]}, "ulimit", State.WARN),
        ({"nofile": [1024, 4096], "limits_raisable": True}, "ulimit", State.OK),
        ({"units": None}, "units", State.OK),
        ({"units": [{"unit": "opsctl-a.service", "active": "failed"}]}, "units", State.WARN),
        ({"iommu_groups": None}, "iommu", State.UNKNOWN),
        ({"iommu_groups": 12}, "iommu", State.WARN),
        ({"nvswitch": True}, "fabric-manager", State.BAD),
        ({"nvswitch": True, "daemons": ["nv-fabricmanager"]}, "fabric-manager", State.OK),
    ],
)
def test_each_trouble_of_a_machine_has_its_state(
    changes: dict[str, Any], name: str, state: State
) -> None:
    """What could not be read is unknown."""
    assert machine(**changes)[name] is state


@pytest.mark.parametrize(
    ("state", "expected", "verdict"),
    [
        ("no-library", False, State.OK),
        ("no-library", True, State.BAD),
        ("mismatch", True, State.BAD),
        ("driver-not-loaded", False, State.BAD),
        ("timeout", True, State.UNKNOWN),
        ("no-permission", True, State.UNKNOWN),
        ("error", False, State.UNKNOWN),
    ],
)
def test_nvml_that_hangs_is_unknown_and_a_mismatch_is_bad(
    state: str, expected: bool, verdict: State
) -> None:
    """A machine without GPUs is fine only where no server expects one."""
    (check,) = doctor_gpu.judge_gpus(GpuReport(state, None, None, None, ()), expected=expected)

    assert check.state is verdict


def test_health_is_judged_as_the_launch_judges_it() -> None:
    """An Xid that asks for a reboot is bad; a kernel log that cannot be read is unknown."""
    report = GpuReport("ok", None, "580.1", "13.0", (gpu(GPU0), gpu(GPU1, 1)), xids=())
    fatal = "[1.0] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."

    assert states(doctor_gpu.judge_gpus(report, expected=True))["gpu-health"] is State.OK
    unknown = doctor_gpu.judge_gpus(replace(report, xids=None), expected=True)
    assert states(unknown)["gpu-health"] is State.UNKNOWN
    bad = replace(report, xids=(fatal,), gpus=(gpu(GPU0, recovery_action="reboot"),))
    assert State.BAD in {check.state for check in doctor_gpu.judge_gpus(bad, expected=True)}


@pytest.mark.parametrize(
    ("modes", "state"),
    [({GPU0: 1}, State.OK), ({GPU0: 0}, State.WARN), ({GPU0: None}, State.UNKNOWN)],
)
def test_persistence_is_told_per_gpu(modes: dict[str, int | None], state: State) -> None:
    """NVML that does not answer is not a driver that persists."""
    facts = {"state": "ok", "detail": None, "persistence": modes, "peers": []}

    assert states(doctor_gpu.judge_links(facts, 1)) == {"persistence": state}


@pytest.mark.parametrize(
    ("status", "state"), [(0, State.OK), (3, State.WARN), (None, State.UNKNOWN)]
)
def test_peer_access_counts_where_a_server_spans_gpus(status: int | None, state: State) -> None:
    """For one GPU it does not matter, and is not shown."""
    facts = {
        "state": "ok",
        "detail": None,
        "persistence": {GPU0: 1},
        "peers": [[GPU0, GPU1, status]],
    }

    assert states(doctor_gpu.judge_links(facts, 8))["p2p"] is state
    assert "p2p" not in states(doctor_gpu.judge_links(facts, 1))
    hung = {"state": "timeout", "detail": "no answer", "persistence": {}, "peers": []}
    assert states(doctor_gpu.judge_links(hung, 8)) == {"persistence": State.UNKNOWN}


def test_rights_python_and_clock() -> None:
    """A user without root sees less; a clock is judged after what the way there explains."""
    assert doctor.judge_rights(0, "x").state is State.OK
    assert "sudo -n" in doctor.judge_rights(1000, "x").mend
    assert doctor.judge_python(HOST, has_pidfd=False).state is State.WARN
    assert doctor.judge_clock(0.4, 0.01).state is State.OK
    assert doctor.judge_clock(-9.0, 0.01).state is State.WARN
    assert doctor.judge_clock(9.0, 20.0).state is State.OK  # the answer took 20 s


def test_switches_that_slow_the_exchange_are_told_where_a_server_spans_gpus() -> None:
    """NCCL_P2P_DISABLE=1 is a workaround that stays for years if nobody names it."""
    assert states(doctor_gpu.judge_nccl({"NCCL_P2P_DISABLE": "1"}, 8)) == {"nccl": State.WARN}
    assert states(doctor_gpu.judge_nccl({"NCCL_P2P_DISABLE": "0"}, 8)) == {"nccl": State.OK}
    assert doctor_gpu.judge_nccl({"NCCL_P2P_DISABLE": "1"}, 1) == []


def test_only_what_is_dead_is_left_over() -> None:
    """A living server's shared memory is none."""
    dead = Leftover("shm", "/dev/shm/sgl_shm_1_2", 3 << 20, 7, False)

    assert doctor.judge_left([replace(dead, owner_alive=True)]).state is State.OK
    assert doctor.judge_left([replace(dead, kind="lock-file")]).state is State.OK
    found = doctor.judge_left([dead])
    assert (found.state, "/dev/shm/sgl_shm_1_2" in found.text) == (State.WARN, True)


def test_a_flag_without_effect_on_sm120_is_told_there_only() -> None:
    """The same flag on an H200 is no finding."""
    args = {"enable-flashinfer-allreduce-fusion": True}

    assert states(doctor_gpu.judge_sm120(args, [(12, 0)])) == {"sm120": State.WARN}
    assert states(doctor_gpu.judge_sm120({}, [(12, 0)])) == {"sm120": State.OK}
    assert doctor_gpu.judge_sm120(args, [(9, 0)]) == []


def test_the_preflights_verdict_is_taken_over_group_by_group() -> None:
    """What it refuses is bad, what it could not tell is unknown, what it warns of warns; the rest is ok."""
    verdict = judge_preflight(
        wanted(),
        survey(programs={"ninja": None, "nvcc": "x"}),
        {"ok": None, "error": "crash", "flags": []},
    )
    port = Finding("port-in-use", "port 30000", "taken")

    found = states(group_preflight([port], verdict.unsure, verdict.warnings, parsed=True))

    assert found["port"] is State.BAD
    assert found["arguments"] is State.UNKNOWN
    assert found["toolchain"] is State.WARN
    assert found["model"] is State.OK
    assert "arguments" not in states(group_preflight([], [], [], parsed=False))


def test_every_code_of_the_preflight_has_a_group() -> None:
    """A new finding of the preflight must not vanish in the doctor."""
    import re
    from pathlib import Path

    from opsctl.domain import preflight, visible

    source = "".join(Path(one.__file__).read_text() for one in (preflight, visible))
    codes = set(re.findall(r'Finding\(\s*"([a-z-]+)"', source))
    codes |= {"log-disk", "state-disk", "more-gpus"}
    known = {code for _, names, _ in doctor.PREFLIGHT_GROUPS for code in names}

    assert codes <= known
    assert judge_preflight(wanted(), survey(), PARSED).exit_code == 0


def test_exit_codes_are_the_contracts() -> None:
    """Not reached goes before bad, bad before unknown; a warning is exit 0."""
    ok, warn = Check("a", State.OK, ""), Check("b", State.WARN, "")
    bad, unknown = Check("c", State.BAD, ""), Check("d", State.UNKNOWN, "")

    assert exit_code_of([ok, warn]) == 0
    assert exit_code_of([ok, unknown]) == 21
    assert exit_code_of([unknown, bad]) == 20
    assert exit_code_of([bad], 30) == 30
