"""The numbers of a smoke run: spreads with confidence, levels, the whole report. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any

from opsctl.records import dataclass

Z95 = 1.96


class Outcome(StrEnum):
    """What one level came to."""

    PASSED = "passed"
    FAILED = "failed"
    CRASHED = "crashed"
    HUNG = "hung"
    NOT_MEASURED = "not-measured"

    @property
    def is_bad(self) -> bool:
        """True for what the server has to answer for."""
        return self in (Outcome.FAILED, Outcome.CRASHED, Outcome.HUNG)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` (0..1) of sorted values lie, interpolated.

    Raises:
        ValueError: when there is no value.
    """
    if not ordered:
        raise ValueError("no values")
    place = (len(ordered) - 1) * share
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def percentile_interval(ordered: Sequence[float], share: float) -> tuple[float, float] | None:
    """Return the 95 % interval of a percentile from order statistics; None: too few values.

    Source: normal approximation of the binomial rank, free of assumptions on the distribution.
    """
    n = len(ordered)
    spread = Z95 * math.sqrt(n * share * (1 - share))
    low = math.floor(n * share - spread)
    high = math.ceil(n * share + spread)
    if low < 0 or high >= n:
        return None
    return ordered[low], ordered[high]


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles of one quantity, in its own unit."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    low: float
    high: float
    mean_interval: tuple[float, float] | None = None
    p50_interval: tuple[float, float] | None = None
    p99_interval: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the contract's shape, with the confidence intervals beside it."""
        return {
            "mean": round(self.mean, 3),
            "p50": round(self.p50, 3),
            "p90": round(self.p90, 3),
            "p99": round(self.p99, 3),
            "min": round(self.low, 3),
            "max": round(self.high, 3),
            "count": self.count,
            "ci95": {
                "mean": _rounded(self.mean_interval),
                "p50": _rounded(self.p50_interval),
                "p99": _rounded(self.p99_interval),
            },
        }


