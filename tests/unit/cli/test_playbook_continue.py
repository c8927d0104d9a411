"""Which runs stay open: those that were cut, and passes that ended before they did anything."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from opsctl.cli.playbook_continue import close_if_nothing_began, stays_open
from opsctl.output import Finding
from opsctl.runner import RunReport, StepReport


@dataclass
class Named:
    name: str
    effect: str = "change"


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


@pytest.mark.parametrize(
    ("made", "outside", "wanted"),
    [
        (report("cut", ("lock", "done"), ("look", "failed")), None, "failed"),
        (report("interrupted", ("ask", "failed"), ("stop", "skipped")), None, "refused"),
        (report("cut", ("look", "failed")), "container 129 on pve1 is stopped now", "cut"),
        (report("cut", ("ask", "done"), ("stop", "unknown")), None, "cut"),
    ],
)
def test_a_run_that_began_nothing_ends(made: RunReport, outside: str | None, wanted: str) -> None:
    """But for one whose container went away under it, which its resume starts again."""
    made.outside = outside

    close_if_nothing_began(None, made, CTX)

    assert made.outcome == wanted
