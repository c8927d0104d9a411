"""Tracebacks inside a log: whose they are, where they stand, and what a plain error in them means."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import field

from opsctl.domain.crash.hints import Wording
from opsctl.domain.crash.model import Record
from opsctl.domain.crash.rules import CAUSE, END, WRAPPER, Rule
from opsctl.records import dataclass

TRACEBACK = "Traceback (most recent call last)"
_OWNERS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (owner, re.compile(pattern))
    for owner, pattern in (
        ("warmup", r"warm-?up error"),
        ("detokenizer", r"Detokenizer\w* hit an exception"),
        ("scheduler", r"Scheduler hit an exception|EngineCore (?:encountered|failed|hit)|Worker\w* (?:hit|failed)|WorkerProc hit an exception"),
        ("tokenizer", r"Tokenizer\w* hit an exception|DataParallelController hit an exception|hit an exception"),
        ("http", r"Exception in ASGI application|Exception in callback|Task exception was never retrieved|Error in (?:middleware|request)"),
    )
)  # fmt: skip
EXCEPTION = re.compile(
    r"(?:[A-Za-z_][\w]*\.)+[a-z]\w*(?:Error|Exception)\b(?:: .*|:?$)|(?:[A-Za-z_][\w]*\.)*(?:[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout|Expired|Refused|Fault|Failure|Group)|Exception|Empty|StopIteration|Killed\w+)\b(?:: .*|:?$)"
)
DOTTED = re.compile(r"(?:[a-z_]\w*\.)+[A-Z]\w*(?:: .*|:?$)")
"""An exception whose name does not say that it is one: triton.runtime.errors.OutOfResources."""
FRAME = re.compile(r'File "([^"]+)", (?:line \d+, )?(?:in )?(?:line \d+ in )?([\w<>.]+)')
STOPPING = re.compile(
    r"KeyboardInterrupt|SystemExit|CancelledError|BrokenPipe|ConnectionReset|EOFError|ZMQError"
)
DIGITS = re.compile(r"\d+")
_STARTING = frozenset(
    {"load_model", "load_weights", "init_memory_pool", "initialize", "capture", "capture_one_batch_size",
     "create_weights", "init_cuda_graphs", "init_device_graphs", "profile_max_num_token", "kernel_warmup",
     "process_weights_after_loading", "init_torch_distributed", "determine_available_memory", "profile_run",
     "initialize_kv_caches", "init_attention_backend", "_create_buffers", "make_layers", "get_model",
     "initialize_from_config", "_initialize_kv_caches", "load_model_and_tokenizer", "init_kv_cache"}
)  # fmt: skip
_SERVING = re.compile(
    r"^(?:event_loop\w*|run_batch|forward_batch_generation|forward_(?:decode|extend|idle)|process_batch_result|execute_model|step|generate|verify|draft|run_busy_loop)$"
)


@dataclass(slots=True)
class Trace:
    """A traceback that is being read."""

    owner: str | None
    heading: str
    record: Record
    frames: deque[str] = field(default_factory=lambda: deque(maxlen=40))
    mixed: bool = False
    closed: bool = False


def _rule(name: str, category: str, weight: int, confidence: float) -> Rule:
    return Rule(name, category, weight, Wording("$^"), confidence)


SCHEDULER = _rule("scheduler", "scheduler-exception", WRAPPER, 0.85)
CUT_OFF = _rule("peer-gone", "child-died", END, 0.7)
DETOKENIZER = _rule("detokenizer", "detokenizer-died", WRAPPER, 0.9)
TOKENIZER = _rule("tokenizer", "scheduler-exception", WRAPPER + 2, 0.6)
WARMUP = _rule("warmup", "warmup-failed", 36, 0.9)
OF_OWNER = {
    "scheduler": SCHEDULER, "detokenizer": DETOKENIZER, "tokenizer": TOKENIZER, "warmup": WARMUP,
}  # fmt: skip
REQUEST_ERROR = _rule("request-error", "unknown", 58, 0.4)
UNKNOWN_ERROR = _rule("unknown-error", "unknown", 56, 0.4)
_CORE_FRAMES = (
    "scheduler", "tp_worker", "model_runner", "schedule_batch", "engine.py", "tokenizer_manager", "core.py",
    "gpu_model_runner", "gpu_worker", "launch_server", "server_args", "detokenizer", "data_parallel",
    "radix_cache", "memory_pool", "model_config", "hf_transformers", "eagle", "loader", "weight_utils",
)  # fmt: skip


def weight(rule: Rule, category: str) -> int:
    if rule.category == "files" and category == "server-limit":
        return CAUSE
    if category == "graph-capture":
        return WRAPPER
    return rule.weight


def frame_name(path: str, function: str) -> str:
    module = path.rsplit("/", 1)[-1]
    if module == "__init__.py":
        module = "/".join(path.rsplit("/", 2)[-2:])
    return f"{module}:{function}"


def with_time(record: Record, time_s: float | None) -> Record:
    return Record(
        record.body,
        record.line,
        record.kind,
        record.time,
        time_s,
        record.rank,
        record.source,
        record.client,
    )


def with_rank(record: Record, owner: Record) -> Record:
    return Record(
        record.body, record.line, record.kind, record.time or owner.time, record.time_s, owner.rank,
        record.source, record.client,
    )  # fmt: skip


def own_frames(frames: tuple[str, ...]) -> tuple[str, ...]:
    """Return the frames that are not of torch or of Python itself, innermost last."""
    foreign = (
        "_contextlib.py",
        "module.py:",
        "_ops.py",
        "threading.py",
        "runner.py",
        "functools.py",
        "_ops",
        "process.py",
        "<frozen",
        "runpy.py",
        "jit.py",
        "_tensor.py",
        "core.py:wrapper",
    )
    return tuple(frame for frame in frames if not frame.startswith(foreign))  # fmt: skip


def owner_of(text: str) -> str | None:
    """Return whose traceback a heading begins."""
    return next((name for name, pattern in _OWNERS if pattern.search(text)), None)


def plain_rule(owner: str | None, trace: Trace | None, matched: Rule | None) -> Rule:
    """Return the rule for an exception that no wording speaks for (or only as a lost peer)."""
    if matched is not None:
        return CUT_OFF if owner == "scheduler" else matched
    if owner in OF_OWNER:
        return OF_OWNER[owner]
    if trace is not None and any(frame.startswith(_CORE_FRAMES) for frame in trace.frames):
        return TOKENIZER
    return UNKNOWN_ERROR


def oom_category(trace: Trace | None, *, serving: bool, starting: bool, answered: bool) -> str:
    """Say whether a CUDA allocation failed at start or under load, by the stack, then by the log so far."""
    names = [frame.rsplit(":", 1)[-1] for frame in trace.frames] if trace is not None else []
    if any(name.startswith("event_loop") for name in names):
        return "cuda-oom-runtime"
    if any(name in _STARTING for name in names):
        return "cuda-oom-startup"
    if serving or any(_SERVING.match(name) for name in names):
        return "cuda-oom-runtime"
    if starting:
        return "cuda-oom-startup"
    if answered or (trace is not None and trace.owner == "scheduler"):
        return "cuda-oom-runtime"
    return "cuda-oom-startup"


def files_category(record: Record, trace: Trace | None) -> str:
    """Say whose files ran out: the server's has a stamp or its own code in the stack."""
    frames = trace.frames if trace is not None else ()
    if record.client or any("client" in frame or "bench" in frame for frame in frames):
        return "client-limit"
    own = ("base_events", "server.py", "selector_events", "http_server")
    is_server = record.time is not None or any(frame.startswith(own) for frame in frames)
    return "server-limit" if is_server else "client-limit"
