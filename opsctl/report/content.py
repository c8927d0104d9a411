"""What the page is made of: runs, with their details and smoke results where those are shown; plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from opsctl.domain.runs import RunDetail, RunRow
from opsctl.records import dataclass

Smoke = Mapping[str, Any]
TREND = 40  # runs of a server in its row of marks


@dataclass(frozen=True, slots=True)
class Run:
    """One run; ``detail`` None: only its row is shown."""

    row: RunRow
    detail: RunDetail | None = None
    smoke: Smoke | None = None

    @property
    def document(self) -> Mapping[str, Any]:
        return (self.detail.document if self.detail else None) or {}

    @property
    def data(self) -> Mapping[str, Any]:
        return self.document.get("data") or {}

    @property
    def diagnosis(self) -> Mapping[str, Any]:
        return self.data.get("diagnosis") or (self.smoke or {}).get("diagnosis") or {}


@dataclass(frozen=True, slots=True)
class Server:
    """One server over the runs that are shown, newest first."""

    name: str
    runs: tuple[Run, ...]

    @property
    def last_proven(self) -> Run | None:
        """The newest run that launched or measured it and passed."""
        proving = ("restart", "launch", "smoke", "restart-hung")
        return next(
            (r for r in self.runs if r.row.exit_code == 0 and r.row.playbook in proving), None
        )

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(kind_of(run.row) for run in self.runs)

    def smokes(self, limit: int) -> list[Run]:
        """Return the newest runs with a curve."""
        return [run for run in self.runs if run.smoke and run.smoke.get("levels")][:limit]


@dataclass(frozen=True, slots=True)
class Group:
    """All runs that ended with one signature, newest first."""

    signature: str
    runs: tuple[Run, ...]

    @property
    def explanation(self) -> str:
        found = (run.diagnosis.get("explanation") for run in self.runs)
        return next((str(text) for text in found if text), "")


@dataclass(frozen=True, slots=True)
class Content:
    """Everything on the page. ``total``: how many runs the ledger has for this question."""

    runs: tuple[Run, ...]
    total: int
    detailed: int
    source: str
    at_s: float
    question: str = ""  # the filter, in words
    servers: tuple[Server, ...] = field(default=())
    groups: tuple[Group, ...] = field(default=())


def kind_of(row: RunRow) -> str:
    """Return good, bad, unsure or open: the colour of a run."""
    if row.exit_code is None:
        return "open"
    if row.exit_code == 0:
        return "good"
    return "bad" if row.exit_code in (20, 60, 70) else "unsure"


def make_content(
    runs: Sequence[Run], *, total: int, source: str, at_s: float, question: str
) -> Content:
    """Group runs (newest first) by server and by signature."""
    by_server: dict[str, list[Run]] = {}
    by_signature: dict[str, list[Run]] = {}
    for run in runs:
        by_server.setdefault(run.row.server, []).append(run)
        if run.row.signature:
            by_signature.setdefault(run.row.signature, []).append(run)
    return Content(
        tuple(runs),
        total,
        sum(run.detail is not None for run in runs),
        source,
        at_s,
        question,
        tuple(Server(name, tuple(found)) for name, found in by_server.items()),
        tuple(
            Group(signature, tuple(found))
            for signature, found in sorted(by_signature.items(), key=lambda item: -len(item[1]))
        ),
    )


def smoke_of(detail: RunDetail) -> Smoke | None:
    """Return the smoke inside a run's document: of a smoke, or of a playbook's step."""
    data = (detail.document or {}).get("data") or {}
    for part in (data.get("smoke"), data):
        if isinstance(part, Mapping) and isinstance(part.get("levels"), list):
            levels = [level for level in part["levels"] if isinstance(level, Mapping)]
            if levels and "outcome" in levels[0]:
                return part
    return None
