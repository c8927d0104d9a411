"""Whether a run may go on with the step list of now."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.domain.runs import NoteRow, RunDetail, RunRow, StepRow, why_not_continued, why_of

RUN = RunRow("r1", "s", "restart", 1.0, None, None, None, None, "me", None, None)
NOW = ["container", "lock", "look", "snapshot", "stop", "launch"]


def detail(*steps: tuple[int, str, float], resumed_at_s: float | None = None) -> RunDetail:
    rows = tuple(StepRow(at, 0, name, "read", s, s, "done", False, {}) for at, name, s in steps)
    notes = () if resumed_at_s is None else (NoteRow(resumed_at_s, "resumed", {}),)
    return RunDetail(RUN, {}, {}, None, rows, notes)


def test_steps_that_the_playbook_got_since_are_no_obstacle() -> None:
    """A run of before the container step goes on: positions have moved, names and order have not."""
    assert (
        why_not_continued(detail((0, "lock", 1.0), (1, "look", 2.0), (2, "stop", 3.0)), NOW) is None
    )


def test_a_pass_after_the_change_is_not_held_against_the_first() -> None:
    """It was resumed once already: the container step was done then, after the old steps."""
    seen = detail((0, "lock", 1.0), (1, "look", 2.0), (0, "container", 9.0), resumed_at_s=8.0)

    assert why_not_continued(seen, NOW) is None


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([(0, "lock", 1.0), (1, "drain", 2.0)], "step 'drain', which the playbook does not have"),
        ([(0, "lock", 1.0), (1, "stop", 2.0), (2, "look", 3.0)], "'look' before 'stop' now"),
    ],
)
def test_a_lost_or_moved_step_is_said(steps: list[tuple[int, str, float]], words: str) -> None:
    """What the run has begun must be there, in the same order."""
    assert words in str(why_not_continued(detail(*steps), NOW))


def test_the_reason_of_a_run_is_what_ended_it_and_no_warning_of_another_step() -> None:
    """The step with the run's exit code; without one, what no good step has said."""
    warned = {"findings": [{"text": "it is not on the PATH"}]}
    ended = {"findings": [{"text": "interrupted while the server was starting"}], "exit_code": 130}
    kept = {"findings": [{"text": "no stack"}], "exit_code": 20}
    document = {"findings": [*warned["findings"], {"text": "interrupted before stop"}]}
    steps: list[Any] = [("preflight", "done", warned), ("collect", "failed", kept)]

    assert why_of(130, [*steps, ("ready", "failed", ended)], {}) == (
        "ready: interrupted while the server was starting"
    )
    assert why_of(130, steps[:1], document) == "interrupted before stop"
    assert why_of(130, steps[:1], warned) is None
