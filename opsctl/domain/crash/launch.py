"""Facts of a launch and the steps of a start, read from the lines that SGLang and vLLM print."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from opsctl.domain.crash.hints import Wording
from opsctl.domain.crash.model import Launch

_LAUNCH = Wording(
    r"server_args=|ServerArgs\(|non-default args:"
    r"|^(?:[+$#] ?)?(?:exec |nohup |env )?(?:\S+=\S* )*(?:\S*/)?(?:python\S*|sglang|vllm) (?:.* )?(?:sglang\.launch_server|serve) .*--"
)
_READY = Wording(r"fired up and ready to roll|Server is ready|ready to roll")
_OPEN = Wording(r"Uvicorn running on|Application startup complete")
_STEPS: tuple[tuple[str, Wording, Wording], ...] = tuple(
    (name, Wording(begin), Wording(end))
    for name, begin, end in (
        ("distributed", r"Init torch distributed begin|Initializing distributed|ncclCommInitRank", r"Init torch distributed end|Init COMPLETE"),
        ("weights", r"Load weight begin|Loading (?:model )?weights|Starting to load model|Loading safetensors checkpoint shards: +(?!100)\d+%", r"Load weight end|Loading (?:model )?weights took|Model loading took|checkpoint shards: 100%"),
        ("kv-cache", r"Memory pool begin", r"KV Cache is allocated|Memory pool end|GPU KV cache size|max_total_num_tokens=\d+, chunked"),
        ("graph", r"Capture (?:[\w-]+ )*(?:cuda|CUDA) graph begin|Capturing (?:batches|CUDA graph)", r"Capture (?:[\w-]+ )*(?:cuda|CUDA) graph end|Graph capturing finished"),
        ("jit", r"Loading JIT ops|JIT (?:ops|kernel)\S* (?:build|compil\w+)|(?:Compiling|Building) (?:kernel|extension|module|JIT)|DeepGEMM .{0,30}(?:[Cc]ompil|warm)|Triton .{0,20}autotun|Autotuning|torch\.compile (?:begin|start)", r"Finished loading JIT ops|JIT .{0,40}(?:done|finished|complete)|(?:[Cc]ompil|[Ww]arm)\w* .{0,40}(?:done|finished|complete|took)|DeepGEMM .{0,30}(?:done|finished|complete)"),
        ("warm-up", r"(?:Start|Begin|Running|Sending) .{0,20}warm-?up", r"[Ww]arm-?up .{0,20}(?:done|finished|end|complete|success)"),
    )
)  # fmt: skip


def read_stage(body: str) -> str | None:
    """Return what a line says of the start: ``launch``, ``open``, ``ready``, ``begin STEP``, ``end STEP``, or None."""
    body = body[:400]
    lower = body.lower()
    if _READY.found(body, lower):
        return "ready"
    if _OPEN.found(body, lower):
        return "open"
    if _LAUNCH.found(body, lower) and "  <-" not in body and "Killed" not in body:
        return "launch"
    for name, begin, end in _STEPS:
        if end.found(body, lower):
            return f"end {name}"
        if begin.found(body, lower):
            return f"begin {name}"
    return None


def _integer(text: str) -> int | None:
    return int(text) if text.isdigit() else None


_NUMBERS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("draft_tokens", r"speculative[-_]num[-_]draft[-_]tokens['\"]?(?:=|: ?| )(\d+)"),
        ("draft_steps", r"speculative[-_]num[-_]steps['\"]?(?:=|: ?| )(\d+)"),
        ("topk", r"speculative[-_]eagle[-_]topk['\"]?(?:=|: ?| )(\d+)"),
        ("tp", r"(?:(?<![\w-])tp[-_]size|--tp|tensor[-_]parallel[-_]size)['\"]?(?:=|: ?| )(\d+)"),
        ("context_length", r"(?:(?<!draft_)context[-_]len(?:gth)?|max[-_]model[-_]len|max_seq_len)['\"]?(?:=|: ?| )(\d+)"),
        ("max_running_requests", r"max[-_]running[-_]requests['\"]?(?:=|: ?| )(\d+)"),
        ("page_size", r"(?<!\w)(?:--)?page[-_]size['\"]?(?:=|: ?| )(\d+)"),
        ("threshold", r"(?:\[dynspec\].*?threshold|disable[-_]above|spec\w*_threshold|OPSCTL_NAIVE_V1)['\"]?(?:=|: ?| )(\d+)"),
    )
)  # fmt: skip
_FRACTION = re.compile(r"mem[-_]fraction[-_]static['\"]?(?:=|: ?| )(0?\.\d+)")
_GRAPHS = re.compile(r"(?:\bbs|graph_bs|Capture cuda graph bs)['\"]?(?:=|: ?| )\[([\d, ]+)\]")
_GRAPH_WORDS = re.compile(r"[Gg]raph")
_GRAPH_MAX = re.compile(r"cuda[-_]graph[-_]max[-_]bs(?:[-_]decode)?['\"]?(?:=|: ?| )(\d+)")
_GRAPHS_OFF = re.compile(
    r"disable_cuda_graph=True|--disable-cuda-graph\b(?!-)|device='cpu'|--device cpu"
)
_WORTH = re.compile(
    r"speculative|tp|tensor.parallel|context.len|model.len|max.running|page.size|threshold|disable.above|[Gg]raph|OPSCTL|mem.fraction|device"
)


def read_launch(body: str, facts: Launch) -> None:
    """Take the facts of one line into ``facts``; a later line wins, because the server chose it."""
    if _WORTH.search(body) is None:
        return
    for name, pattern in _NUMBERS:
        if (found := pattern.search(body)) is not None and (
            value := _integer(found[1])
        ) is not None:
            setattr(facts, name, value)
    if (found := _FRACTION.search(body)) is not None:
        facts.mem_fraction = float(found[1])
    if _GRAPHS_OFF.search(body):
        facts.graphs_disabled = True
    if _GRAPH_WORDS.search(body) and (found := _GRAPHS.search(body)) is not None:
        sizes = {int(part) for part in re.findall(r"\d+", found[1])}
        facts.graph_sizes = tuple(sorted(sizes | set(facts.graph_sizes)))
    elif not facts.graph_sizes and (found := _GRAPH_MAX.search(body)) is not None:
        facts.graph_sizes = (int(found[1]),)


def launch_of(arguments: Sequence[str]) -> Launch:
    """Return the facts that the recorded arguments of a launch say."""
    facts = Launch()
    read_launch(" ".join(arguments), facts)
    facts.graph_sizes = ()  # the largest alone: the log knows them all
    return facts


def launch_from(values: dict[str, Any]) -> Launch:
    """Return launch facts from a mapping (a ledger's record); unknown names are left out."""
    known = {name: values[name] for name in Launch.__slots__ if values.get(name) is not None}
    if "graph_sizes" in known:
        known["graph_sizes"] = tuple(known["graph_sizes"])
    return Launch(**known)
