"""What each category means and what to do next, in words for the person on call."""

from __future__ import annotations

import re

from opsctl.records import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """One category: what it means, and the next steps, the cheapest first."""

    meaning: str
    next: tuple[str, ...]


def _a(meaning: str, *steps: str) -> Advice:
    return Advice(meaning, steps)


ADVICE: dict[str, Advice] = {
    "shape-mismatch": _a(
        "two sizes disagree in a tensor operation",
        "find the first bad level: `opsctl smoke SERVER --bisect`; if the server is dead, `opsctl restart SERVER --no-smoke --again bisect` first",
        "change what differs from the last run that passed (patches, arguments): a restart with the same ones is refused as known to fail",
        "test the captured graph sizes and the largest + 1; run once with --disable-cuda-graph to compare",
    ),
    "index-out-of-bounds": _a(
        "a device-side assert fired: an index was outside its tensor; the stack is where it was noticed, not where it began",
        "run the mixed level (plain, constrained, long prompts): the mix is the usual trigger, not the count",
        "run once with CUDA_LAUNCH_BLOCKING=1 to get the true stack; look at the kernel log for Xid",
    ),
    "illegal-access": _a(
        "an illegal CUDA access or instruction; CUDA errors are asynchronous, so the stack is where it was noticed, not the cause",
        "run once with CUDA_LAUNCH_BLOCKING=1, and once with --disable-cuda-graph",
        "look at the kernel log for Xid 13 or 31",
    ),
    "kv-pool-leak": _a(
        "the self-check of the KV pool failed when the server was idle: tokens were lost under the load before",
        "repeat the last level and watch the idle period after it; a newer build or --disable-radix-cache is the usual way round",
    ),
    "kv-pool-exhausted": _a(
        "an allocation in the KV pool failed and killed the server; with a page size above 1 free tokens can be too scattered to use",
        "lower --max-running-requests or --page-size, or raise --mem-fraction-static",
    ),
    "cuda-oom-runtime": _a(
        "a CUDA allocation failed while serving: usually activations of a long prefill, not the KV pool",
        "lower --chunked-prefill-size and --mem-fraction-static; smoke once with long prompts",
    ),
    "cuda-oom-startup": _a(
        "a CUDA allocation failed while loading or capturing",
        "`opsctl gpu verify SERVER` shows who holds memory; processes that torch names are the first suspects",
        "lower --mem-fraction-static or --cuda-graph-max-bs, or raise --tp",
    ),
    "collective-timeout": _a(
        "one rank waited too long for another; the cause is on the rank that did not log it, or logged something earlier",
        "compare last completed with last enqueued work per rank; look at the rank that is missing here",
        "check NVLink and network, and the kernel log for Xid",
    ),
    "watchdog-timeout": _a(
        "the scheduler made no step within its limit, and its own watchdog ended it",
        "read the first frames after MainThread of each dump: ranks that work against ranks that wait",
    ),
    "child-died": _a(
        "a process of the server died; this is the end of a crash, its cause is elsewhere or was not logged",
        "look for an earlier record of another rank, at the kernel log (OOM killer, Xid) and for a core dump",
    ),
    "zombie-service": _a(
        "the port answers, the workers behind it are dead",
        "`opsctl restart SERVER`; do not trust /health of this version, ask for one generation",
    ),
    "silent-hang": _a(
        "requests get no answer and no error line was written",
        "`opsctl smoke SERVER` with one request shows it; dump the scheduler's stack with py-spy before the restart",
        "stop with TERM and wait: a hang after a kill -9 and a quick relaunch is known",
    ),
    "health-timeout": _a(
        "a health probe failed: busy or hung; in some versions each probe is a generation, so probes that time out pile up as load",
        "one probe in flight, interval above its timeout; look whether decode lines still appear",
    ),
    "gpu-fault": _a(
        "the GPU or its driver reported a fault",
        "`opsctl gpu verify SERVER` for recovery action, ECC and row remapping; drain the host before the next launch",
    ),
    "degraded": _a(
        "the server works, but slower than it could; this is a warning, not a crash",
        "count it per level: `opsctl smoke SERVER`; lower --max-running-requests or raise the KV pool or the graph sizes",
    ),
    "port-in-use": _a(
        "the port is taken",
        "name its owner before killing anything: `opsctl status SERVER`",
    ),
    "config-memory": _a(
        "the memory that is left after the weights makes no KV pool",
        "compare weights + draft + graphs with the card; if they do not fit, no --mem-fraction-static helps: raise --tp or use a smaller model",
    ),
    "unsupported-arch": _a(
        "a kernel in this build was not compiled for this GPU; wherever it was noticed, a graph capture included",
        "compare the compute capability of every GPU with the build; mixed cards count",
    ),
    "fusion-init": _a(
        "the start of the fused allreduce failed or never finished",
        "try --enforce-disable-flashinfer-allreduce-fusion",
    ),
    "graph-capture": _a(
        "CUDA graph capture failed; the advice in the message is boilerplate, the cause is the text after 'failed:'",
        "start once with --disable-cuda-graph to see whether the kernel itself works; then smaller --cuda-graph-max-bs",
    ),
    "driver-mismatch": _a(
        "the driver is older than the CUDA runtime of this build",
        "compare the driver with the CUDA version of the torch build; update the driver on the host that owns the GPU",
    ),
    "warmup-failed": _a(
        "the server's own first request failed",
        "a 502 from a plain uvicorn points to an HTTP proxy: unset http_proxy and https_proxy, or set no_proxy=localhost,127.0.0.1",
    ),
    "toolchain": _a(
        "a kernel had to be compiled and a compiler, ninja or header is missing or fails",
        "install ninja and the CUDA toolkit where the unit's PATH and CUDA_HOME point",
    ),
    "startup-hang": _a(
        "the start stands still before ready, without an error",
        "dump the stack (py-spy); look for lock files of the JIT cache whose owner is dead",
    ),
    "shm-too-small": _a(
        "/dev/shm is too small or full",
        "df /dev/shm; in a container raise --shm-size; sweep what dead servers left: `opsctl status SERVER`",
    ),
    "leftover-process": _a(
        "processes of an old server are alive",
        "`opsctl stop SERVER` finds them by identity; a free port or a parent other than 1 proves nothing",
    ),
    "leftover-memory": _a(
        "GPU memory is in use and its owner is not visible from here",
        "look from the host that owns the GPU: `opsctl gpu verify SERVER`; do not reset",
    ),
    "leftover-shm": _a(
        "files of dead processes fill /dev/shm",
        "remove only files whose owner is dead and that no process maps: `opsctl stop SERVER` sweeps them",
    ),
    "unkillable": _a(
        "a process or device cannot be freed with signals",
        "stop here: if the holder does not go, a reboot is needed; never reset a GPU from here",
    ),
    "telemetry-only": _a(
        "a sensor is wrong, the GPU is free",
        "decide by memory and processes; note the utilisation and go on",
    ),
    "nvml-reserved": _a(
        "reserved memory was counted as used",
        "ask with NVML memory v2 and report reserved apart",
    ),
    "nvml-unknown": _a(
        "NVML does not give this value here; unknown is not zero",
        "prove the absence of servers with the process list, and say that memory was not checked",
    ),
    "nvml-namespace": _a(
        "NVML's pids belong to another namespace, so an empty list is not an empty GPU",
        "ask on the host that owns the GPU",
    ),
    "nvml-mismatch": _a(
        "the NVML library and the kernel module differ in version; running servers may still be healthy",
        "after an upgrade on the host: reload the module or reboot; in a container: install the host's version",
    ),
    "nvml-denied": _a(
        "NVML may not read this here",
        "with MIG ask the MIG devices; else ask on the host",
    ),
    "nvml-bindings": _a(
        "the Python bindings call a function that this driver lacks",
        "fall back to the older call and label what it says",
    ),
    "container-devices": _a(
        "device nodes or driver libraries are missing where the server runs",
        "check /dev/nvidia0, nvidiactl, nvidia-uvm and libcuda.so.1 inside the container",
    ),
    "selection-trap": _a(
        "choosing processes by this output would hit or miss the wrong ones",
        "`opsctl stop SERVER --dry-run` shows what identity selects; monitors and other owners stay protected",
    ),
    "stream-ok": _a("the stream is odd but correct", "nothing to do"),
    "stream-error": _a(
        "an error object came inside a stream with status 200",
        "count the request as failed and read the server's log at that time",
    ),
    "stream-abort": _a(
        "the server ended the request with an abort",
        "unless the client cancelled it, look at the server's log at that time",
    ),
    "stream-cut": _a(
        "the stream ended early: the first outside sign of a dying server",
        "read the log tail, the process table and the kernel log now; do not retry first",
    ),
    "client-limit": _a(
        "the test client reached a limit of its own; nothing is claimed about the server",
        "raise RLIMIT_NOFILE (ulimit -n) of the client and measure again",
    ),
    "server-limit": _a(
        "the server process reached a limit (files, threads, queue); it did not crash",
        "raise LimitNOFILE and TasksMax of the unit, or the queue limit",
    ),
    "client-error": _a(
        "the request was wrong, the server is fine",
        "build prompts from the served context length",
    ),
    "host-oom": _a(
        "the kernel's OOM killer ended a process for host memory",
        "a cgroup limit and the host's limit differ: compare MemoryMax with the host; lower HiCache and pinned memory",
    ),
    "scheduler-exception": _a(
        "a plain Python error ended the scheduler",
        "search the message with the SGLang version; if clients were cancelled at that moment, let requests finish instead",
    ),
    "req-slots-exhausted": _a(
        "there was no free request slot; 'out of memory' here means slots, not tokens",
        "raise --max-running-requests or send less; compare available and wanted",
    ),
    "detokenizer-died": _a(
        "the detokenizer process ended",
        "raise SGLANG_DETOKENIZER_MAX_STATES above the running requests when the error is a KeyError of a request id",
    ),
    "wrong-output": _a(
        "the server answers 200 with broken text",
        "compare with fewer draft steps and without speculation at the same level: `opsctl smoke SERVER --reference last`",
    ),
    "unknown": _a(
        "no rule knows this",
        "read the first record; if it is a log of a server, report it with the version so that a rule can be made",
    ),
}  # fmt: skip


