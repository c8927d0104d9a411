"""What stands in the way of a launch is said before anything is stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from opsctl.domain.preflight import Wanted, judge_preflight
from opsctl.domain.visible import visible_devices
from opsctl.facts import Gpu, GpuRead, GpuReport

PYTHON = "/v/bin/python"
ARGV = (PYTHON, "-m", "sglang.launch_server", "--model-path", "/m", "--port", "30000", "--tp", "8")


def gpu(number: int, capability: tuple[int, int] = (12, 0)) -> Gpu:
    return Gpu(
        uuid=f"GPU-{number}",
        index=number,
        name="NVIDIA RTX PRO 6000 Blackwell",
        read=GpuRead.OK,
        error=None,
        total_bytes=96 << 30,
        used_bytes=0,
        reserved_bytes=0,
        memory_version=2,
        processes=(),
        compute_capability=capability,
        recovery_action="none",
        mig_enabled=False,
        ecc_uncorrected=0,
        remap_pending=False,
        remap_failed=False,
        temperature_c=30,
        utilisation_percent=0,
    )


def report(gpus: tuple[Gpu, ...], cuda: str | None = "13.0") -> GpuReport:
    return GpuReport("ok", None, "580.1", cuda, gpus)


def wanted(*flags: str, **changes: Any) -> Wanted:
    gpus = changes.pop("gpus", tuple(gpu(number) for number in range(8)))
    made = Wanted(
        argv=(*ARGV, *flags),
        port=30000,
        log_folder="/logs",
        state_folder="/state",
        nofile=65536,
        is_sglang=True,
        gpu_report=report(gpus),
        gpus=gpus,
        expected_gpus=8,
    )
    return replace(made, **changes)


def survey(**changes: Any) -> dict[str, Any]:
    room = {"total_bytes": 1 << 40, "free_bytes": 1 << 39, "writable": True, "exists": True}
    return {
        "port": {"free": True, "holders": []},
        "shm": {"total_bytes": 64 << 30, "free_bytes": 64 << 30},
        "models": {"/m": {"exists": True, "error": None}},
        "folders": {"/logs": dict(room), "/state": dict(room)},
        "programs": {"ninja": "/v/bin/ninja", "nvcc": "/usr/local/cuda/bin/nvcc"},
        "nofile_hard": 1 << 20,
        "nofile_raisable": True,
        "uid": 0,
        "interpreter": {
            "package_origin": "/v/sglang",
            "package_version": "0.5.12.post1",
            "torch_cuda": "13.0",
        },
        **changes,
    }


PARSED = {"ok": True, "error": None, "flags": []}


def codes(found: tuple[Any, ...]) -> list[str]:
    return [finding.code for finding in found]


def test_the_incidents_setup_passes() -> None:
    """GLM-5 on 8 x SM120 with EAGLE-3 and the allreduce fusion: nothing stands in the way."""
    flags = ("--speculative-algorithm", "EAGLE3", "--enable-flashinfer-allreduce-fusion")

    verdict = judge_preflight(wanted(*flags), survey(), PARSED)

    assert verdict.problems == ()
    assert verdict.exit_code == 0


@pytest.mark.parametrize(
    ("flag", "value", "works"),
    [
        ("--attention-backend", "trtllm_mha", False),
        ("--attention-backend", "cutlass_mla", False),
        ("--attention-backend", "fa3", False),
        ("--attention-backend", "flashmla", False),
        ("--moe-runner-backend", "flashinfer_trtllm", False),
        ("--attention-backend", "trtllm_mla", True),
        ("--decode-attention-backend", "trtllm_mha", True),
        ("--attention-backend", "flashinfer", True),
        ("--attention-backend", "triton", True),
    ],
)
def test_a_backend_must_fit_the_gpus(flag: str, value: str, works: bool) -> None:
    """SM100-only kernels on SM120 are refused, before the running server is stopped for them."""
    verdict = judge_preflight(wanted(flag, value), survey(), PARSED)

    assert codes(verdict.problems) == ([] if works else ["unsupported-arch"])


def test_an_unknown_flag_is_refused_with_the_parsers_words() -> None:
    """The installed version's own parser decides."""
    parser = {"ok": False, "error": "unrecognized arguments: --nope", "flags": []}

    verdict = judge_preflight(wanted(), survey(), parser)

    assert codes(verdict.problems) == ["arguments"]
    assert (
        "sglang 0.5.12.post1 refuses them: unrecognized arguments: --nope"
        in verdict.problems[0].text
    )
    assert verdict.exit_code == 20


