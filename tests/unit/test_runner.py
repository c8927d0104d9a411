"""The runner tells the truth: intent before, outcome after, and what is unknown stays unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from opsctl.domain.state import describe_state
from opsctl.errors import SafetyRefusal, TransportError
from opsctl.ledger import Ledger, LedgerError
from opsctl.plan import Plan, PlannedStep
from opsctl.playbook import Retry
from opsctl.runner import Runner, RunReport
from opsctl.steps.base import Deadline, Effect, StepContext, StepOutcome, StepResult

DONE = StepResult(StepOutcome.DONE)


@dataclass
class Talk:
    lines: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, text: str) -> None:
        self.lines.append(text)


@dataclass
class Ticks:
    """A clock that moves only when it is told to."""

    at: float = 0.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


@dataclass
class Act:
    """A step that answers from a list, the last answer again and again."""

    name: str
    answers: list[StepResult | BaseException] = field(default_factory=lambda: [DONE])
    effect: Effect = Effect.CHANGE
    before: Callable[[], None] = lambda: None
    ran: int = 0
    half_done: str = "the act may be half done"

    def describe(self) -> str:
        return f"do {self.name}"

    def preview(self, ctx: StepContext) -> list[str]:
        return [f"would do {self.name}"]

    def run(self, ctx: StepContext) -> StepResult:
        self.before()
        answer = self.answers[min(self.ran, len(self.answers) - 1)]
        self.ran += 1
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(tmp_path)
    opened.begin("r1", server="s", playbook="restart", at_s=1.0, who="me", reason=None, inputs={})
    yield opened
    opened.close()


def context(**changes: Any) -> StepContext:
    ready: dict[str, Any] = {
        "server": None,
        "server_name": "s",
        "run_id": "r1",
        "session": None,
        "clock": Ticks(),
        "reporter": Talk(),
    }
    return StepContext(**{**ready, **changes})


def plan_of(*steps: Act, **keys: dict[str, Any]) -> Plan:
    planned = tuple(
        PlannedStep(position, step.name, step, **keys.get(step.name, {}))
        for position, step in enumerate(steps)
    )
    return Plan("restart", planned, {})


def ran(steps: list[Act]) -> list[str]:
    return [step.name for step in steps if step.ran]


def outcomes(report: RunReport) -> list[tuple[str, str]]:
    return [(step.name, step.outcome) for step in report.steps]


def test_the_intent_is_written_before_the_act(ledger: Ledger) -> None:
    """Seen from inside the step, the ledger already has it, without an outcome."""
    seen: list[tuple[str, str | None]] = []
    act = Act(
        "stop", before=lambda: seen.extend((s.name, s.outcome) for s in ledger.find("r1").steps)
    )

    Runner(plan_of(act), context(), ledger).run()

    assert seen == [("stop", None)]
    assert [(s.name, s.outcome) for s in ledger.find("r1").steps] == [("stop", "done")]


def test_a_failure_ends_the_run_but_for_what_is_always_done(ledger: Ledger) -> None:
    """The record is written also after a crash; the steps between are skipped."""
    bad = StepResult(StepOutcome.FAILED, exit_code=60)
    acts = [Act("launch"), Act("ready", [bad]), Act("smoke"), Act("record")]

    report = Runner(plan_of(*acts, record={"always": True}), context(), ledger).run()

    assert ran(acts) == ["launch", "ready", "record"]
    assert (report.outcome, report.exit_code) == ("failed", 60)
    assert outcomes(report)[2] == ("smoke", "skipped")
    assert report.state() == "the new server was launched, and it is not proven ready"


def test_a_step_that_may_fail_lets_the_run_go_on(ledger: Ledger) -> None:
    """Evidence that could not be collected does not keep a dead server dead."""
    acts = [Act("collect", [StepResult(StepOutcome.FAILED, exit_code=20)]), Act("stop")]

    report = Runner(plan_of(*acts, collect={"fail_run": False}), context(), ledger).run()

    assert ran(acts) == ["collect", "stop"]
    assert report.exit_code == 0


def test_a_broken_way_under_a_change_is_unknown(ledger: Ledger) -> None:
    """A lost reply is not a failure: the launch may have happened."""
    acts = [Act("launch", [TransportError("the channel broke")])]

    report = Runner(plan_of(*acts), context(), ledger).run()

    assert outcomes(report) == [("launch", "unknown")]
    assert (report.outcome, report.exit_code) == ("cut", 30)
    assert report.state() == "it is not known whether the new server was launched"


def test_a_broken_way_under_a_look_is_a_failure(ledger: Ledger) -> None:
    """A look changes nothing, so nothing about the world is unknown after it."""
    acts = [Act("look", [TransportError("no route")], Effect.READ)]

    report = Runner(plan_of(*acts), context(), ledger).run()

    assert outcomes(report) == [("look", "failed")]
    assert report.state() == "the running server was not touched"
    assert report.state(running=False) == "nothing was stopped, and nothing was launched"


def test_a_refusal_keeps_its_code(ledger: Ledger) -> None:
    """The lock that somebody holds is exit 50."""
    acts = [Act("lock", [SafetyRefusal("held by ann since 19:02", next_step="wait")]), Act("stop")]

    report = Runner(plan_of(*acts), context(), ledger).run()

    assert (report.outcome, report.exit_code) == ("refused", 50)
    assert ran(acts) == ["lock"]
    assert report.findings[0].next == "wait"


def test_a_retry_is_a_turn_of_its_own(ledger: Ledger) -> None:
    """The ledger keeps both tries, and a good second one makes the run good."""
    act = Act("gpu-memory", [StepResult(StepOutcome.FAILED, exit_code=20), DONE])
    ctx = context()

    report = Runner(
        plan_of(act, **{"gpu-memory": {"retry": Retry(attempts=3, wait_s=2.0)}}), ctx, ledger
    ).run()

    assert report.exit_code == 0
    assert [(s.turn, s.outcome) for s in ledger.find("r1").steps] == [(0, "failed"), (1, "done")]
    assert ctx.clock.now() == 2.0


def test_a_refusal_is_not_tried_again(ledger: Ledger) -> None:
    """What was refused for a reason is refused the next second too."""
    act = Act("stop", [SafetyRefusal("a stranger holds the GPU")])

    report = Runner(plan_of(act, stop={"retry": Retry()}), context(), ledger).run()

    assert act.ran == 1
    assert report.exit_code == 50


def test_the_first_ctrl_c_ends_between_two_steps(ledger: Ledger) -> None:
    """The step in hand is finished; the next is not begun."""
    ctx = context()
    acts = [Act("stop", before=ctx.cancelled.set), Act("launch"), Act("record")]

    report = Runner(plan_of(*acts, record={"always": True}), ctx, ledger).run()

    assert ran(acts) == ["stop", "record"]
    assert (report.outcome, report.exit_code) == ("interrupted", 130)
    assert report.state() == "the old server is stopped, and no new one was launched"


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        (
            {"stop": "unchanged", "gpu-memory": "failed"},
            "no server was running, and no new one was launched",
        ),
        (
            {"stop": "done", "gpu-memory": "failed"},
            "the old server is stopped, and no new one was launched",
        ),
        ({"stop": "unchanged", "launch": "failed"}, "the new server did not start"),
        (
            {"stop": "done", "launch": "failed"},
            "the old server is stopped, and the new server did not start",
        ),
    ],
)
def test_an_old_server_is_named_only_where_one_was_stopped(
    outcomes: dict[str, str], state: str
) -> None:
    """A stop that found nothing has stopped nothing."""
    assert describe_state(outcomes) == state


def test_the_second_ctrl_c_says_what_may_be_half_done(ledger: Ledger) -> None:
    """It ends inside the step; the ledger knows which."""
    acts = [Act("stop", [KeyboardInterrupt()]), Act("launch"), Act("record")]

    report = Runner(plan_of(*acts, record={"always": True}), context(), ledger).run()

    assert ran(acts) == ["stop"]
    assert report.exit_code == 130
    assert "half done" in report.findings[0].text
    assert [(s.name, s.outcome) for s in ledger.find("r1").steps] == [("stop", "interrupted")]


def test_nothing_is_changed_that_cannot_be_written_down(ledger: Ledger) -> None:
    """With a full disk under the ledger the first act does not happen."""

    class Full:
        def begin_step(self, *args: Any) -> int:
            raise LedgerError("database or disk is full")

        def end_step(self, *args: Any, **keys: Any) -> None:
            raise LedgerError("database or disk is full")

    acts = [Act("stop")]

    with pytest.raises(LedgerError):
        Runner(plan_of(*acts), context(), Full()).run()

    assert ran(acts) == []


def test_a_ledger_that_fills_up_half_way_does_not_leave_the_server_down(ledger: Ledger) -> None:
    """After the stop the run goes on and says so: a dead server is worse than a gap in the book."""

    class FullLater:
        writes = 0

        def begin_step(self, *args: Any) -> int:
            self.writes += 1
            if self.writes > 1:
                raise LedgerError("database or disk is full")
            return 0

        def end_step(self, *args: Any, **keys: Any) -> None:
            raise LedgerError("database or disk is full")

    acts = [Act("stop"), Act("launch")]

    report = Runner(plan_of(*acts), context(), FullLater()).run()

    assert ran(acts) == ["stop", "launch"]
    assert [f.code for f in report.findings] == ["ledger-not-writable"]


def test_a_deadline_that_is_over_begins_no_further_step(ledger: Ledger) -> None:
    """--deadline bounds the whole run."""
    clock = Ticks()
    acts = [Act("stop", before=lambda: clock.sleep(100)), Act("launch")]

    report = Runner(plan_of(*acts), context(clock=clock, deadline=Deadline(60.0)), ledger).run()

    assert ran(acts) == ["stop"]
    assert report.exit_code == 20
    assert report.findings[0].code == "deadline"


def test_a_dry_run_looks_for_real_and_previews_the_rest(ledger: Ledger) -> None:
    """What stands before the question is read; what stands after it is only said."""
    acts = [
        Act("lock"),
        Act("look", effect=Effect.READ),
        Act("ask", effect=Effect.READ),
        Act("stop"),
        Act("ready", effect=Effect.READ),
    ]

    report = Runner(plan_of(*acts), context(), ledger).dry_run()

    assert ran(acts) == ["look"]
    assert [name for name, _ in report.preview] == ["lock", "stop", "ready"]
    assert ledger.find("r1").steps == ()


def test_a_continued_run_stops_nothing_once_its_server_was_launched(ledger: Ledger) -> None:
    """The server with this run's name is ours: everything that made room for it is behind us."""
    before = Runner(
        plan_of(Act("look", effect=Effect.READ), Act("ask"), Act("stop")), context(), ledger
    ).run()
    look = Act("look", [StepResult(StepOutcome.DONE, data={"launched": {"pid": 7}})], Effect.READ)
    acts = [look, Act("ask"), Act("stop"), Act("launch"), Act("ready")]

    report = Runner(plan_of(*acts), context(), ledger, before=ledger.find("r1")).run()

    assert before.exit_code == 0
    assert ran(acts) == ["look", "ask", "launch", "ready"]
    assert ("stop", "unchanged") in outcomes(report)


def test_a_continued_run_stops_again_when_nothing_was_launched(ledger: Ledger) -> None:
    """Stopping is by identity and safe to do twice."""
    acts = [Act("look", effect=Effect.READ), Act("ask"), Act("stop"), Act("launch")]

    Runner(plan_of(*acts), context(), ledger, before=ledger.find("r1")).run()

    assert ran(acts) == ["look", "ask", "stop", "launch"]