def known_steps(
    steps: tuple[str, ...],
    *,
    server: str | None,
    graphs: bool,
    exact: bool = False,
    known_bad: bool = False,
) -> tuple[str, ...]:
    """Return the steps with the server's name, without those that were taken already.

    Args:
        steps: the next steps of a category.
        server: its name in the site; None leaves the placeholder.
        graphs: False when the launch had no CUDA graphs: to switch them off is no step then.
        exact: the level below the first bad one passed: there is nothing to bisect.
        known_bad: a patch in place is known to be bad: to launch it again takes a word more.
    """
    found = []
    for step in steps:
        if exact and "--bisect" in step:
            continue
        if known_bad:
            step = step.replace("--again bisect", "--again bisect --allow-known-bad")
        if not graphs:
            step = step.replace(", and once with --disable-cuda-graph", "")
            if "--disable-cuda-graph" in step:
                continue
        found.append(name_server(step, server))
    return tuple(found)


def name_server(text: str, server: str | None) -> str:
    """Return the text with the server's name where it is known; else the placeholder stays."""
    return text.replace("SERVER", server) if server else text


QUOTES: tuple[tuple[str, re.Pattern[str], str], ...] = tuple(
    (category, re.compile(pattern, re.IGNORECASE | re.DOTALL), words)
    for category, pattern, words in (
        ("scheduler-exception", r"index (\d+) is out of bounds for dimension \d+ with size \1\b", "index {0} is one past the end"),
        ("index-out-of-bounds", r"index (\d+) is out of bounds for dimension \d+ with size \1\b", "index {0} is one past the end"),
        ("kv-pool-exhausted", r"allocate (\d+) tokens.*?Ava\w+ tokens: (\d+)", "{0} tokens were wanted and {1} free"),
        ("kv-pool-leak", r"total\w*=(\d+), available\w*=(\d+), evictable\w*=(\d+)", "of {0} tokens {1} are available and {2} evictable"),
        ("cuda-oom", r"Tried to allocate ([\d.]+ \w+)\..*?([\d.]+ \w+) (?:is )?free", "one allocation of {0} with {1} free"),
        ("cuda-oom", r"(Process \d+ has [\d.]+ \w+ memory in use)", "torch names another holder: {0}"),
        ("req-slots-exhausted", r"available_size\(?\)?=(\d+).*?num_reqs=(\d+)", "{0} slots were free and {1} wanted"),
        ("collective-timeout", r"OpType=(\w+).*?Timeout\(ms\)=(\d+)", "a {0} waited {1} ms"),
        ("collective-timeout", r"last enqueued NCCL work: (\d+), last completed NCCL work: (-?\d+)", "last enqueued work {0}, last completed {1}"),
        ("host-oom", r"Killed process (\d+) \(([^)]+)\)", "pid {0} ({1}) was killed"),
        ("host-oom", r"task=([\w:.-]+)", "the victim is {0}"),
        ("gpu-fault", r"(Error 802|SystemNotReady|SYSTEM_NOT_READY)", "{0}: nvidia-fabricmanager is not running, or not of the driver's version"),
        ("leftover-memory", r"pre_model_load_memory=([\d.]+), local_gpu_memory=([\d.]+)", "the fullest GPU has {0} GB free, this rank {1} GB"),
        ("unknown", r"is not a valid model identifier|RepositoryNotFound|404 Client Error.*?resolve/", "the model's name or path is wrong, or the hub knows it only with a token"),
        ("unknown", r"LocalEntryNotFound|outgoing traffic has been disabled|offline mode is enabled|Failed to resolve 'huggingface", "the model is not here and the hub was not reached"),
        ("scheduler-exception", r"Cannot find any model weights|deserializing header|MetadataIncompleteBuffer|InvalidHeader|Should have a `model_type` key|No such file or directory: '[^']*(?:safetensors|config\.json)", "the model's files are missing, incomplete or of another kind: compare them with their source"),
        ("scheduler-exception", r"out of resource: ([\w ]+), Required: (\d+), Hardware limit: (\d+)", "a kernel wants {1} of {0}, this GPU has {2}"),
        ("scheduler-exception", r"No space left on device: '([^']+)'", "the disk of {0} is full"),
        ("scheduler-exception", r"Permission denied: '([^']+)'", "the server's user may not write {0}"),
        ("scheduler-exception", r"invalid device ordinal", "the server wants more GPUs than it sees: compare --tp with CUDA_VISIBLE_DEVICES"),
        ("unknown", r"No module named '([\w.]+)'", "the interpreter that was started lacks {0}"),
        ("port-in-use", r"\('([^']+)', (\d+)\)", "address {0} port {1}"),
        ("graph-capture", r"failed: ([^\n]{1,160})", "the text after 'failed:' is: {0}"),
        ("warmup-failed", r"Response \[(\d+)\]", "the answer was {0}"),
        ("", r"(peer access is not supported)", "{0} between these GPUs: --disable-custom-all-reduce goes round it"),
        ("child-died", r"(unhandled system error)", "NCCL says {0} and no cause: run with NCCL_DEBUG=INFO and look at /dev/shm first"),
        ("degraded", r"new_token_ratio: ([\d.]+) -> ([\d.]+)", "requests were retracted, the new-token ratio went from {0} to {1}"),
    )
)  # fmt: skip