def test_a_parser_that_cannot_be_asked_is_not_a_yes() -> None:
    """Could not tell is exit 21, not a pass."""
    parser = {"ok": None, "error": "ImportError: libcuda.so.1", "flags": []}

    assert judge_preflight(wanted(), survey(), parser).exit_code == 21


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"models": {"/m": {"exists": False, "error": "absent"}}}, "model-unreadable"),
        ({"shm": {"total_bytes": 64 << 20, "free_bytes": 64 << 20}}, "shm-too-small"),
        ({"interpreter": {"error": "No such file"}}, "no-sglang"),
        (
            {"interpreter": {"package_origin": "/v/sglang", "torch_cuda": "14.0"}},
            "driver-mismatch",
        ),
    ],
)
def test_each_obstacle_has_its_name(changes: dict[str, Any], code: str) -> None:
    """Model, shared memory, interpreter, driver."""
    assert codes(judge_preflight(wanted(), survey(**changes), PARSED).problems) == [code]


def test_too_few_file_descriptors_are_told() -> None:
    """The server would start, and refuse clients under load; who may raise the limit gets it raised."""
    low = {"nofile_hard": 4096, "nofile_raisable": False}

    told = judge_preflight(wanted(), survey(**low), PARSED)
    raised = judge_preflight(wanted(), survey(**low | {"nofile_raisable": True}), PARSED)

    assert codes(told.warnings) == ["nofile"]
    assert codes(raised.warnings) == []


def test_a_full_or_readonly_log_disk_is_seen() -> None:
    """The log's disk is looked at before the stop, not after it."""
    full = survey()
    full["folders"]["/logs"]["free_bytes"] = 1 << 20
    readonly = survey()
    readonly["folders"]["/state"]["writable"] = False

    assert codes(judge_preflight(wanted(), full, PARSED).problems) == ["log-disk"]
    assert codes(judge_preflight(wanted(), readonly, PARSED).problems) == ["state-disk"]


def test_the_running_server_may_hold_its_port() -> None:
    """It will be stopped; a stranger on the port will not."""
    holder = {"pid": 7, "start_ticks": 1, "argv": ["nginx"]}
    busy = survey(port={"free": False, "holders": [holder]})

    ours = judge_preflight(wanted(ours=frozenset({7})), busy, PARSED)
    strange = judge_preflight(wanted(), busy, PARSED)

    assert ours.problems == ()
    assert codes(strange.problems) == ["port-in-use"]
    assert "pid 7 (nginx)" in strange.problems[0].text


def test_a_port_whose_holder_is_hidden_is_not_free() -> None:
    """Not permitted to see is not nobody."""
    hidden = survey(port={"free": False, "holders": []})

    assert codes(judge_preflight(wanted(), hidden, PARSED).problems) == ["port-in-use"]


def test_too_few_gpus_for_the_arguments() -> None:
    """tp 8 on four cards fails before the stop."""
    four = tuple(gpu(number) for number in range(4))

    verdict = judge_preflight(wanted(gpus=four, expected_gpus=None), survey(), PARSED)

    assert codes(verdict.problems) == ["gpu-count"]


def test_more_gpus_than_expected_is_a_warning() -> None:
    """Four of eight are the server's by the site's own word: said, and nothing is refused for it."""
    verdict = judge_preflight(wanted("--tp", "4", expected_gpus=4), survey(), PARSED)

    assert verdict.exit_code == 0
    (warning,) = verdict.warnings
    assert (warning.code, warning.subject) == ("more-gpus", "gpus")
    assert "8 GPUs are selected, and 4 expected" in warning.text
    assert "gpus.select" in warning.next


def test_fewer_gpus_than_expected_is_could_not_tell() -> None:
    """One of eight is missing: exit 21."""
    seven = tuple(gpu(number) for number in range(7))

    verdict = judge_preflight(wanted("--tp", "4", gpus=seven), survey(), PARSED)

    assert verdict.exit_code == 21
    assert codes(verdict.unsure) == ["gpu-count"]


def test_a_compiler_is_a_must_only_where_kernels_are_surely_built() -> None:
    """FlashInfer chosen: ninja and nvcc must be there; otherwise it is a warning."""
    without = survey(programs={"ninja": None, "nvcc": None})

    chosen = judge_preflight(wanted("--attention-backend", "flashinfer"), without, PARSED)
    default = judge_preflight(wanted(), without, PARSED)

    assert codes(chosen.problems) == ["toolchain", "toolchain"]
    assert codes(default.warnings) == ["toolchain", "toolchain"]


