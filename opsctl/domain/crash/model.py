"""What a diagnosis is made of: records of a log, facts of the launch, evidence and the verdict."""

from __future__ import annotations

from dataclasses import asdict, field
from enum import StrEnum
from typing import Any

from opsctl.records import dataclass


class Kind(StrEnum):
    """What one record is, before anybody judges it."""

    TEXT = "text"  # a line that may mean something
    ACTIVITY = "activity"  # a run of routine lines, counted
    LAUNCH = "launch"  # the server begins: its arguments follow from here
    STAGE = "stage"  # a step of the start-up began or ended
    STREAM = "stream"  # one line of an HTTP answer or of a server-sent event stream
    REPEAT = "repeat"  # the record of this line came ``count`` times more


@dataclass(slots=True)
class Activity:
    """Routine lines between two records, counted instead of kept."""

    decode_lines: int = 0
    decode_with_graph: int = 0
    decode_without_graph: int = 0
    prefill_lines: int = 0
    answers_ok: int = 0  # 2xx in the access log
    answers_failed: int = 0  # 5xx in the access log
    last_batch: bytes | None = None  # as it stands in the log
    max_running: int = 0
    max_running_without_graph: int = 0
    lines: int = 0

    def add(self, other: Activity) -> None:
        """Count the lines of a later stretch in."""
        self.decode_lines += other.decode_lines
        self.decode_with_graph += other.decode_with_graph
        self.decode_without_graph += other.decode_without_graph
        self.prefill_lines += other.prefill_lines
        self.answers_ok += other.answers_ok
        self.answers_failed += other.answers_failed
        self.lines += other.lines
        self.last_batch = other.last_batch or self.last_batch
        self.max_running = max(self.max_running, other.max_running)
        self.max_running_without_graph = max(
            self.max_running_without_graph, other.max_running_without_graph
        )

    @property
    def serves(self) -> bool:
        """True when the server did work for somebody in this stretch."""
        return bool(self.decode_lines or self.prefill_lines or self.answers_ok)


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a log without the prefixes of whoever carried it (journal, container, SGLang).

    ``source`` names the writer where a prefix does ("journal pid 4242", "rank1"), so that the lines of
    several processes that share one file can be told apart.
    """

    body: str
    line: int  # from 1
    kind: Kind = Kind.TEXT
    time: str | None = None
    time_s: float | None = None  # comparable inside one log only
    rank: str | None = None  # "TP0", "DP3 TP3"; None for the main process
    source: str | None = None
    client: bool = False  # a note of the load client, not of the server
    activity: Activity | None = None
    count: int = 0  # of REPEAT


@dataclass(slots=True)
class Launch:
    """Facts of one launch, from its log or given by the caller. None: not known."""

    draft_tokens: int | None = None
    draft_steps: int | None = None
    topk: int | None = None
    tp: int | None = None
    context_length: int | None = None
    max_running_requests: int | None = None
    graph_sizes: tuple[int, ...] = ()
    graphs_disabled: bool | None = None
    threshold: int | None = None  # speculation is off above this many requests
    page_size: int | None = None
    mem_fraction: float | None = None

    def fill(self, other: Launch) -> None:
        """Take over what ``other`` knows and this one does not."""
        for name in self.__slots__:
            if getattr(self, name) in (None, ()):
                setattr(self, name, getattr(other, name))


@dataclass(slots=True)
class Context:
    """What the caller knows beyond the log; every field may stay unknown.

    Args:
        level: concurrency at which it failed.
        launch: facts of the launch; they win over what the log says.
        patches: ids of the source patches that were in place.
        hung: True when the caller saw requests without a token past its time limit.
        port_alive: whether the port still answered after the crash; None: not known.
        server: its name in the site, for the next steps; None: not known.
        recorded: what was recorded of the launch, for what neither ``launch`` nor the log says.
        exact: the level just below the first bad one passed: there is nothing to bisect.
        way_out: what to do about a known-bad patch in place; None: there is none.
    """

    level: int | None = None
    launch: Launch = field(default_factory=Launch)
    patches: tuple[str, ...] = ()
    hung: bool = False
    port_alive: bool | None = None
    server: str | None = None
    recorded: Launch = field(default_factory=Launch)
    exact: bool = False
    way_out: str | None = None


@dataclass(slots=True)
class Evidence:
    """One thing that the log says, as a rule understood it."""

    rule: str
    category: str
    weight: int  # lower decides first
    record: Record
    text: str  # the line that matched, cut
    frames: tuple[str, ...] = ()  # innermost last, "module.py:function"
    owner: str | None = None  # scheduler, detokenizer, tokenizer, warmup, ...
    heading: str = ""  # "Scheduler hit an exception: Traceback (most recent call last):"
    mixed: bool = False  # several ranks wrote into each other here
    ready: bool = False  # the server had served before this
    count: int = 1
    confidence: float = 0.9
    extra: list[str] = field(
        default_factory=list
    )  # a few lines that follow: numbers, other processes

    @property
    def order(self) -> tuple[float, int]:
        """Sort key inside one weight: time where the log has it, else the position."""
        return (self.record.time_s or 0.0, self.record.line)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Two sizes that disagree, and what they are made of."""

    wording: str
    a: int | None
    b: int | None
    shapes: tuple[tuple[int, ...], ...] = ()
    kind: str = "unexplained"
    meanings: tuple[str, ...] = ()
    requests: int | None = None
    draft_tokens: int | None = None
    is_load: bool | None = None  # None: cannot be told


@dataclass(frozen=True, slots=True)
class FirstRecord:
    """The first abnormal record of one rank."""

    rank: str | None
    time: str | None
    line: int
    text: str
    category: str
    repeated: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict on one log. ``category`` None: nothing abnormal was found in a server's log."""

    category: str | None
    confidence: float
    signature: str | None
    first_record: str | None
    sizes: Sizes | None
    explanation: str
    next: tuple[str, ...]
    line: int | None = None
    rank: str | None = None
    time: str | None = None
    noticed_in: str | None = None  # innermost frame of the server's own code
    normalised: str | None = None  # what the signature is made of
    ranks: tuple[FirstRecord, ...] = ()
    also: tuple[str, ...] = ()  # further categories in the same log, in order
    last_batch: str | None = None
    launch: Launch = field(default_factory=Launch)

    @property
    def severity(self) -> str:
        """``fault``, ``notice`` (works, or not the server's fault), ``healthy`` or ``unknown``."""
        if self.category is None:
            return "healthy"
        if self.category == "unknown":
            return "unknown"
        return "notice" if self.category in NOTICES else "fault"

    def as_data(self) -> dict[str, Any]:
        """Return the fields of the output contract, and what goes beyond it, as plain data."""
        launch = {
            name: value for name, value in asdict(self.launch).items() if value not in (None, ())
        }
        return {
            "category": self.category,
            "confidence": self.confidence,
            "signature": self.signature,
            "first_record": self.first_record,
            "sizes": asdict(self.sizes) if self.sizes is not None else None,
            "explanation": self.explanation,
            "next": list(self.next),
            "severity": self.severity,
            "line": self.line,
            "rank": self.rank,
            "time": self.time,
            "noticed_in": self.noticed_in,
            "normalised": self.normalised,
            "ranks": [asdict(first) for first in self.ranks],
            "also": list(self.also),
            "last_batch": self.last_batch,
            "launch": launch,
        }


NOTICES = frozenset(
    {"degraded", "stream-ok", "client-error", "client-limit", "telemetry-only", "nvml-reserved"}
)
"""Categories in which the server works, or in which somebody else is at fault."""
