"""Runs as the ledger knows them, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run, as lists show it. ``outcome`` None: still open, or cut."""

    id: str
    server: str
    playbook: str
    started_s: float
    ended_s: float | None
    outcome: str | None
    exit_code: int | None
    reason: str | None
    who: str
    fingerprint: str | None
    signature: str | None


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of a run. ``outcome`` None: it began, and its end was never recorded."""

    position: int
    turn: int
    name: str
    effect: str
    started_s: float
    ended_s: float | None
    outcome: str | None
    changed: bool | None
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NoteRow:
    """One fact that a step wrote down while it ran."""

    at_s: float
    code: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunDetail:
    """Everything about one run."""

    run: RunRow
    inputs: dict[str, Any]
    facts: dict[str, Any]
    document: dict[str, Any] | None
    steps: tuple[StepRow, ...] = ()
    notes: tuple[NoteRow, ...] = field(default=())

    def noted(self, code: str) -> dict[str, Any] | None:
        """Return the last note ``code``, or None."""
        found = [note.body for note in self.notes if note.code == code]
        return found[-1] if found else None