def test_an_older_driver_of_the_same_major_serves() -> None:
    """CUDA's minor version compatibility: 13.0 serves a runtime of 13.2."""
    newer = {"package_origin": "/v", "package_version": "1", "torch_cuda": "13.2"}

    assert judge_preflight(wanted(), survey(interpreter=newer), PARSED).problems == ()


@pytest.mark.parametrize(
    ("flags", "env", "warned"),
    [
        ((), {}, False),
        ((), {"HTTP_PROXY": "http://192.0.2.1:3128"}, True),
        ((), {"all_proxy": "socks5://192.0.2.1", "no_proxy": "localhost"}, True),
        ((), {"http_proxy": "http://192.0.2.1:3128", "NO_PROXY": "10.0.0.0/8, 127.0.0.1"}, False),
        ((), {"http_proxy": "http://192.0.2.1:3128", "no_proxy": "*"}, False),
        (("--host", "0.0.0.0"), {"http_proxy": "x", "no_proxy": "127.0.0.1"}, False),
        (("--host", "192.0.2.7"), {"http_proxy": "x", "no_proxy": "127.0.0.1"}, True),
        ((), {"https_proxy": "http://192.0.2.1:3128"}, False),
    ],
)
def test_a_proxy_between_the_server_and_its_own_warm_up_is_told(
    flags: tuple[str, ...], env: dict[str, str], warned: bool
) -> None:
    """Its 502 ends the start as a failed warm-up (rule 30, case 059)."""
    verdict = judge_preflight(wanted(*flags, env=env), survey(), PARSED)

    assert [one.code for one in verdict.warnings if one.code == "proxy"] == ["proxy"] * warned


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("0,1,2", ("0", "1", "2")),
        (" 0 , GPU-aa ", ("0", "GPU-aa")),
        ("MIG-1/2/3", ("MIG-1/2/3",)),
        ("", ()),
        ("-1", ()),
        ("0,-1,1", ("0",)),
        ("0,0,1", ("0",)),
        ("NoDevFiles", ()),
    ],
)
def test_what_cuda_takes_from_the_variable(value: str, seen: tuple[str, ...]) -> None:
    """Everything behind the first that is no device is hidden, without a word from CUDA."""
    assert visible_devices(value) == seen


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("0,1,2,3,4,5,6,7", []),
        ("0,1,2,3", ["gpu-count"]),
        ("0,1,2,-1,3,4,5,6,7", ["gpu-count"]),
        ("", ["gpu-count"]),
        ("(secret)", []),
    ],
)
def test_the_server_s_env_shows_it_as_many_gpus_as_it_wants(value: str, found: list[str]) -> None:
    """Else it dies of an "invalid device ordinal" after the old one was stopped."""
    verdict = judge_preflight(wanted(env={"CUDA_VISIBLE_DEVICES": value}), survey(), PARSED)
    assert codes(verdict.problems) == found


def test_the_server_s_env_names_the_cards_of_the_selection() -> None:
    """gpus.select says whose memory is proven: other cards in the env would be looked at by nobody."""
    cards = tuple(gpu(number) for number in range(8))
    names = [card.uuid for card in cards]
    argv = tuple("2" if word == "8" else word for word in ARGV)

    def problems(value: str) -> list[str]:
        made = wanted(env={"CUDA_VISIBLE_DEVICES": value}, gpus=cards)
        made = replace(made, argv=argv, gpus=cards[:2], expected_gpus=2)
        return codes(judge_preflight(made, survey(), PARSED).problems)

    assert problems(",".join(names[:2])) == []
    assert problems(",".join(names[2:4])) == ["gpu-selection", "gpu-selection"]


def test_a_node_of_several_needs_its_share_of_the_gpus() -> None:
    """--tp 16 over two nodes is eight here; and another rank than the first is refused before the stop."""
    flags = ("--tp", "16", "--nnodes", "2", "--node-rank")

    assert judge_preflight(wanted(*flags, "0"), survey(), PARSED).problems == ()
    assert codes(judge_preflight(wanted(*flags, "1"), survey(), PARSED).problems) == ["node-rank"]
    assert codes(judge_preflight(wanted("--tp", "16"), survey(), PARSED).problems) == ["gpu-count"]


def test_a_server_on_the_cpu_may_see_no_gpu() -> None:
    """Its env hides them on purpose."""
    hidden = wanted("--device", "cpu", env={"CUDA_VISIBLE_DEVICES": ""})
    assert judge_preflight(hidden, survey(), PARSED).problems == ()
