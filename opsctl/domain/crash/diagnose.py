"""Decide from the evidence of a log what went wrong first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from opsctl.domain.crash.advice import ADVICE, quote
from opsctl.domain.crash.captures import match_capture, outside
from opsctl.domain.crash.collect import Collector, Run
from opsctl.domain.crash.model import (
    Context,
    Diagnosis,
    Evidence,
    FirstRecord,
    Launch,
    Record,
    Sizes,
)
from opsctl.domain.crash.rules import CAUSE, END, MACHINE, NOTICE, WAITING, WRAPPER
from opsctl.domain.crash.signature import make_signature
from opsctl.domain.crash.sizes import explain_sizes, read_sizes
from opsctl.domain.crash.trace import own_frames

_SMALL_LINES = 400
"""A log up to this long is also judged as a whole, as a capture."""
_OUR_PROCESS = re.compile(
    r"python|sglang|schedul|detoken|vllm|VLLM|ray|pt_main|uvicorn|gunicorn|launch|engine",
    re.IGNORECASE,
)
_VICTIM = re.compile(r"Killed? process \d+ \(([^)]*)\)|task=([\w:.-]+)|process \d+, ?name=(\S+)")
_WEAK = frozenset({"peer-gone", "stream-cut", "unknown-error", "killed", "request-error"})
_HARD = frozenset(
    {"device-assert", "illegal", "kv-leak", "detokenizer", "xid-software", "shm-exists"}
)
_DEATHS = frozenset({"segfault", "sigquit", "killed"})
_ASYNC = frozenset({"illegal-access", "index-out-of-bounds", "gpu-fault"})


@dataclass(slots=True)
class _Verdict:
    category: str | None
    confidence: float
    piece: Evidence | None = None
    text: str = ""
    reason: str = ""
    line: int | None = None


def diagnose(records: Iterable[Record], context: Context | None = None) -> Diagnosis:
    """Return the verdict on a log.

    Args:
        records: of one log, or of several put one after the other.
        context: what the caller knows beyond the log.

    Returns:
        The diagnosis; its category is None when a server's log shows nothing abnormal, ``unknown`` when
        there is nothing to judge or no rule knows it.
    """
    context = context or Context()
    collector = Collector()
    collector.collect(records)
    run = _choose_run(collector)
    verdict = _decide(collector, run, context)
    return _describe(collector, run, verdict, context)


def _choose_run(collector: Collector) -> Run:
    """The first life of the server that ended badly: later failures are often its symptoms."""
    machine = [piece for run in collector.runs for piece in run.evidence if piece.weight == MACHINE]
    for run in collector.runs:
        if any(piece.weight < NOTICE and not _forgiven(piece, run) for piece in run.evidence):
            run.evidence += [piece for piece in machine if piece not in run.evidence]
            return run
    for run in collector.runs:
        if run.evidence:
            return run
    return max(collector.runs, key=lambda run: (run.activity.decode_lines, run.stages))


def _forgiven(piece: Evidence, run: Run) -> bool:
    """True for something that happened once and that the server outlived."""
    if piece.rule == "oom-killer":
        return _stranger(piece) and not _died(run)
    if (
        piece.rule == "peer-gone"
        and piece.owner is None
        and not (run.stages or run.activity.serves)
    ):
        return piece.record.time is None  # a client's or a tool's line: nothing of a server is here
    if (
        piece.weight in (CAUSE, WRAPPER)
        and piece.owner in (None, "http")
        and piece.rule not in _HARD
    ):
        return run.alive_after > piece.record.line  # a warning or one request's error: it went on
    if piece.rule in _WEAK:
        return run.served_after > piece.record.line and piece.owner != "scheduler"
    return False


def _stranger(piece: Evidence) -> bool:
    found = _VICTIM.search(piece.text)
    name = next((group for group in found.groups() if group), None) if found else None
    return name is not None and _OUR_PROCESS.search(name) is None


def _died(run: Run) -> bool:
    return any(piece.rule in _DEATHS or piece.owner == "scheduler" for piece in run.evidence)


def _decide(collector: Collector, run: Run, context: Context) -> _Verdict:
    pieces = [piece for piece in run.evidence if not _forgiven(piece, run)]
    pieces.sort(key=lambda piece: (piece.weight, *piece.order))
    best = pieces[0] if pieces else None
    if (other := _outside(collector, run, best)) is not None:
        return other
    if best is not None and best.weight < 43 and best.rule != "gsp-timeout":
        return _from_evidence(best, pieces, run, context)
    stream = collector.stream.verdict()
    if stream is not None and (best is None or best.weight >= 43):
        category, confidence, reason = stream
        if category != "stream-ok" or best is None or best.weight >= NOTICE:
            return _Verdict(category, confidence, None, reason, reason, collector.stream.first_line)
    if (captured := _from_capture(collector, run)) is not None:
        return captured
    if best is not None and best.weight < NOTICE:
        return _from_evidence(best, pieces, run, context)
    if context.hung:
        return _Verdict("silent-hang", 0.8, reason="the caller saw requests without a token")
    if (slow := _slow(run)) is not None and (best is None or best.category != "degraded"):
        return slow
    if best is not None:
        return _from_evidence(best, pieces, run, context)
    return _quiet(collector, run)


def _outside(collector: Collector, run: Run, best: Evidence | None) -> _Verdict | None:
    """Output of another tool, in a short text without a server's own lines."""
    if collector.lines > _SMALL_LINES or run.activity.serves or run.stages or run.traces:
        return None
    if best is not None and best.record.rank is not None:
        return None
    found = outside("\n".join(collector.sample))
    if found is None:
        return None
    return _Verdict("unknown", found.confidence, reason=found.why)


