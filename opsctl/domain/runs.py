"""Runs as the ledger knows them, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from opsctl.domain.state import GOOD
from opsctl.records import dataclass


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


def why_not_continued(detail: RunDetail, planned: Sequence[str]) -> str | None:
    """Say why a run cannot go on with a step list; None when it can.

    A playbook may have got steps since the run began: they are done where they stand. One that lost a
    step that the run has begun, or has them in another order, is no continuation of it.

    Args:
        detail: the run as the ledger knows it.
        planned: names of the playbook's steps now, in order.
    """
    gone = [row.name for row in detail.steps if row.name not in planned]
    if gone:
        return f"it has begun step '{gone[0]}', which the playbook does not have now"
    resumed = [note.at_s for note in detail.notes if note.code == "resumed"]
    # later passes were checked against the first one
    first = [row for row in detail.steps if not resumed or row.started_s < min(resumed)]
    first.sort(key=lambda row: row.position)
    places = [planned.index(row.name) for row in first]
    for row, place, after in zip(first, places, places[1:], strict=False):
        if after < place:
            name = planned[after]
            return f"the playbook has '{name}' before '{row.name}' now, and it was done after it"
    return None


def why_of(
    exit_code: int | None,
    steps: Sequence[tuple[str, str | None, Mapping[str, Any]]],
    document: Mapping[str, Any],
) -> str | None:
    """Return what ended a run: the step with its exit code, else what no good step has said.

    What a step that went well warned of is no reason.

    Args:
        exit_code: the run's.
        steps: name, outcome and body of the steps of its last pass, in order.
        document: what the run printed.
    """
    bad = [one for one in steps if one[1] not in (*GOOD, None)]
    bad.sort(key=lambda one: one[2].get("exit_code") != exit_code)
    for name, _, body in bad:
        if texts := _texts(body):
            return f"{name}: {texts[0]}"
    warned = {text for _, outcome, body in steps if outcome in GOOD for text in _texts(body)}
    return next((text for text in _texts(document) if text not in warned), None)


def _texts(body: Mapping[str, Any]) -> list[str]:
    return [str(one.get("text")) for one in body.get("findings") or () if one]
