"""Judge, before anything is stopped, whether a launch can work on this machine; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from opsctl.domain.counted import counted
from opsctl.domain.gpu_memory import more_gpus
from opsctl.domain.launch import ranks_here, tensor_parallel, value_of
from opsctl.domain.process import shorten
from opsctl.domain.visible import judge_nodes, judge_visible
from opsctl.facts import Gpu, GpuRead, GpuReport
from opsctl.output import Finding
from opsctl.records import dataclass

LOG_FREE_BYTES = 256 << 20  # a chatty SGLang writes some MiB per minute under load
STATE_FREE_BYTES = 8 << 20
SHM_BYTES_WITH_TP = (
    512 << 20
)  # NCCL takes about 10 MiB per channel and rank pair; Docker's default is 64 MiB

ENOUGH_FILES = 16384  # each request in flight is a connection; SGLang itself holds some hundred

PROXIES = ("http_proxy", "all_proxy")  # the warm-up is plain HTTP

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Backend:
    """Which GPUs a backend runs on.

    Source: checks in sglang 0.5.12.post1, srt/server_args.py, srt/layers/attention/attention_registry.py and
    srt/layers/quantization/mxfp4.py.
    """

    flags: tuple[str, ...]
    value: str
    works_on: Callable[[Capability], bool]
    words: str


def _is_major(*majors: int) -> Callable[[Capability], bool]:
    return lambda capability: capability[0] in majors


_ATTENTION = ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")
_PREFILL = ("--attention-backend", "--prefill-attention-backend")
_DRAFT = ("--speculative-draft-attention-backend",)
_MOE = ("--moe-runner-backend", "--speculative-moe-runner-backend")
BACKENDS = (
    Backend((*_ATTENTION, *_DRAFT), "fa3", _is_major(8, 9), "SM80 to SM90"),
    Backend(_ATTENTION, "flashmla", _is_major(9), "SM90"),
    Backend(_ATTENTION, "cutlass_mla", _is_major(10), "SM100"),
    Backend(_ATTENTION, "trtllm_mla", _is_major(10, 12), "SM100 and SM12x"),
    Backend(_ATTENTION, "tokenspeed_mla", _is_major(10, 12), "SM100 and SM12x"),
    Backend(_PREFILL, "trtllm_mha", _is_major(10), "SM100, for prefill"),
    Backend(
        ("--decode-attention-backend",),
        "trtllm_mha",
        _is_major(9, 10, 12),
        "SM90, SM100 and SM12x, for decode",
    ),
    Backend(_MOE, "flashinfer_trtllm", _is_major(10), "SM100"),
    Backend(_MOE, "flashinfer_mxfp4", _is_major(9, 10), "SM90 and SM100"),
    Backend(
        ("--fp4-gemm-backend", "--fp8-gemm-backend"), "flashinfer_trtllm", _is_major(10), "SM100"
    ),
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the launch will ask of the machine."""

    argv: tuple[str, ...]
    port: int
    log_folder: str
    state_folder: str
    nofile: int
    is_sglang: bool
    gpu_report: GpuReport | None
    gpus: tuple[Gpu, ...]  # the server's selection
    expected_gpus: int | None
    ours: frozenset[int] = field(
        default_factory=frozenset
    )  # pids of the server that will be stopped
    env: Mapping[str, str] = field(default_factory=dict)  # of the launch, secrets as a word


@dataclass(frozen=True, slots=True)
class Verdict:
    """What stands in the way, and what is only worth knowing. ``unsure`` holds what could not be told."""

    problems: tuple[Finding, ...]
    unsure: tuple[Finding, ...]
    warnings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        return 20 if self.problems else 21 if self.unsure else 0


def judge_preflight(
    wanted: Wanted, survey: Mapping[str, Any], parser: Mapping[str, Any] | None
) -> Verdict:
    """Judge the machine's survey and the installed parser's reply against what is wanted."""
    problems: list[Finding] = []
    unsure: list[Finding] = []
    warnings: list[Finding] = []
    problems += _port(wanted, survey["port"])
    for path, found in survey["models"].items():
        problems += _model(path, found)
    problems += _room(wanted.log_folder, survey, LOG_FREE_BYTES, "log-disk")
    problems += _room(wanted.state_folder, survey, STATE_FREE_BYTES, "state-disk")
    problems += _shm(wanted, survey["shm"])
    problems += _backends(wanted)
    problems += _driver(wanted, survey.get("interpreter"))
    warnings += _limits(wanted, survey)
    warnings += _proxy(wanted)
    warnings += _more_gpus(wanted)
    found_problems, found_unsure = _gpus(wanted)
    problems += found_problems
    unsure += found_unsure
    found_problems, found_unsure = _arguments(wanted, survey.get("interpreter"), parser)
    problems += found_problems
    unsure += found_unsure
    needs_compiler = _needs_compiler(wanted)
    (problems if needs_compiler == "must" else warnings).extend(_compiler(needs_compiler, survey))
    return Verdict(tuple(problems), tuple(unsure), tuple(warnings))


