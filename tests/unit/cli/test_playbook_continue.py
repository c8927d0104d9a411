"""Which runs stay open: those that were cut, and passes that ended before they did anything."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from opsctl.cli.playbook_continue import stays_open
from opsctl.output import Finding
from opsctl.runner import RunReport, StepReport


@dataclass
class Named:
    name: str


CTX: Any = SimpleNamespace(ahead=(Named("stop"), Named("launch")))
LOCKED = "container-locked"
BEFORE: Any = SimpleNamespace(run=SimpleNamespace(id="r1"))


def report(outcome: str, *steps: tuple[str, str], code: str = "x") -> RunReport:
    made = RunReport(outcome=outcome, exit_code=50)
    made.steps = [StepReport(name, how, 0.0) for name, how in steps]
    made.findings = [Finding(code, "", "")]
    return made


@pytest.mark.parametrize(
    ("before", "made", "wanted"),
    [
        (None, report("cut"), True),
        (None, report("refused", ("container", "refused"), ("stop", "skipped")), False),
        (BEFORE, report("refused", ("container", "refused"), ("stop", "skipped")), True),
        (BEFORE, report("refused", ("lock", "done"), ("ask", "refused")), True),
        (BEFORE, report("failed", ("lock", "done"), ("stop", "failed")), False),
        (BEFORE, report("refused", ("look", "refused"), code="overtaken"), False),
        (BEFORE, report("done", ("stop", "done")), False),
        (None, report("refused", ("ask", "done"), ("snapshot", "refused"), code=LOCKED), True),
        (None, report("failed", ("ask", "done"), ("stop", "done"), code="did-not-shut-down"), True),
        (None, report("refused", ("container", "refused"), ("ask", "skipped"), code=LOCKED), False),
    ],
)
def test_a_run_stays_open(before: Any, made: RunReport, wanted: bool) -> None:
    """A locked container or a "no" does not close a run that was cut; a newer run does, and acts do."""
    assert stays_open(before, made, CTX) is wanted
