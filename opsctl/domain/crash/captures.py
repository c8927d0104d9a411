"""Rules for short captures that are judged as a whole: process lists, nvidia-smi, /dev/shm, notes."""

from __future__ import annotations

import re

from opsctl.records import dataclass


@dataclass(frozen=True, slots=True)
class Capture:
    """A form of capture: every pattern must be found, and none of ``unless``."""

    category: str
    confidence: float
    needs: tuple[re.Pattern[str], ...]
    unless: re.Pattern[str] | None = None
    why: str = ""


def _capture(
    category: str, confidence: float, *needs: str, unless: str = "", why: str = ""
) -> Capture:
    flags = re.MULTILINE | re.IGNORECASE
    return Capture(
        category,
        confidence,
        tuple(re.compile(need, flags) for need in needs),
        re.compile(unless, flags) if unless else None,
        why,
    )


_SERVER = r"(?:sglang::|VLLM::|sglang\.launch_server|sglang serve|vllm serve)"

# Output of other tools: the words are theirs, and no verdict on a server follows from them.
OUTSIDE: tuple[Capture, ...] = (
    _capture("unknown", 0.6, r"^Hunk #\d+|\(offset \d+ lines?\)|with fuzz \d|^Reversed \(or previously applied\)"
             r"|patch does not apply|^error: (?:corrupt )?patch|Stripping trailing CRs|patch failed|-> patch ok",
             why="this is output of patch or git apply; `opsctl patch status SERVER` computes the state of a patch"),
    _capture("unknown", 0.6, r"patched file present|patch .{0,40}(?:inert|without effect|not active)",
             why="a patch that is in place but not active; `opsctl patch status SERVER` says what proves it"),
    _capture("unknown", 0.6, r"lxc-attach|\bpct (?:exec|start|enter|set)\b|container '\d+' not running|PVE/CLI|keep-env",
             why="this is output of pct or lxc, not of a server"),
    _capture("unknown", 0.6, r"start-limit-hit|Start request repeated too quickly|already loaded or has a fragment"
             r"|Failed to start transient|Active: failed \(Result|systemd-logind|session-\S+\.scope|reset-failed",
             unless=r"Traceback|hit an exception|CUDA error|oom-kill",
             why="the unit's last words; the first failure in its journal is the cause"),
    _capture("unknown", 0.6, r"^\{\"(?:cmd|changed|rc)\"|\bparamiko\b|^nohup |^setsid |<- (?:hangs|works)|dd if=/dev/zero",
             why="this is a command and its result, not a server's log"),
    _capture("unknown", 0.6, r"^\S+: error: (?:unrecognized arguments|argument |the following arguments|ambiguous option)",
             unless=r"hit an exception|fired up and ready",
             why="the launcher refused its arguments: this version does not know them, or one is missing; the staged check of `opsctl restart SERVER` finds this before a stop"),
    _capture("unknown", 0.6, r"__init__\.py$|site-packages/sglang/__init__|__editable__", r"^\S+ +-> ",
             why="a list of installations; `opsctl patch status SERVER` asks the launch interpreter"),
)  # fmt: skip