def _port(wanted: Wanted, found: Mapping[str, Any]) -> list[Finding]:
    subject = f"port {wanted.port}"
    if found["free"]:
        return []
    strangers = [item for item in found["holders"] if item["pid"] not in wanted.ours]
    if not found["holders"]:
        text = "it is in use, and it cannot be seen by whom"
        return [Finding("port-in-use", subject, text, "run as root, or look with `ss -ltnp`")]
    return [
        Finding(
            "port-in-use",
            subject,
            f"it is held by pid {item['pid']} ({shorten(item['argv'], 120)}), which is not this server",
            "stop that process, or give the server another port",
        )
        for item in strangers
    ]


def _model(path: str, found: Mapping[str, Any]) -> list[Finding]:
    if not found.get("error"):
        return []
    return [
        Finding("model-unreadable", path, f"{found['error']}", "correct the path or its rights")
    ]


def _room(path: str, survey: Mapping[str, Any], wanted: int, code: str) -> list[Finding]:
    found = survey["folders"].get(path)
    if found is None:
        return []
    if found.get("error") or not found["writable"]:
        text = found.get("error") or "it cannot be written"
        return [
            Finding(code, path, text, "mend its rights, or name another folder in the site file")
        ]
    if found["free_bytes"] < wanted:
        text = f"only {found['free_bytes'] >> 20} MiB are free, {wanted >> 20} are wanted"
        return [Finding(code, path, text, "make room there")]
    return []


def _shm(wanted: Wanted, found: Mapping[str, Any]) -> list[Finding]:
    if tensor_parallel(wanted.argv) < 2 or found.get("error"):
        return []
    if found["total_bytes"] >= SHM_BYTES_WITH_TP:
        return []
    text = (
        f"it has {found['total_bytes'] >> 20} MiB, NCCL across GPUs wants {SHM_BYTES_WITH_TP >> 20}"
    )
    return [Finding("shm-too-small", "/dev/shm", text, "mount it larger (--shm-size, size=)")]


def _backends(wanted: Wanted) -> list[Finding]:
    known = {gpu.compute_capability for gpu in wanted.gpus if gpu.compute_capability}
    found = []
    for backend in BACKENDS:
        for flag in backend.flags:
            if value_of(wanted.argv, (flag,)) != backend.value:
                continue
            bad = sorted(capability for capability in known if not backend.works_on(capability))
            if bad:
                major, minor = bad[0]
                text = f"it runs on {backend.words} only; the GPUs here are SM{major}{minor}"
                subject = f"{flag} {backend.value}"
                found.append(
                    Finding("unsupported-arch", subject, text, "choose a backend for these GPUs")
                )
    return found


def _driver(wanted: Wanted, interpreter: Mapping[str, Any] | None) -> list[Finding]:
    if not wanted.gpus or not interpreter or not interpreter.get("torch_cuda"):
        return []
    served = wanted.gpu_report.cuda_version if wanted.gpu_report else None
    runtime = interpreter["torch_cuda"]
    if served is None or _major(served) is None or _major(runtime) is None:
        return []
    if (_major(served) or 0) >= (_major(runtime) or 0):
        return []  # within one major version an older driver serves a newer runtime
    text = f"the driver serves CUDA {served}, torch was built for CUDA {runtime}"
    return [
        Finding("driver-mismatch", "driver", text, "update the driver, or install another torch")
    ]


def _limits(wanted: Wanted, survey: Mapping[str, Any]) -> list[Finding]:
    hard = survey["nofile_hard"]
    enough = min(wanted.nofile, ENOUGH_FILES)
    if survey["nofile_raisable"] or hard < 0 or hard >= enough:
        return []
    text = f"the server will get {hard} file descriptors, not {wanted.nofile}"
    step = "raise it in limits.conf or in the container's configuration"
    return [Finding("nofile", "RLIMIT_NOFILE", text, step)]


def _proxy(wanted: Wanted) -> list[Finding]:
    """Its warm-up is an HTTP request to itself; through a proxy it fails with the proxy's 502 (case 059)."""
    names = [name for name in PROXIES if wanted.env.get(name) or wanted.env.get(name.upper())]
    host = value_of(wanted.argv, ("--host",)) or "127.0.0.1"
    own = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host
    listed = wanted.env.get("no_proxy") or wanted.env.get("NO_PROXY") or ""
    exempt = {item.strip() for item in listed.split(",")}
    if not wanted.is_sglang or not names or exempt & {"*", own}:
        return []
    text = f"the server's env sets {names[0]}, and no_proxy does not name {own}: the warm-up asks the proxy"
    return [Finding("proxy", "env", text, f"add {own} to no_proxy in the server's env")]


