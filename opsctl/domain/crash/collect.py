"""Collect the evidence of a log, record by record, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from opsctl.domain.crash.launch import read_launch, read_stage
from opsctl.domain.crash.model import Evidence, Kind, Record
from opsctl.domain.crash.rules import (
    BENIGN,
    CAUSE,
    END,
    GUESSES,
    NOTICE,
    RULES,
    WANTED_STOP,
    WRAPPER,
    Rule,
)
from opsctl.domain.crash.run import Run
from opsctl.domain.crash.streams import StreamJudge
from opsctl.domain.crash.trace import (
    DIGITS,
    DOTTED,
    EXCEPTION,
    FRAME,
    OF_OWNER,
    REQUEST_ERROR,
    STOPPING,
    TRACEBACK,
    Trace,
    files_category,
    frame_name,
    oom_category,
    owner_of,
    plain_rule,
    weight,
    with_rank,
    with_time,
)

_LABELLED = re.compile(r"[a-z][\w ]{0,30}: ")  # "requests: 140 ok": somebody's note, whole
_REQUESTS = ("Receive: obj=", "Finish: obj=", "Received request ")
MAX_MATCHED = 1200
"""The rules look at so many characters of a record: what went wrong stands in front."""
MAX_KNOWN = 5_000
MAX_EVIDENCE = 300
"""More distinct evidence than this is a flood; the first pieces decide."""


def whole(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records without a first line that a rotation has torn: what it quotes may be anybody's words."""
    first: Record | None = None
    for record in records:
        if record.line == 1 and _may_be_torn(record):
            first = record
            continue
        if first is not None and record.time is None and record.kind is not Kind.ACTIVITY:
            yield first  # nothing here has stamps
        first = None
        yield record
    if first is not None:
        yield first


def _may_be_torn(record: Record) -> bool:
    body = record.body
    if record.kind is not Kind.TEXT or record.client or record.source is not None:
        return False
    if record.time is not None or record.rank is not None or _LABELLED.match(body) is not None:
        return False
    begins_inside = body[:1].islower() or body[:1] in "'\"),.;:]}="
    return bool(body) and begins_inside and EXCEPTION.match(body) is None


