"""Put a verdict into words: first record, sizes, explanation, next steps, the other ranks."""

from __future__ import annotations

import re

from opsctl.domain.crash.advice import ADVICE, known_steps, name_server, quote, scattered
from opsctl.domain.crash.collect import Collector
from opsctl.domain.crash.model import Context, Diagnosis, Evidence, FirstRecord, Launch, Sizes
from opsctl.domain.crash.rules import END, NOTICE, WAITING
from opsctl.domain.crash.run import Run
from opsctl.domain.crash.signature import make_signature
from opsctl.domain.crash.sizes import explain_sizes, read_sizes
from opsctl.domain.crash.trace import own_frames
from opsctl.records import dataclass

_TOKENS = re.compile(r"allocate (\d+) tokens.*?Ava\w+ tokens: (\d+)", re.DOTALL)


@dataclass(slots=True)
class Verdict:
    """What was decided, before it is put into words."""

    category: str | None
    confidence: float
    piece: Evidence | None = None
    text: str = ""
    reason: str = ""
    line: int | None = None


def describe(collector: Collector, run: Run, verdict: Verdict, context: Context) -> Diagnosis:
    piece = verdict.piece
    launch = Launch()
    launch.fill(context.launch)
    launch.fill(run.launch)
    for other in collector.runs:
        launch.fill(other.launch)
    launch.fill(context.recorded)
    frames = own_frames(piece.frames) if piece is not None else ()
    sizes = _sizes(verdict, piece, frames, launch, context)
    signature, words = (None, None)
    if verdict.category not in (None, "unknown") or piece is not None:
        signature, words = make_signature(verdict.category or "", verdict.text, frames)
    record = piece.record if piece is not None else None
    return Diagnosis(
        verdict.category, verdict.confidence, signature, _first_record(verdict), sizes,
        _explain(verdict, sizes, context, launch.page_size), _next(verdict, context),
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
    verdict: Verdict,
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


def _first_record(verdict: Verdict) -> str | None:
    piece = verdict.piece
    if piece is None:
        return verdict.text[:400] or None
    where = " ".join(part for part in (piece.record.time, piece.record.rank) if part)
    heading = piece.heading.split("Traceback (most recent")[0].strip(" :")
    words = f"{heading}: {piece.text}" if heading and heading not in piece.text else piece.text
    return (f"[{where}] {words}" if where else words)[:600]


def _pages(piece: Evidence, page_size: int) -> list[str]:
    found = _TOKENS.search("\n".join([piece.text, *piece.extra]))
    return [scattered(int(found[1]), int(found[2]), page_size)] if found is not None else []


def _explain(verdict: Verdict, sizes: Sizes | None, context: Context, page_size: int | None) -> str:
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
        parts.append(name_server(verdict.reason, context.server))
    piece = verdict.piece
    if piece is not None:
        parts += quote(verdict.category, "\n".join([piece.text, *piece.extra]))
        if piece.count > 1:
            parts.append(f"{piece.count} such lines")
    if piece is not None and verdict.category == "kv-pool-exhausted" and (page_size or 1) > 1:
        parts += _pages(piece, page_size or 1)
    if sizes is not None:
        parts += sizes.meanings
    elif context.level == 1 and verdict.category not in ("stream-ok", "degraded"):
        parts.append("it failed with one request in flight: load is not the cause")
    if verdict.category == "child-died":
        parts.append("cause not logged here")
    if context.patches:
        parts.append(f"patches in place: {', '.join(context.patches)}")
    return "; ".join(parts) or ADVICE["unknown"].meaning


def _next(verdict: Verdict, context: Context) -> tuple[str, ...]:
    if verdict.category is None:
        return ()
    # not by the log: an SGLang that fails to capture names the flag as advice
    graphs = not (context.launch.graphs_disabled or context.recorded.graphs_disabled)
    steps = known_steps(
        ADVICE[verdict.category].next,
        server=context.server,
        graphs=graphs,
        exact=context.exact,
        known_bad=context.way_out is not None,
    )
    if context.way_out is not None:
        steps = (name_server(context.way_out, context.server), *steps)
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
        if piece.weight >= NOTICE or run.forgives(piece):
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


def _also(collector: Collector, verdict: Verdict) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for run in collector.runs:
        for piece in sorted(run.evidence, key=lambda piece: piece.order):
            if piece.category not in (verdict.category, "unknown") and not run.forgives(piece):
                found[piece.category] = None
    return tuple(found)