def _gpus(wanted: Wanted) -> tuple[list[Finding], list[Finding]]:
    problems: list[Finding] = []
    unsure: list[Finding] = []
    if wanted.gpu_report is None:
        return problems, unsure
    lost = [gpu for gpu in wanted.gpus if gpu.read is not GpuRead.OK]
    unsure += [Finding("gpu-unknown", gpu.uuid, gpu.error or gpu.read.value) for gpu in lost]
    for gpu in wanted.gpus:
        if gpu.recovery_action not in (None, "none"):
            text = f"it asks for {gpu.recovery_action} before it works again"
            problems.append(
                Finding("gpu-fault", gpu.uuid, text, "drain the node; opsctl resets nothing")
            )
        elif gpu.remap_failed:
            problems.append(
                Finding("gpu-fault", gpu.uuid, "row remapping has failed", "replace the GPU")
            )
    need = ranks_here(wanted.argv)
    if wanted.is_sglang:
        problems += judge_nodes(wanted.argv)
        problems += judge_visible(wanted.env, wanted.argv, wanted.gpus, wanted.gpu_report.gpus)
    if wanted.is_sglang and 0 < len(wanted.gpus) < need:
        text = f"the arguments want {counted(need, 'GPU')}, the server has {len(wanted.gpus)}"
        problems.append(Finding("gpu-count", "gpus", text, "correct tp, pp or gpus.select"))
    if wanted.expected_gpus is not None and len(wanted.gpus) < wanted.expected_gpus:
        text = f"{counted(len(wanted.gpus), 'GPU')} of {wanted.expected_gpus} expected here"
        detail = wanted.gpu_report.detail
        step = (
            "find the missing one with `nvidia-smi -L` and the kernel log, or correct gpus.expect"
        )
        unsure.append(Finding("gpu-count", "gpus", text + (f" ({detail})" if detail else ""), step))
    return problems, unsure


def _more_gpus(wanted: Wanted) -> list[Finding]:
    if wanted.expected_gpus is None or len(wanted.gpus) <= wanted.expected_gpus:
        return []
    return [replace(more_gpus(len(wanted.gpus), wanted.expected_gpus), subject="gpus")]


def _arguments(
    wanted: Wanted, interpreter: Mapping[str, Any] | None, parser: Mapping[str, Any] | None
) -> tuple[list[Finding], list[Finding]]:
    if not wanted.is_sglang:
        return [], []
    subject = wanted.argv[0]
    if interpreter is None or interpreter.get("error") or not interpreter.get("package_origin"):
        text = (interpreter or {}).get("error") or "sglang is not installed for this interpreter"
        return [Finding("no-sglang", subject, text, "correct `python` in the site file")], []
    if parser is None:
        return [], []
    if parser["ok"] is None:
        text = f"its argument parser could not be asked: {parser['error']}"
        return [], [Finding("arguments-unknown", subject, text, "import sglang by hand to see why")]
    if not parser["ok"]:
        version = interpreter.get("package_version") or "of unknown version"
        text = f"sglang {version} refuses them: {parser.get('error')}"
        return [Finding("arguments", "args", text, "correct `args` in the site file")], []
    return [], []


def _needs_compiler(wanted: Wanted) -> str:
    """Say whether kernels are built at start: ``must`` where FlashInfer is chosen, else ``may`` or ``no``."""
    if not wanted.is_sglang or not wanted.gpus or value_of(wanted.argv, ("--device",)) == "cpu":
        return "no"
    chosen = [value_of(wanted.argv, (flag,)) or "" for flag in (*_ATTENTION, *_MOE)]
    fused = any("flashinfer-allreduce-fusion" in item for item in wanted.argv)
    return "must" if fused or any(item.startswith("flashinfer") for item in chosen) else "may"


def _compiler(need: str, survey: Mapping[str, Any]) -> list[Finding]:
    if need == "no":
        return []
    missing = [name for name in ("ninja", "nvcc") if not survey["programs"].get(name)]
    text = "it is not on the server's PATH; kernels that are built at start will fail"
    return [
        Finding("toolchain", name, text, f"install {name}, or set PATH in env") for name in missing
    ]


def select_gpus(report: GpuReport, select: str | Sequence[int | str]) -> tuple[Gpu, ...]:
    """Return the GPUs of a site's selection, in the order of the report."""
    if select == "all":
        return report.gpus
    return tuple(gpu for gpu in report.gpus if gpu.index in select or gpu.uuid in select)


def _major(version: str) -> int | None:
    head = version.split(".")[0]
    return int(head) if head.isdigit() else None
