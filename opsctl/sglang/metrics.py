"""SGLang's (and vLLM's) /metrics, as the few numbers that explain a smoke level. Pure."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any, TypeGuard

LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+(\S+)")

# our name -> names in the exposition, first found wins; how ranks are joined
GAUGES: dict[str, tuple[tuple[str, ...], str]] = {
    "running": (("sglang:num_running_reqs", "vllm:num_requests_running"), "sum"),
    "queue": (("sglang:num_queue_reqs", "vllm:num_requests_waiting"), "sum"),
    "token_usage": (
        ("sglang:token_usage", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "max",
    ),
    "accept_length": (("sglang:spec_accept_length",), "max"),
    "retractions": (
        (
            "sglang:num_retracted_requests_total",
            "sglang:num_retracted_reqs_total",
            "sglang:num_retracted_reqs",
            "vllm:num_preemptions_total",
        ),
        "sum",
    ),
    "generation_tokens": (
        ("sglang:generation_tokens_total", "vllm:generation_tokens_total"),
        "sum",
    ),
}


def parse_metrics(text: str) -> dict[str, float]:
    """Return the numbers that the exposition holds; a name that is absent is absent here too."""
    seen: dict[str, list[float]] = {}
    wanted = {name for names, _ in GAUGES.values() for name in names}
    for line in text.splitlines():
        match = LINE.match(line)
        if match is None or match.group(1) not in wanted:
            continue
        try:
            value = float(match.group(2))
        except ValueError:
            continue
        if value == value:  # NaN says nothing
            seen.setdefault(match.group(1), []).append(value)
    found: dict[str, float] = {}
    for ours, (names, join) in GAUGES.items():
        for name in names:
            if name in seen:
                found[ours] = sum(seen[name]) if join == "sum" else max(seen[name])
                break
    return found


def running_of_loads(document: Any) -> int | None:
    """Return how many requests run or wait, by /v1/loads, /get_load or /server_info; None: not told."""
    if isinstance(document, list):
        parts = [running_of_loads(part) for part in document if isinstance(part, dict)]
        told = [part for part in parts if part is not None]
        return sum(told) if told else None
    if not isinstance(document, dict):
        return None
    for key in ("loads", "internal_states"):
        if isinstance(document.get(key), list):
            return running_of_loads(document[key])
    running = document.get("num_running_reqs", document.get("running"))
    waiting = document.get("num_waiting_reqs", document.get("num_queue_reqs", 0))
    if _is_number(running):
        return int(running) + (int(waiting) if _is_number(waiting) else 0)
    total = document.get("num_reqs", document.get("num_total_reqs"))
    return int(total) if _is_number(total) else None


def _is_number(value: Any) -> TypeGuard[int | float]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and isfinite(value)