CAPTURES: tuple[Capture, ...] = (
    _capture("zombie-service", 0.9, r"(?:launch_server|sglang serve|VLLM::|vllm serve|api_server).*\bS[sl+]*\b(?: *;|$|\s)"
             r"|\bS[sl+]*\b.*(?:launch_server|sglang serve|vllm serve)",
             r"(?:sglang::schedul\S*|VLLM::\S+|scheduler\S*).{0,40}(?:\bZ[sl+]?\b|defunct)|\bZ[sl+]*\b.{0,40}(?:sglang::|VLLM::)|<defunct>.*sglang",
             why="the port's owner lives, its workers are dead"),
    _capture("unkillable", 0.9, r"could not be reset|In use by another client|GPU reset .{0,40}(?:failed|not (?:possible|supported)|refused)",
             why="somebody else holds the device; a reset is a host operation"),
    _capture("unkillable", 0.9, r"blocked for more than \d+ seconds|uninterruptible|^\s*\S+ +\S* ?\d+ .{0,40}\bD[sl<+N]*\b .{0,60}(?:python|sglang|nvidia|vllm|VLLM)|^\s*\d+ +(?:\d+ +)?D[sl<+N]* +\S.*(?:python|sglang|nvidia|vllm|VLLM)|\bstate[: ]+D\b|\(disk sleep\)",
             why="a process in D state cannot be killed; reboot needed if the driver does not come back"),
    _capture("unkillable", 0.85, r"<defunct>|\bZl\b", r"\d+ ?MiB|/dev/nvidia|Unknown Error|\bSl\b",
             unless=r"launch_server|sglang serve", why="the parent is a zombie, a child keeps the device open"),
    _capture("leftover-shm", 0.92, r"(?:^[-ld]?[r-]w\S+ .*|/dev/shm/|^\s*[\d.]+[KMGT]?\s+\S*)(?:sgl_shm\w*|nccl-\w{6}|vllm_offload\w*|psm_\w+|sem\.(?:loky|mp)\S*|sglang_loads\w*|multi_tokenizer_args\w*|torch_\d+\w*)",
             unless=r"NCCL WARN|posix_fallocate|NCCL error", why="files in /dev/shm of processes that are gone"),
    _capture("leftover-process", 0.93, r"^\s*(?:\S+\s+)?\d+\s+1\s+(?:\S+\s+){0,8}(?:sglang::|VLLM::|\S*python\S* .*(?:sglang|vllm))",
             unless=r"<- must live|launch_server .*<-", why="workers of a server whose parent is gone"),
    _capture("leftover-process", 0.9, r"(?:after|kill(?:ed)?|KILL|stop(?:ped)?|port).{0,60}(?:port (?:is )?free|still (?:alive|running|there|hold)|gone|survived|orphan)|orphan(?:ed)? (?:workers?|process)",
             r"^\s*(?:\S+ )?\d+ .*(?:sglang::|VLLM::)", why="workers outlived the server; a free port proves nothing"),
    _capture("leftover-process", 0.85, r"^\s*\d+ (?:sglang::|VLLM::)", r"Local Address:Port", unless=r"^LISTEN|launch_server|sglang serve|vllm serve",
             why="workers are alive and nobody holds the port: their server is gone"),
    _capture("leftover-memory", 0.9, r"No such process|not in /proc|\[Not Found\]|no such pid|\| \(null\)",
             r"\d+ ?M(?:i)?B|used_gpu_memory|used_memory", why="memory is held by a pid that is not visible from here"),
    _capture("leftover-memory", 0.8, r"No running processes found", r"\b[1-9]\d{3,}MiB ?/ *\d+MiB",
             why="memory is used and no process is listed"),
    _capture("nvml-reserved", 0.9, r"\breserved\b", r"\"?(?:v1|v2)\"?\b|nvmlMemory|memory_v2|MemoryInfo", why="NVML v1 counts reserved memory as used"),
    _capture("nvml-reserved", 0.85, r"^\s*Reserved\s*:\s*[1-9]\d* MiB", r"^\s*Used\s*:\s*\d{1,2} MiB", why="reserved memory is not used memory"),
    _capture("nvml-unknown", 0.88, r"\[N/A\]|\|\s+N/A\s*\|\s+N/A\s+Default|\[Not Supported\]|\[Unknown Error\]|N/A ?MiB|Not Supported *\||memory.{0,40}Not Supported|ERR! */ *ERR!",
             unless=r"GPU is lost", why="the value is not available; that is not zero"),
    _capture("telemetry-only", 0.9, r"^(?:\d+, ?)?(?:9\d|100) %, ?\d{1,2} MiB, ?(?:none|\[\]|no process\w*|0|-)?\s*$", why="utilisation alone never decides"),
    _capture("telemetry-only", 0.8, r"\b\d{1,2}MiB ?/ *\d+MiB \| +(?:9\d|100)%", r"No running processes found", why="utilisation alone never decides"),
    _capture("telemetry-only", 0.8, r"(?:util\w*)\D{0,20}(?:9\d|100) ?%", r"(?:mem\w*|used)\D{0,20}\b\d{1,2} ?MiB|memory (?:is )?free", r"no(?:ne| process\w*)\b", why="utilisation alone never decides"),
    _capture("nvml-namespace", 0.88, r"\b[1-9]\d{2,}MiB ?/ *\d+MiB", r"Processes:[^\n]*\n(?:\|[^\n]*(?:PID|ID|Usage)[^\n]*\n)*\|=+\|\s*\n\+-+\+",
             why="memory is used and the panel is empty: the holder's pid belongs to another namespace"),
    _capture("nvml-namespace", 0.8, r"processes?[\"']?\s*[:=]\s*\[\]|no process(?:es)? (?:listed|visible)", r"(?:used|memory)\D{0,30}[1-9]\d{3,}", r"container|namespace|lxc|docker",
             why="the holder's pid belongs to another namespace"),
    _capture("selection-trap", 0.8, r"^(?:.*comm\b.*)?sglang::schedul(?!er)|comm\s+VLLM::\w{1,9}$", r"\bcomm\b", r"cmdline|exe\b", why="comm holds 15 characters: choose by argv and identity"),
    _capture("selection-trap", 0.75, r"^(?!.*<- must).*(?:sglang serve|sglang\.launch_server|vllm serve)", r"^sglang::(?:scheduler|detokenizer)\S*\s*$|^VLLM::\w+\s*$",
             why="the children carry titles, the root process does not: walk the tree from the port's owner"),
    _capture("selection-trap", 0.75, r"Xid .{0,40}: 1(?:19|20), pid='?<unknown>", unless=r"hit an exception|Traceback|Scheduler|CUDA error",
             why="the GSP stopped answering with no CUDA process named: the field report is a monitor (dcgm-exporter) that was killed with SIGKILL; reboot needed"),
    _capture("fusion-init", 0.9, r"create_allreduce_fusion_workspace|flashinfer_comm_fusion|_symmetric_memory|symm_buffer", why="all ranks wait in the rendezvous of the fused allreduce"),
    _capture("watchdog-timeout", 0.8, r"Pyspy dump|py-spy dump", r"eagle_worker|forward_batch|scheduler", why="the stack of a scheduler that made no step"),
    _capture("startup-hang", 0.75, r"^Thread .*MainThread", r"load_model|load_weights|filelock|file_baton|baton|init_torch_distributed|init_process_group|_build_extension|jit", why="the stack stands in a step of the start"),
    _capture("silent-hang", 0.7, r"^Thread .*MainThread", r"all_?reduce|all_?gather|broadcast|recv|synchronize|event_loop", why="the stack stands in a wait"),
)  # fmt: skip


def outside(text: str) -> Capture | None:
    """Return the rule for output that is no server's log, or None."""
    return _first(OUTSIDE, text)


def match_capture(text: str) -> tuple[Capture, str] | None:
    """Return the rule that a short capture fits, and the line that decided."""
    found = _first(CAPTURES, text)
    if found is None:
        return None
    hit = found.needs[0].search(text)
    assert hit is not None
    start = text.rfind("\n", 0, hit.start() + 1) + 1
    end = text.find("\n", max(hit.start() + 1, start))
    return found, text[start : end if end > start else len(text)].strip()


def _first(captures: tuple[Capture, ...], text: str) -> Capture | None:
    for capture in captures:
        if capture.unless is not None and capture.unless.search(text):
            continue
        if all(need.search(text) for need in capture.needs):
            return capture
    return None
