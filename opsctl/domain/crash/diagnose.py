"""Decide from the evidence of a log what went wrong first."""

from __future__ import annotations

from collections.abc import Iterable

from opsctl.domain.crash.captures import match_capture, outside
from opsctl.domain.crash.collect import Collector
from opsctl.domain.crash.describe import Verdict, describe
from opsctl.domain.crash.model import (
    Context,
    Diagnosis,
    Evidence,
    Record,
)
from opsctl.domain.crash.rules import END, MACHINE, NOTICE
from opsctl.domain.crash.run import DEATHS, Run

_SMALL_LINES = 400
"""A log up to this long is also judged as a whole, as a capture."""


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
    return describe(collector, run, verdict, context)


def _choose_run(collector: Collector) -> Run:
    """The first life of the server that ended badly: later failures are often its symptoms."""
    machine = [piece for run in collector.runs for piece in run.evidence if piece.weight == MACHINE]
    for run in collector.runs:
        if any(piece.weight < NOTICE and not run.forgives(piece) for piece in run.evidence):
            run.evidence += [piece for piece in machine if piece not in run.evidence]
            return run
    for run in collector.runs:
        if run.evidence:
            return run
    return max(collector.runs, key=lambda run: (run.activity.decode_lines, run.stages))


def _decide(collector: Collector, run: Run, context: Context) -> Verdict:
    pieces = [piece for piece in run.evidence if not run.forgives(piece)]
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
            return Verdict(category, confidence, None, reason, reason, collector.stream.first_line)
    if (captured := _from_capture(collector, run)) is not None:
        return captured
    if best is not None and best.weight < NOTICE:
        return _from_evidence(best, pieces, run, context)
    if context.hung:
        return Verdict("silent-hang", 0.8, reason="the caller saw requests without a token")
    if (slow := _slow(run)) is not None and (best is None or best.category != "degraded"):
        return slow
    if best is not None:
        return _from_evidence(best, pieces, run, context)
    return _quiet(collector, run)


def _outside(collector: Collector, run: Run, best: Evidence | None) -> Verdict | None:
    """Output of another tool, in a short text without a server's own lines."""
    if collector.lines > _SMALL_LINES or run.activity.serves or run.stages or run.traces:
        return None
    if best is not None and best.record.rank is not None:
        return None
    found = outside("\n".join(collector.sample))
    if found is None:
        return None
    return Verdict("unknown", found.confidence, reason=found.why)


def _from_capture(collector: Collector, run: Run) -> Verdict | None:
    if collector.lines > _SMALL_LINES:
        return None
    found = match_capture("\n".join(collector.sample))
    if found is None:
        return None
    capture, line = found
    if (run.ready or run.activity.decode_lines) and capture.category != "zombie-service":
        return None  # a server's log: its lines are no listing
    return Verdict(capture.category, capture.confidence, None, line, capture.why)


def _from_evidence(best: Evidence, pieces: list[Evidence], run: Run, context: Context) -> Verdict:
    category = best.category
    confidence = best.confidence
    reason = ""
    earlier = {piece.category for piece in pieces if piece.order <= best.order}
    if best.rule == "watchdog" and _was_soft(pieces, run):
        category, confidence = "degraded", 0.75
        reason = "a soft watchdog saw a step that took too long; the server went on"
    elif best.rule == "probe-mismatch" and "health-timeout" in earlier:
        category = "health-timeout"
        reason = "the sizes are those of probes that timed out and kept running"
    elif category in ("illegal-access", "scheduler-exception") and not best.ready:
        if any(piece.category == "graph-capture" for piece in pieces):
            category = "graph-capture"
            reason = f"the inner error is: {best.text[:160]}"
    elif best.weight >= END and best.rule in DEATHS and _answers_after_death(run, best, context):
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
    return Verdict(category, round(confidence, 2), best, best.text, reason)


def _was_soft(pieces: list[Evidence], run: Run) -> bool:
    """True when only soft watchdogs barked, which end nothing, and batches followed."""
    told = [piece for piece in pieces if piece.rule == "watchdog"]
    soft = any("self.soft=True" in piece.text for piece in told)
    hard = any("self.soft=False" in piece.text for piece in told)
    return soft and not hard and all(run.alive_after > piece.record.line for piece in told)


def _answers_after_death(run: Run, best: Evidence, context: Context) -> bool:
    if context.port_alive is not None:
        return context.port_alive
    needed = 1 if best.rule == "segfault" else 5
    return run.after_death.answers_ok >= needed and run.after_death.decode_lines == 0


def _slow(run: Run) -> Verdict | None:
    """Decode without graphs, although graphs were captured: the batch is above the largest one."""
    activity, launch = run.activity, run.launch
    without, seen = activity.decode_without_graph, activity.decode_lines
    if not without or launch.graphs_disabled or without < 0.2 * seen:
        return None
    top = max(launch.graph_sizes, default=None)
    share = f"{without} of {seen} decode lines ran without a CUDA graph"
    if top is None:
        return Verdict("degraded", 0.5, reason=share, text="cuda graph: False")
    if activity.max_running_without_graph <= top:
        return Verdict(
            "degraded",
            0.5,
            reason=f"{share}, although graphs reach {top}",
            text="cuda graph: False",
        )
    limit = launch.max_running_requests
    words = f"{share}: batches reach {activity.max_running_without_graph}, the largest captured graph is {top}"
    if limit is not None and limit > top:
        words += f", --max-running-requests {limit} allows it"
    return Verdict("degraded", 0.85, reason=words, text="cuda graph: False")


def _quiet(collector: Collector, run: Run) -> Verdict:
    """No evidence at all: healthy, stuck in the start, or nothing to judge."""
    if run.open_stage is not None and not run.stopped and not run.ready and not run.activity.serves:
        name, record = run.open_stage
        reason = f"the log ends inside the step {name}, without an error"
        return Verdict("startup-hang", 0.6, None, record.body, reason, record.line)
    if run.activity.serves or run.ready or run.opened or run.stages or run.stopped:
        words = "stopped on purpose" if run.stopped else "nothing abnormal"
        return Verdict(None, 0.9 if run.ready or run.activity.serves else 0.7, reason=words)
    if collector.lines == 0:
        return Verdict("unknown", 0.0, reason="the log is empty")
    return Verdict("unknown", 0.3, reason="no line of a server's log and no known error was found")