SIGNALS = {
    2: "SIGINT, somebody asked it to end", 3: "SIGQUIT, sent by SGLang when another process failed",
    4: "SIGILL", 6: "SIGABRT, a native check failed", 7: "SIGBUS, often a full /dev/shm", 8: "SIGFPE",
    9: "SIGKILL, by the OOM killer or by somebody: see the kernel log",
    11: "SIGSEGV, a native crash", 15: "SIGTERM, somebody asked it to end",
}  # fmt: skip
_EXIT_CODE = re.compile(
    r"(?:exit(?:ed)?(?: with)?(?: ?code)?|code=\w+, status)\W?[:= ]+(-?\d+)(?!\d)",
    re.IGNORECASE,
)

XIDS = {
    13: "a kernel accessed memory wrongly", 31: "MMU fault: a kernel accessed memory wrongly",
    43: "the application's channel was stopped after its own fault", 45: "clean-up after an earlier error or a kill",
    48: "double-bit ECC error", 61: "internal microcontroller", 62: "internal microcontroller", 63: "row remapping recorded",
    64: "row remapping failed", 74: "NVLink error", 79: "the GPU fell off the bus", 92: "high single-bit ECC rate",
    94: "contained ECC error", 95: "uncontained ECC error", 119: "the GSP does not answer", 120: "the GSP failed",
    137: "NVLink fault", 140: "unrecovered ECC error", 143: "GPU initialisation error", 145: "NVLink error",
    149: "NVLink error", 154: "a recovery action is wanted",
}  # fmt: skip
"""NVIDIA's "Xid errors" page, 2025; only those that servers meet."""
_XID = re.compile(r"Xid.{0,60}?\): (\d+)|Xid.{0,40}: (\d+)")


