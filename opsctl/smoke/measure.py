"""From what a level recorded to its numbers. Pure: no clock, no network."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from opsctl.domain.report import LevelReport, Outcome, delivered, percentile, spread
from opsctl.records import dataclass
from opsctl.sglang.client import Ended, Exchange
from opsctl.sglang.stream import GOOD_FINISHES, Reply, decode
from opsctl.smoke.load import Job, RawLevel

# The client is the limit when its loop is late by this much, mean or 90th percentile.
LAG_MEAN_LIMIT_S = 0.025
LAG_P90_LIMIT_S = 0.100
LAG_SAMPLES = 8

BUSY = frozenset({408, 429, 503})  # SGLang tells a full queue inside a 200, too
CLIENT_ERRORS = frozenset({400, 413, 422})
CLIENT_KINDS = frozenset({"client-error", "client-limit"})


@dataclass(slots=True)
class Request:
    """The truth of one request."""

    key: str
    shape: str
    wanted_tokens: int
    sent_s: float
    end_s: float
    reply: Reply
    status: int
    failure: str | None  # None: it is good
    detail: str = ""
    counted: bool = True  # False: we cancelled it; says nothing

    @property
    def ok(self) -> bool:
        return self.failure is None

    @property
    def first_s(self) -> float | None:
        return self.reply.chunk_s[0] if self.reply.chunk_s else None

    def gaps(self) -> tuple[list[float], list[tuple[float, float]] | None]:
        """Return the gaps between chunks, and (time per token, tokens) of each, in seconds.

        The second is None where every chunk is one token, so that both are the same.
        """
        stamps, told = self.reply.chunk_s, self.reply.chunk_tokens
        between = [b - a for a, b in pairwise(stamps)]
        if told is not None and len(told) == len(stamps):
            if between and told[-1] - told[0] == len(between):
                return between, None  # counts grow, so each grew by one
            parts = [float(b - a) for a, b in pairwise(told)]
        elif self.reply.tokens is not None and between:
            if self.reply.tokens - 1 == len(between):
                return between, None
            # Only the total is known: chunks carry the mean number of tokens.
            parts = [(self.reply.tokens - 1) / len(between)] * len(between)
        else:
            return between, []
        return between, [
            (gap / part, part) for gap, part in zip(between, parts, strict=True) if part > 0
        ]


def read_request(exchange: Exchange, api: str) -> Request:
    """Decode one exchange and say whether the answer is whole; its text is judged elsewhere."""
    job: Job = exchange.tag
    reply = exchange.cached
    if reply is None:
        reply = decode(api, exchange.times, exchange.pieces, exchange.content_type)
    request = Request(
        job.prompt.key,
        job.prompt.shape,
        job.tokens,
        exchange.sent_s,
        exchange.end_s,
        reply,
        exchange.status,
        None,
    )
    request.failure, request.detail = _failure(exchange, job, reply)
    if exchange.ended is Ended.CANCELLED:
        request.counted = job.abort_after > 0
    return request


def _failure(exchange: Exchange, job: Job, reply: Reply) -> tuple[str | None, str]:
    ended = exchange.ended
    if ended is Ended.CANCELLED:
        return (None, "") if job.abort_after else ("cancelled", exchange.error)
    if exchange.status and exchange.status != 200:
        return _status_failure(exchange.status, reply, exchange)
    wire = {
        Ended.LOCAL: "client-limit",
        Ended.REFUSED: "refused",
        Ended.UNREACHABLE: "unreachable",
        Ended.PROTOCOL: "not-http",
        Ended.TLS: "tls",
        Ended.STALLED: "stalled",
    }
    if ended in wire:
        return wire[ended], exchange.error
    if reply.error is not None:
        kind = "stream-abort" if reply.finish == "abort" else "stream-error"
        if reply.error_status in BUSY:
            kind = "server-busy"
        elif reply.error_status in CLIENT_ERRORS:
            kind = "client-error"
        return kind, reply.error
    if reply.finish == "abort":
        return "stream-abort", "finish_reason abort"
    if ended is not Ended.COMPLETE:
        return "stream-cut", exchange.error
    return _content_failure(job, reply)


def _status_failure(status: int, reply: Reply, exchange: Exchange) -> tuple[str, str]:
    words = reply.error or exchange.body[:200].decode("utf-8", "replace").strip()
    detail = f"HTTP {status}" + (f": {words}" if words else "")
    if status in CLIENT_ERRORS:
        return "client-error", detail
    if status in (401, 403):
        return "wrong-key", detail
    if status in (404, 405):
        return "not-found", detail
    if status in BUSY:
        return "server-busy", detail
    return ("server-error" if status >= 500 else "bad-status"), detail


def _content_failure(job: Job, reply: Reply) -> tuple[str | None, str]:
    if reply.broken is not None:
        return "stream-broken", f"an event is no JSON: {reply.broken}"
    if reply.finish is None:
        if reply.done:
            return "no-finish", "the stream ended without a finish reason"
        return "stream-cut", "the stream ended without a finish reason and without [DONE]"
    if reply.finish not in GOOD_FINISHES:
        return "bad-finish", f"finish_reason {reply.finish}"
    if not reply.done and reply.tokens is None:
        return "stream-cut", "the stream ended without usage and without [DONE]"
    if reply.tokens == 0 or not (reply.text or reply.ids or reply.chunk_s):
        return "empty", "no token in the answer"
    if reply.ids is None and not reply.text:
        return "empty", f"{reply.tokens} tokens counted, and no text"
    if reply.tokens is not None and job.prompt.shape != "constrained":
        wrong = reply.tokens > job.tokens or (
            reply.finish == "length" and reply.tokens != job.tokens
        )
        if wrong:
            return "wrong-length", f"{reply.tokens} tokens, {job.tokens} wanted"
    return None, ""


def measure(raw: RawLevel, requests: Sequence[Request], slo: dict[str, float]) -> LevelReport:
    """Return the level's numbers, and its outcome as far as the wire and this client tell it."""
    counted = [request for request in requests if request.counted]
    good = [r for r in counted if r.ok and r.shape != "abort"]
    level = LevelReport(
        raw.concurrency,
        Outcome.PASSED,
        requests=len(counted),
        ok=sum(1 for r in counted if r.ok),
        failed=sum(1 for r in counted if not r.ok),
        seconds=max(0.0, raw.ended_s - raw.started_s),
        cancelled=raw.cancelled,
    )
    level.errors = dict(Counter(r.failure for r in counted if r.failure is not None))
    level.first_error = next(
        (f"{r.failure}: {r.detail}" for r in counted if r.failure is not None), None
    )
    level.in_flight = delivered([(r.sent_s, r.end_s) for r in counted], raw.concurrency)
    _take_times(level, good)
    _take_tokens(level, counted, good)
    level.goodput = goodput(counted, slo) if slo else None
    level.client = client_side(raw)
    level.timeline = _timeline(raw, requests)
    level.outcome, level.reason = _outcome(raw, level)
    return level


