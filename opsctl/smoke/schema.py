"""The JSON Schema of what `opsctl smoke --json` prints: a promise to programs that read it."""

from __future__ import annotations

from typing import Any

from opsctl.domain.report import Outcome

NUMBER = {"type": ["number", "null"]}
COUNT = {"type": "integer", "minimum": 0}
TEXT = {"type": "string"}
INTERVAL = {
    "type": ["array", "null"],
    "items": {"type": "number"},
    "minItems": 2,
    "maxItems": 2,
}


def _object(properties: dict[str, Any], required: list[str], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, **more}


SPREAD = _object(
    {name: {"type": "number"} for name in ("mean", "p50", "p90", "p99", "min", "max")}
    | {
        "count": COUNT,
        "ci95": _object(dict.fromkeys(("mean", "p50", "p99"), INTERVAL), ["mean", "p50", "p99"]),
    },
    ["mean", "p50", "p90", "p99"],
    description="In milliseconds. ci95: 95 % intervals, null where there are too few values.",
)
MAYBE_SPREAD = {"anyOf": [{"$ref": "#/$defs/spread"}, {"type": "null"}]}

LEVEL = _object(
    {
        "concurrency": {"type": "integer", "minimum": 1},
        "outcome": {"enum": [outcome.value for outcome in Outcome]},
        "reason": TEXT,
        "phase": {"enum": ["warm-up", "up", "mixed", "down"]},
        "profile": {"enum": ["quick", "full"]},
        "requests": COUNT,
        "ok": COUNT,
        "failed": COUNT,
        "cancelled": COUNT | {"description": "Streams that opsctl closed; not among requests."},
        "seconds": {"type": "number"},
        "tokens": {"type": ["integer", "null"], "description": "From usage or meta_info alone."},
        "output_tok_s": NUMBER | {"description": "Output tokens over the whole level's time."},
        "steady_tok_s": NUMBER | {"description": "The same inside the longest span at full load."},
        "requests_s": NUMBER,
        "loop": {"const": "closed"},
        "in_flight": {"type": ["object", "null"]},
        "ttft_ms": MAYBE_SPREAD,
        "itl_ms": MAYBE_SPREAD | {"description": "Time per token."},
        "chunk_gap_ms": MAYBE_SPREAD | {"description": "Time between chunks of a stream."},
        "tpot_ms": MAYBE_SPREAD
        | {"description": "(last - first chunk) / (tokens - 1), a request."},
        "e2e_ms": MAYBE_SPREAD,
        "tokens_per_chunk": NUMBER,
        "accept_length": NUMBER,
        "accept_ratio": NUMBER | {"description": "Acceptance length against the first level's."},
        "cached_share": NUMBER | {"description": "Prompt tokens that the prefix cache served."},
        "goodput": NUMBER | {"description": "Share of requests within --slo."},
        "errors": {"type": "object", "additionalProperties": COUNT},
        "first_error": {"type": ["string", "null"]},
        "answers": {"type": ["object", "null"]},
        "client": {"type": "object"},
        "server": {"type": "object"},
        "sign": {"type": ["object", "null"], "description": "First sign of a crash or a hang."},
    },
    ["concurrency", "outcome", "requests", "ok", "failed", "output_tok_s", "ttft_ms", "itl_ms"],
)

DATA = _object(
    {
        "url": TEXT,
        "api": {"enum": ["generate", "chat", "completions"]},
        "server": {"type": "object"},
        "profile": {"enum": ["quick", "full"]},
        "seed": {"type": "integer"},
        "load": {"type": "object", "description": "Who sent: here, tunnel, or the server's host."},
        "wanted_levels": {"type": "array", "items": {"type": "integer"}},
        "levels": {"type": "array", "items": {"$ref": "#/$defs/level"}},
        "down": {"type": "array", "items": {"$ref": "#/$defs/level"}},
        "mixed": {"anyOf": [{"$ref": "#/$defs/level"}, {"type": "null"}]},
        "bracket": {
            "anyOf": [
                _object(
                    {
                        "last_good": {"type": ["integer", "null"]},
                        "first_bad": {"type": "integer"},
                    },
                    ["last_good", "first_bad"],
                ),
                {"type": "null"},
            ]
        },
        "bisection": {"type": ["object", "null"]},
        "diagnosis": {"type": ["object", "null"]},
        "evidence": {"type": "object"},
        "interrupted": {"type": "boolean"},
        "seconds": {"type": "number"},
        "warmup_s": NUMBER,
    },
    ["levels", "bracket", "diagnosis"],
)