def _rounded(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else [round(value, 3) for value in interval]


def spread(values: Sequence[float]) -> Spread | None:
    """Return the spread of values; None when there is none."""
    if not values:
        return None
    ordered = sorted(values)
    n = len(ordered)
    mean = math.fsum(ordered) / n
    interval = None
    if n > 1:
        deviation = math.sqrt(math.fsum([(v - mean) ** 2 for v in ordered]) / (n - 1))
        margin = Z95 * deviation / math.sqrt(n)
        interval = (mean - margin, mean + margin)
    return Spread(
        n,
        mean,
        percentile(ordered, 0.50),
        percentile(ordered, 0.90),
        percentile(ordered, 0.99),
        ordered[0],
        ordered[-1],
        interval,
        percentile_interval(ordered, 0.50),
        percentile_interval(ordered, 0.99),
    )


@dataclass(frozen=True, slots=True)
class InFlight:
    """How much of the claimed concurrency was delivered."""

    peak: int
    mean: float  # over the steady part
    steady_s: float
    steady_from_s: float
    steady_to_s: float


def delivered(spans: Sequence[tuple[float, float]], concurrency: int) -> InFlight:
    """Return what ``spans`` (sent, ended) held in flight, and the longest time near the claim.

    The steady part is the longest span in which at least 95 % of the claimed requests ran; gaps
    below 2 % of the whole level are bridged, because a slot needs a moment between two requests.
    """
    if not spans:
        return InFlight(0, 0.0, 0.0, 0.0, 0.0)
    edges = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    need = math.ceil(concurrency * 0.95)
    bridge = 0.02 * (edges[-1][0] - edges[0][0])
    peak = now = 0
    full: list[list[float]] = []
    since: float | None = None
    for at, step in edges:
        now += step
        peak = max(peak, now)
        if now >= need and since is None:
            since = at
        elif now < need and since is not None:
            if full and since - full[-1][1] <= bridge:
                full[-1][1] = at
            else:
                full.append([since, at])
            since = None
    best = max(full, key=lambda part: part[1] - part[0], default=[edges[0][0], edges[-1][0]])
    start, end = best
    if end <= start:
        return InFlight(peak, float(peak), 0.0, start, end)
    busy = math.fsum(max(0.0, min(b, end) - max(a, start)) for a, b in spans)
    return InFlight(peak, busy / (end - start), end - start, start, end)


@dataclass(slots=True)
class LevelReport:
    """One level, measured and judged."""

    concurrency: int
    outcome: Outcome
    reason: str = ""
    phase: str = "up"  # up, down, mixed, bisect
    profile: str = "quick"
    requests: int = 0
    ok: int = 0
    failed: int = 0
    seconds: float = 0.0
    tokens: int | None = None
    output_tok_s: float | None = None
    steady_tok_s: float | None = None
    request_s: float | None = None  # requests per second
    in_flight: InFlight | None = None
    ttft_ms: Spread | None = None
    itl_ms: Spread | None = None  # per token
    chunk_gap_ms: Spread | None = None  # between chunks
    tpot_ms: Spread | None = None  # (end - first) / (tokens - 1) of each request
    e2e_ms: Spread | None = None
    tokens_per_chunk: float | None = None
    accept_length: float | None = None
    accept_ratio: float | None = None  # against the first level
    cached_share: float | None = None
    goodput: float | None = None  # share of requests within the SLO
    errors: dict[str, int] = field(default_factory=dict)  # kind -> requests
    first_error: str | None = None
    answers: dict[str, Any] | None = None
    client: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)  # /metrics before, after, change
    sign: dict[str, Any] | None = None
    cancelled: int = 0
    timeline: list[list[Any]] = field(default_factory=list)  # sent, first, end (s), tokens, ok

    def to_dict(self, *, timeline: bool = False) -> dict[str, Any]:
        """Return the level as data; the timeline only where it is stored."""
        body: dict[str, Any] = {
            "concurrency": self.concurrency,
            "outcome": self.outcome.value,
            "reason": self.reason,
            "phase": self.phase,
            "profile": self.profile,
            "requests": self.requests,
            "ok": self.ok,
            "failed": self.failed,
            "cancelled": self.cancelled,
            "seconds": round(self.seconds, 3),
            "tokens": self.tokens,
            "output_tok_s": _maybe(self.output_tok_s),
            "steady_tok_s": _maybe(self.steady_tok_s),
            "requests_s": _maybe(self.request_s),
            "loop": "closed",
            "in_flight": _in_flight(self.in_flight),
        }
        for name in ("ttft_ms", "itl_ms", "chunk_gap_ms", "tpot_ms", "e2e_ms"):
            value: Spread | None = getattr(self, name)
            body[name] = None if value is None else value.to_dict()
        body |= {
            "tokens_per_chunk": _maybe(self.tokens_per_chunk),
            "accept_length": _maybe(self.accept_length),
            "accept_ratio": _maybe(self.accept_ratio),
            "cached_share": _maybe(self.cached_share),
            "goodput": _maybe(self.goodput),
            "errors": self.errors,
            "first_error": self.first_error,
            "answers": self.answers,
            "client": self.client,
            "server": self.server,
            "sign": self.sign,
        }
        if timeline:
            body["timeline"] = self.timeline
        return body


def _maybe(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _in_flight(value: InFlight | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return {
        "peak": value.peak,
        "mean": round(value.mean, 2),
        "steady_s": round(value.steady_s, 3),
    }


def bracket_of(levels: Sequence[LevelReport]) -> dict[str, int | None] | None:
    """Return the last good and the first bad level of a way up; None when nothing was bad."""
    bad = sorted(level.concurrency for level in levels if level.outcome.is_bad)
    if not bad:
        return None
    good = [
        level.concurrency
        for level in levels
        if level.outcome is Outcome.PASSED and level.concurrency < bad[0]
    ]
    return {"last_good": max(good, default=None), "first_bad": bad[0]}