def _take_times(level: LevelReport, good: Iterable[Request]) -> None:
    ttft: list[float] = []
    gaps: list[float] = []
    per_token: list[float] = []
    tpot: list[float] = []
    e2e: list[float] = []
    single = True  # every chunk is one token: both spreads are the same
    for request in good:
        first = request.first_s
        if first is None:
            continue
        ttft.append((first - request.sent_s) * 1e3)
        e2e.append((request.end_s - request.sent_s) * 1e3)
        between, tokens = request.gaps()
        in_ms = [gap * 1e3 for gap in between]
        gaps += in_ms
        if tokens is None:
            per_token += in_ms
        else:
            single = False
            for seconds, count in tokens:
                per_token += [seconds * 1e3] * max(1, round(count))
        total = request.reply.tokens
        if total is not None and total > 1:
            last = request.reply.chunk_s[-1]
            tpot.append((last - first) / (total - 1) * 1e3)
    level.ttft_ms = spread(ttft)
    level.chunk_gap_ms = spread(gaps)
    level.itl_ms = level.chunk_gap_ms if single else spread(per_token)
    level.tpot_ms = spread(tpot)
    level.e2e_ms = spread(e2e)


def _take_tokens(level: LevelReport, counted: Sequence[Request], good: Sequence[Request]) -> None:
    if level.seconds > 0 and good:
        level.request_s = len(good) / level.seconds
    told = [r for r in good if r.reply.tokens is not None]
    if good and len(told) == len(good):
        level.tokens = sum(r.reply.tokens or 0 for r in told)
        if level.seconds > 0:
            level.output_tok_s = level.tokens / level.seconds
        level.steady_tok_s = _steady_rate(level, good)
        chunks = sum(len(r.reply.chunk_s) for r in told)
        level.tokens_per_chunk = level.tokens / chunks if chunks else None
    steps = [(r.reply.tokens, r.reply.verify_steps) for r in told if r.reply.verify_steps]
    if steps:
        level.accept_length = sum(t or 0 for t, _ in steps) / sum(s or 0 for _, s in steps)
    prompts = sum(r.reply.prompt_tokens or 0 for r in counted if r.reply.cached_tokens is not None)
    if prompts:
        level.cached_share = sum(r.reply.cached_tokens or 0 for r in counted) / prompts