def quote(category: str, text: str) -> list[str]:
    """Return the numbers that a message holds, as sentences."""
    found = []
    for prefix, pattern, words in QUOTES:
        if category.startswith(prefix) and (hit := pattern.search(text)) is not None:
            found.append(words.format(*hit.groups()))
    if category in ("child-died", "zombie-service", "detokenizer-died", "host-oom"):
        found += _exit_words(text)
    if category in ("gpu-fault", "selection-trap", "index-out-of-bounds", "illegal-access"):
        found += _xid_words(text)
    return found


def _exit_words(text: str) -> list[str]:
    hit = _EXIT_CODE.search(text)
    if hit is None:
        return []
    code = int(hit[1])
    number = (
        -code if code < 0 else code - 128 if 128 < code < 160 else code if "status" in hit[0] else 0
    )
    meaning = SIGNALS.get(number)
    return [f"exit code {code} ({meaning})" if meaning else f"exit code {code}"]


def _xid_words(text: str) -> list[str]:
    numbers = {int(hit[1] or hit[2]) for hit in _XID.finditer(text)}
    return [
        f"Xid {number}" + (f": {XIDS[number]}" if number in XIDS else "")
        for number in sorted(numbers)
    ]


def scattered(wanted: int, free: int, page_size: int) -> str:
    """Say why free tokens may not suffice when allocation is by page."""
    if wanted > free:
        return f"{wanted} tokens were wanted, {free} free"
    pages = -(-wanted // page_size)
    return (
        f"allocation is by pages of {page_size}: {wanted} tokens need {pages} pages for one request and up to "
        f"{wanted} pages when each goes to another; {free} free tokens are {free // page_size} pages"
    )