class Collector:
    """Turns records into evidence, one life of the server after the other."""

    def __init__(self) -> None:
        self.runs: list[Run] = [Run()]
        self.stream = StreamJudge()
        self.sample: list[str] = []
        self.lines = 0
        self._traces: dict[str | None, Trace] = {}
        self._current: Trace | None = None
        self._last: Evidence | None = None
        self._seen: dict[tuple[str, str | None, str], Evidence] = {}
        self._known: dict[str, Rule | None] = {}
        self._time_s: float | None = None
        self._heading: str | None = None  # "Exception in ASGI application", before its traceback

    @property
    def run(self) -> Run:
        return self.runs[-1]

    def collect(self, records: Iterable[Record]) -> None:
        """Read all records."""
        for record in whole(records):
            self.feed(record)
        for trace in self._traces.values():
            if not trace.closed and trace.owner in OF_OWNER:
                self._unfinished(trace)

    def feed(self, record: Record) -> None:
        """Take one record."""
        if record.kind is Kind.REPEAT:
            self._repeat(record)
            return
        self.lines = record.line
        if record.kind is Kind.ACTIVITY:
            self._active(record)
            return
        if len(self.sample) < 500:
            self.sample.append(record.body)
        if record.time_s is not None:
            self._time_s = record.time_s
        if record.kind is Kind.STREAM:
            self.stream.feed(record.body, record.line)
            return
        if record.kind in (Kind.LAUNCH, Kind.STAGE):
            self._stage(record)
            return
        read_launch(record.body, self.run.launch)
        self.stream.status_line(record.body, record.line)
        self._text(record)

    def _repeat(self, record: Record) -> None:
        for run in self.runs:
            for piece in run.evidence:
                if piece.record.line == record.line:
                    piece.count += record.count
                    return

    def _active(self, record: Record) -> None:
        activity = record.activity
        assert activity is not None
        run = self.run
        run.activity.add(activity)
        if activity.serves:
            run.served_after = record.line
        if activity.decode_lines or activity.prefill_lines:
            run.open_stage = None
            run.alive_after = record.line
        if any(piece.weight >= END and piece.weight < NOTICE for piece in run.evidence):
            run.after_death.add(activity)

    def _stage(self, record: Record) -> None:
        stage = read_stage(record.body) or ""
        if stage == "launch":
            if self.run.began and not self.run.is_prelude:
                self.runs.append(Run())
                self._traces.clear()
                self._current = None
                self._seen.clear()
            read_launch(record.body, self.run.launch)
            return
        run = self.run
        read_launch(record.body, run.launch)
        run.stages += 1
        if stage == "ready":
            run.ready, run.open_stage, run.alive_after = True, None, record.line
        elif stage == "open":
            run.opened = True
        elif stage.startswith("begin "):
            run.open_stage = (stage[6:], record)
        elif run.open_stage is not None and run.open_stage[0] == stage[4:]:
            run.open_stage = None

    # --- text

    def _text(self, record: Record) -> None:
        body = record.body
        text = body.strip(" |+")[:MAX_MATCHED]
        if not text:
            return
        if TRACEBACK in body or " hit an exception" in body:
            self._open_trace(record, text)
            return
        if body.startswith(("Current thread 0x", "Thread 0x")):
            owner = "native" if body.startswith("Current") else "other thread"
            self._current = Trace(owner, text, record)
        if 'File "' in text and (frame := FRAME.search(text)) is not None:
            self._frame(frame_name(frame[1], frame[2]))
            return
        trace = self._trace_of(record)
        indented = body[:1] in " \t|"
        is_exception = EXCEPTION.match(text) is not None
        if not is_exception and trace is not None and not trace.closed:
            is_exception = body[:1] not in " \t|" and DOTTED.match(text) is not None
        if indented and trace is not None and not trace.closed and not is_exception:
            return  # a line of source code inside a traceback
        if is_exception:
            self._exception(record, text, trace)
            return
        self._line(record, text, trace)

    def _frame(self, name: str) -> None:
        trace = self._current
        if trace is None:
            return
        if (
            trace.owner == "native"
        ):  # a faulthandler dump: newest first, after the line that tells of it
            last = self._last
            if last is not None and last.rule == "segfault" and len(last.frames) < 20:
                last.frames = (name, *last.frames)
        elif trace.owner != "other thread":
            trace.frames.append(name)

    def _trace_of(self, record: Record) -> Trace | None:
        key = record.rank or record.source
        if key is not None and key in self._traces:
            return self._traces[key]
        return self._current

    def _open_trace(self, record: Record, text: str) -> None:
        key = record.rank or record.source
        owner = owner_of(text)
        if owner is None and self._heading is not None:
            owner = "http"
        previous = self._current
        chained = previous is not None and owner is None and not record.rank
        if chained and previous is not None:
            owner = previous.owner  # "During handling of the above exception ..."
        trace = Trace(owner, text if owner else "", record)
        if chained and previous is not None:
            trace.heading = previous.heading
            if owner is not None:  # it is the same process that speaks
                trace.record = with_rank(record, previous.record)
        if previous is not None and not previous.closed and previous.record.rank != record.rank:
            trace.mixed = previous.mixed = True
        self._heading = None
        if len(self._traces) < 256:
            self._traces[key] = trace
        self._current = trace
        self.run.traces += 1

    def _exception(self, record: Record, text: str, trace: Trace | None) -> None:
        if trace is not None and trace.closed and not record.rank and not record.source:
            trace = trace if record.line - trace.record.line < 60 else None
        open_trace = trace if trace is not None and not trace.closed else None
        if "KeyboardInterrupt" in text[:40]:
            self.run.stop()
        owner = trace.owner if trace is not None else None
        if open_trace is not None:
            open_trace.closed = True
        if STOPPING.match(text.rsplit(".", 1)[-1]) and (self.run.stopped or owner == "http"):
            return
        if open_trace is None and BENIGN.search(text):
            return
        rule = self._match(text)
        if rule is None or rule.name == "peer-gone":
            rule = plain_rule(owner, open_trace, rule)
        if owner == "http" and rule.weight >= WRAPPER:
            rule = REQUEST_ERROR
        if owner == "warmup" and rule.weight >= WRAPPER:
            rule = OF_OWNER["warmup"]
        self._add(rule, record, text, trace)

    def _line(self, record: Record, text: str, trace: Trace | None) -> None:
        if self._heading is None and "Exception in ASGI" in text:
            self._heading = text
            return
        if WANTED_STOP.found(text, text.lower()) and self.run.stop():
            return
        rule = self._match(text)
        if rule is None:
            self._append_extra(text)
            return
        inside = trace is not None and not trace.closed and record.line - trace.record.line < 400
        self._add(rule, record, text, trace if inside else None)

    def _append_extra(self, text: str) -> None:
        if self._last is not None and len(self._last.extra) < 8:
            self._last.extra.append(text[:300])

    def _match(self, text: str) -> Rule | None:
        skeleton = DIGITS.sub("0", text[:400])
        if skeleton in self._known:
            return self._known[skeleton]
        if text.startswith(_REQUESTS):
            return None  # a prompt may say anything
        if (guess := GUESSES.search(text)) is not None and guess.start() > 0:
            text = text[: guess.start()]
        lower = text.lower()
        rule = next((rule for rule in RULES if rule.wording.found(text, lower)), None)
        if rule is not None and "leak detected" not in text and BENIGN.search(text):
            rule = None
        if len(self._known) < MAX_KNOWN:
            self._known[skeleton] = rule
        return rule

    def _add(self, rule: Rule, record: Record, text: str, trace: Trace | None) -> None:
        run = self.run
        if run.stopped and (rule.weight >= 36 or "45, pid" in text):
            return
        if rule.weight == CAUSE and text.startswith("Possible solutions"):
            return
        if record.rank is None and trace is not None and trace.record.rank is not None:
            record = with_rank(record, trace.record)
        key = (rule.name, record.rank, DIGITS.sub("0", text[:400])[:160])
        known = self._seen.get(key)
        if known is not None:
            known.count += 1
            return
        if len(run.evidence) >= MAX_EVIDENCE:
            return
        category = self._category(rule, record, trace)
        frames = tuple(trace.frames) if trace is not None else ()
        if record.time_s is None:
            record = with_time(record, self._time_s)
        piece = Evidence(
            rule.name, category, weight(rule, category), record, text[:1500], frames,
            trace.owner if trace else None, trace.heading if trace else "",
            trace.mixed if trace else False, run.ready or run.activity.decode_lines > 0,
            confidence=rule.confidence,
        )  # fmt: skip
        self._seen[key] = piece
        run.evidence.append(piece)
        self._last = piece

    def _unfinished(self, trace: Trace) -> None:
        rule = OF_OWNER[trace.owner or ""]
        if not any(
            piece.owner == trace.owner and piece.record.line > trace.record.line
            for piece in self.run.evidence
        ):
            self._add(rule, trace.record, trace.heading, trace)  # fmt: skip

    def _category(self, rule: Rule, record: Record, trace: Trace | None) -> str:
        run = self.run
        if rule.category == "cuda-oom":
            return oom_category(
                trace,
                serving=run.ready or bool(run.activity.decode_lines or run.activity.prefill_lines),
                starting=bool(run.stages) or run.open_stage is not None,
                answered=bool(run.activity.answers_ok),
            )
        if rule.category == "files":
            return files_category(record, trace)
        if rule.name == "illegal" and "apture" in record.body and "graph" in record.body.lower():
            return "graph-capture"
        return rule.category