def _steady_rate(level: LevelReport, good: Sequence[Request]) -> float | None:
    """Return tokens per second inside the steady part; each gap's tokens count at its chunk."""
    steady = level.in_flight
    if steady is None or steady.steady_s < 0.2 * level.seconds or steady.steady_s <= 0:
        return None
    total = 0.0
    for request in good:
        stamps, told = request.reply.chunk_s, request.reply.chunk_tokens
        tokens = request.reply.tokens or 0
        low = bisect_right(stamps, steady.steady_from_s)
        high = bisect_right(stamps, steady.steady_to_s)
        if low == high:
            continue
        if told is None or len(told) != len(stamps):
            total += tokens / len(stamps) * (high - low)
        else:
            total += told[high - 1] - (told[low - 1] if low else 0)
    return total / steady.steady_s


def goodput(counted: Sequence[Request], slo: dict[str, float]) -> float:
    """Return the share of requests that were good and within every limit of the SLO (ms)."""
    if not counted:
        return 0.0
    within = 0
    for request in counted:
        first = request.first_s
        if not request.ok or first is None:
            continue
        tokens = request.reply.tokens or 0
        measured = {
            "ttft_ms": (first - request.sent_s) * 1e3,
            "e2e_ms": (request.end_s - request.sent_s) * 1e3,
            "tpot_ms": (request.reply.chunk_s[-1] - first) / (tokens - 1) * 1e3
            if tokens > 1
            else 0.0,
        }
        measured["itl_ms"] = measured["tpot_ms"]
        within += all(measured[name] <= limit for name, limit in slo.items())
    return within / len(counted)


def client_side(raw: RawLevel) -> dict[str, Any]:
    """Return how late this client's own loop was, and how much of a core it took."""
    ordered = sorted(raw.lags_s)
    seconds = raw.ended_s - raw.started_s
    return {
        "lag_ms": {
            "mean": round(math.fsum(ordered) / len(ordered) * 1e3, 3),
            "p90": round(percentile(ordered, 0.90) * 1e3, 3),
            "max": round(ordered[-1] * 1e3, 3),
        }
        if ordered
        else None,
        "cpu_share": round(raw.cpu_s / seconds, 3) if seconds > 0 else None,
    }


def _outcome(raw: RawLevel, level: LevelReport) -> tuple[Outcome, str]:
    """Return the first verdict; a sign of death is confirmed by the caller."""
    if raw.local is not None:
        return Outcome.NOT_MEASURED, raw.local
    if raw.sign is not None:
        return (Outcome.HUNG if raw.sign.hung else Outcome.CRASHED), raw.sign.detail
    if raw.interrupted:
        return Outcome.NOT_MEASURED, "interrupted"
    if level.requests == 0:
        return Outcome.NOT_MEASURED, "no request was sent"
    if level.failed and set(level.errors) <= CLIENT_KINDS:
        return Outcome.NOT_MEASURED, f"the requests were wrong: {level.first_error}"
    if level.failed:
        return Outcome.FAILED, f"{level.failed} of {level.requests} requests: {level.first_error}"
    peak = level.in_flight.peak if level.in_flight else 0
    wanted = min(raw.concurrency, raw.jobs)
    if peak < wanted:
        return (
            Outcome.NOT_MEASURED,
            f"the client held at most {peak} of {wanted} requests in flight",
        )
    late = client_limit(raw.lags_s)
    if late is not None:
        return Outcome.NOT_MEASURED, late
    return Outcome.PASSED, ""


def client_limit(lags_s: Sequence[float]) -> str | None:
    """Return why the client was the limit, or None."""
    if len(lags_s) < LAG_SAMPLES:
        return None
    mean = math.fsum(lags_s) / len(lags_s)
    p90 = percentile(sorted(lags_s), 0.90)
    if mean <= LAG_MEAN_LIMIT_S and p90 <= LAG_P90_LIMIT_S:
        return None
    return (
        f"this client was late by {mean * 1e3:.0f} ms on average (p90 {p90 * 1e3:.0f} ms): "
        "its times would be wrong"
    )


def _timeline(raw: RawLevel, requests: Sequence[Request]) -> list[list[Any]]:
    def since(at: float | None) -> float | None:
        return None if at is None else round(at - raw.started_s, 4)

    return [
        [since(r.sent_s), since(r.first_s), since(r.end_s), r.reply.tokens, r.failure]
        for r in requests
    ]