def _from_capture(collector: Collector, run: Run) -> _Verdict | None:
    if collector.lines > _SMALL_LINES:
        return None
    found = match_capture("\n".join(collector.sample))
    if found is None:
        return None
    capture, line = found
    if (run.ready or run.activity.decode_lines) and capture.category != "zombie-service":
        return None  # a server's log: its lines are no listing
    return _Verdict(capture.category, capture.confidence, None, line, capture.why)


def _from_evidence(best: Evidence, pieces: list[Evidence], run: Run, context: Context) -> _Verdict:
    category = best.category
    confidence = best.confidence
    reason = ""
    earlier = {piece.category for piece in pieces if piece.order <= best.order}
    if best.rule == "probe-mismatch" and "health-timeout" in earlier:
        category = "health-timeout"
        reason = "the sizes are those of probes that timed out and kept running"
    elif category in ("illegal-access", "scheduler-exception") and not best.ready:
        if any(piece.category == "graph-capture" for piece in pieces):
            category = "graph-capture"
            reason = f"the inner error is: {best.text[:160]}"
    elif best.weight >= END and best.rule in _DEATHS and _answers_after_death(run, best, context):
        category = "zombie-service"
        reason = "the port went on answering after the workers had died"
    if best.mixed:
        confidence *= 0.85
        reason = (
            reason or "lines of several ranks are mixed here, so the stack may be another rank's"
        )
    causes = {piece.category for piece in pieces if piece.weight == best.weight}
    if len(causes) > 1:
        confidence *= 0.92
    return _Verdict(category, round(confidence, 2), best, best.text, reason)


def _answers_after_death(run: Run, best: Evidence, context: Context) -> bool:
    if context.port_alive:
        return True
    needed = 1 if best.rule == "segfault" else 5
    return run.after_death.answers_ok >= needed and run.after_death.decode_lines == 0


def _slow(run: Run) -> _Verdict | None:
    """Decode without graphs, although graphs were captured: the batch is above the largest one."""
    activity, launch = run.activity, run.launch
    without, seen = activity.decode_without_graph, activity.decode_lines
    if not without or launch.graphs_disabled or without < 0.2 * seen:
        return None
    top = max(launch.graph_sizes, default=None)
    share = f"{without} of {seen} decode lines ran without a CUDA graph"
    if top is None:
        return _Verdict("degraded", 0.5, reason=share, text="cuda graph: False")
    if activity.max_running_without_graph <= top:
        return _Verdict(
            "degraded",
            0.5,
            reason=f"{share}, although graphs reach {top}",
            text="cuda graph: False",
        )
    limit = launch.max_running_requests
    words = f"{share}: batches reach {activity.max_running_without_graph}, the largest captured graph is {top}"
    if limit is not None and limit > top:
        words += f", --max-running-requests {limit} allows it"
    return _Verdict("degraded", 0.85, reason=words, text="cuda graph: False")


def _quiet(collector: Collector, run: Run) -> _Verdict:
    """No evidence at all: healthy, stuck in the start, or nothing to judge."""
    if run.open_stage is not None and not run.stopped and not run.ready and not run.activity.serves:
        name, record = run.open_stage
        reason = f"the log ends inside the step {name}, without an error"
        return _Verdict("startup-hang", 0.6, None, record.body, reason, record.line)
    if run.activity.serves or run.ready or run.opened or run.stages or run.stopped:
        words = "stopped on purpose" if run.stopped else "nothing abnormal"
        return _Verdict(None, 0.9 if run.ready or run.activity.serves else 0.7, reason=words)
    if collector.lines == 0:
        return _Verdict("unknown", 0.0, reason="the log is empty")
    return _Verdict("unknown", 0.3, reason="no line of a server's log and no known error was found")


# --- words


def _describe(collector: Collector, run: Run, verdict: _Verdict, context: Context) -> Diagnosis:
    piece = verdict.piece
    launch = Launch()
    launch.fill(context.launch)
    launch.fill(run.launch)
    for other in collector.runs:
        launch.fill(other.launch)
    frames = own_frames(piece.frames) if piece is not None else ()
    sizes = _sizes(verdict, piece, frames, launch, context)
    signature, words = (None, None)
    if verdict.category not in (None, "unknown") or piece is not None:
        signature, words = make_signature(verdict.category or "", verdict.text, frames)
    record = piece.record if piece is not None else None
    return Diagnosis(
        verdict.category, verdict.confidence, signature, _first_record(verdict), sizes,
        _explain(verdict, sizes, context), _next(verdict, context),
        line=record.line if record else verdict.line,
        rank=record.rank if record else None,
        time=record.time if record else None,
        noticed_in=frames[-1] if frames else None,
        normalised=words,
        ranks=_first_of_ranks(run),
        also=_also(collector, verdict),
        last_batch=_text(run.activity.last_batch),
        launch=launch,
    )  # fmt: skip


def _text(line: bytes | None) -> str | None:
    return line.decode(errors="replace") if line is not None else None


def _sizes(
    verdict: _Verdict,
    piece: Evidence | None,
    frames: tuple[str, ...],
    launch: Launch,
    context: Context,
) -> Sizes | None:
    if piece is None or verdict.category not in (
        "shape-mismatch",
        "health-timeout",
        "graph-capture",
    ):
        return None
    found = read_sizes(piece.text)
    if found is None:
        found = next((sizes for line in piece.extra if (sizes := read_sizes(line))), None)
    if found is None:
        return None
    return explain_sizes(found, launch, frames=frames, level=context.level)


def _first_record(verdict: _Verdict) -> str | None:
    piece = verdict.piece
    if piece is None:
        return verdict.text[:400] or None
    where = " ".join(part for part in (piece.record.time, piece.record.rank) if part)
    heading = piece.heading.split("Traceback (most recent")[0].strip(" :")
    words = f"{heading}: {piece.text}" if heading and heading not in piece.text else piece.text
    return (f"[{where}] {words}" if where else words)[:600]


def _explain(verdict: _Verdict, sizes: Sizes | None, context: Context) -> str:
    if verdict.category is None:
        return (
            f"nothing abnormal in this log ({verdict.reason})"
            if verdict.reason
            else "nothing abnormal"
        )
    parts = [ADVICE[verdict.category].meaning]
    if verdict.category == "unknown":
        parts = []
    if verdict.reason:
        parts.append(verdict.reason)
    piece = verdict.piece
    if piece is not None:
        parts += quote(verdict.category, "\n".join([piece.text, *piece.extra]))
        if piece.count > 1:
            parts.append(f"{piece.count} such lines")
    if sizes is not None:
        parts += sizes.meanings
    elif context.level == 1 and verdict.category not in ("stream-ok", "degraded"):
        parts.append("it failed with one request in flight: load is not the cause")
    if verdict.category == "child-died":
        parts.append("cause not logged here")
    if context.patches:
        parts.append(f"patches in place: {', '.join(context.patches)}")
    return "; ".join(parts) or ADVICE["unknown"].meaning


def _next(verdict: _Verdict, context: Context) -> tuple[str, ...]:
    if verdict.category is None:
        return ()
    steps = ADVICE[verdict.category].next
    if context.patches and verdict.category in (
        "shape-mismatch",
        "scheduler-exception",
        "illegal-access",
    ):
        return (f"run the same level without {', '.join(context.patches)}", *steps)
    return steps


def _first_of_ranks(run: Run) -> tuple[FirstRecord, ...]:
    """The first abnormal record of every rank; ends of crashes only where nothing else was said."""
    best: dict[str | None, Evidence] = {}
    for piece in run.evidence:
        if piece.weight >= NOTICE or _forgiven(piece, run):
            continue
        known = best.get(piece.record.rank)
        if known is None or _rank_key(piece) < _rank_key(known):
            best[piece.record.rank] = piece
    chosen = sorted(best.values(), key=lambda piece: piece.order)
    return tuple(
        FirstRecord(
            piece.record.rank,
            piece.record.time,
            piece.record.line,
            piece.text[:300],
            piece.category,
            piece.count,
        )
        for piece in chosen[:64]
    )


def _rank_key(piece: Evidence) -> tuple[int, float, int]:
    band = 0 if piece.weight < WAITING else 1 if piece.weight < END else 2
    return (band, *piece.order)


def _also(collector: Collector, verdict: _Verdict) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for run in collector.runs:
        for piece in sorted(run.evidence, key=lambda piece: piece.order):
            if piece.category not in (verdict.category, "unknown") and not _forgiven(piece, run):
                found[piece.category] = None
    return tuple(found)
