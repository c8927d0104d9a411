"""Apply a plan step by step: intent before, outcome after, and the truth about where it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, field
from typing import Any, Protocol

from opsctl.domain.runs import RunDetail, StepRow
from opsctl.domain.state import describe_state
from opsctl.errors import Interrupted, OpsctlError, SafetyRefusal
from opsctl.output import Finding
from opsctl.plan import Plan, PlannedStep
from opsctl.records import dataclass
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult, is_cut, ticking

SKIPPED = "skipped"
INTERRUPTED = "interrupted"
CONTAINER = "container"  # starts what everything after it looks into
SPEAKING = frozenset({"ask", "smoke"})  # asks, or draws lines of its own
CUT = "cut"  # the way broke: what the far side did after that is not known
RESUMABLE = (None, INTERRUPTED, CUT)


class StepLedger(Protocol):
    """The part of the ledger that a runner writes."""

    def begin_step(self, run: str, position: int, name: str, effect: str, at_s: float) -> int: ...

    def end_step(
        self,
        run: str,
        position: int,
        turn: int,
        *,
        at_s: float,
        outcome: str,
        changed: bool,
        body: Mapping[str, Any],
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class StepReport:
    """How one step of the run went, as the document shows it."""

    name: str
    outcome: str
    seconds: float


@dataclass(slots=True)
class RunReport:
    """How the run went. ``exit_code`` is that of the first step that failed it."""

    outcome: str = "done"
    exit_code: int = 0
    steps: list[StepReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    preview: list[tuple[str, list[str]]] = field(default_factory=list)  # dry run: step, lines
    waits_for: str | None = None  # dry run: the step before which the rest cannot be looked at
    outside: str | None = None  # what happened to the server's place meanwhile, by no step of ours
    earlier: Mapping[str, str] = field(default_factory=dict)  # of a continued run: step, outcome

    @property
    def failed(self) -> bool:
        return self.outcome != "done"

    def fail(self, outcome: str, exit_code: int) -> None:
        """Let the first failure decide."""
        if not self.failed:
            self.outcome, self.exit_code = outcome, exit_code or 1

    def state(self, *, running: bool = True) -> str:
        now = {step.name: step.outcome for step in self.steps if step.outcome != SKIPPED}
        left = describe_state({**self.earlier, **now}, running=running)
        return f"{left}; {self.outside}" if self.outside else left


class Runner:
    """Runs one plan in one context."""

    def __init__(
        self, plan: Plan, ctx: StepContext, ledger: StepLedger, before: RunDetail | None = None
    ) -> None:
        self._plan = plan
        self._ctx = ctx
        self._ledger = ledger
        self._before = before  # what the ledger knows of a run that is continued
        self._changed = before is not None
        self.report = RunReport(earlier=_earlier(before))
        ctx.ahead = tuple(
            item.step
            for item in plan.steps
            if item.wanted
            and not item.always
            and not plan.is_before_ask(item)
            and item.name != "ask"
        )

    def run(self) -> RunReport:
        """Do every step that is wanted; end at the first failure, but for steps that are always done."""
        try:
            for item in self._plan.steps:
                self._visit(item)
        except KeyboardInterrupt:
            self.report.fail(INTERRUPTED, Interrupted.exit_code)
        return self.report

    def dry_run(self) -> RunReport:
        """Do what stands before the question, and say of the rest what it would do."""
        for item in self._plan.steps:
            if not item.wanted or item.name == "ask" or self.report.failed:
                continue
            if self._plan.is_before_ask(item) and item.step.effect is Effect.READ:
                result = self._apply(item)
                self._conclude(item, result, 0.0)
            else:
                lines = item.step.preview(self._ctx)
                self.report.preview.append((item.name, lines))
                if item.name == CONTAINER and lines:
                    self.report.waits_for = item.name
                    break
        return self.report

    def _visit(self, item: PlannedStep) -> None:
        if self._ctx.cancelled.is_set() and not self.report.failed:
            self.report.fail(INTERRUPTED, Interrupted.exit_code)
            text = f"interrupted by the operator before {item.name}"
            self.report.findings.append(Finding("interrupted", item.name, text))
        if not item.wanted or (self.report.failed and not item.always):
            self.report.steps.append(StepReport(item.name, SKIPPED, 0.0))
            return
        if self._is_past(item):
            self._take_over(item)
            return
        if item.retry is None:
            self._do(item)
            return
        self._retry(item)

    def _retry(self, item: PlannedStep) -> None:
        import tenacity

        assert item.retry is not None
        fail_after = self.report.failed
        policy = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(item.retry.attempts),
            wait=tenacity.wait_exponential(multiplier=item.retry.wait_s),
            sleep=self._ctx.clock.sleep,
            retry=tenacity.retry_if_result(self._is_worth_a_retry),
            retry_error_callback=lambda state: state.outcome and state.outcome.result(),
            before_sleep=lambda state: self._forget_failure(fail_after),
        )
        policy(self._do, item)

    def _is_worth_a_retry(self, result: StepResult) -> bool:
        again = (StepOutcome.FAILED, StepOutcome.UNKNOWN)
        return result.outcome in again and not self._ctx.cancelled.is_set()

    def _forget_failure(self, failed_before: bool) -> None:
        if not failed_before:
            self.report.outcome, self.report.exit_code = "done", 0

    def _do(self, item: PlannedStep) -> StepResult:
        """Write the intent, do the step, write the outcome."""
        ctx = self._ctx
        name, effect = item.name, item.step.effect
        turn = self._written(
            lambda: self._ledger.begin_step(ctx.run_id, item.position, name, effect, ctx.wall())
        )
        begun = ctx.clock.now()
        if effect is not Effect.READ and not self._plan.is_before_ask(item):
            self._changed = True
        words = f"{name}: {item.step.describe()}"
        ctx.reporter.progress(words)
        try:
            with ticking(ctx.reporter, words) if name not in SPEAKING else nullcontext():
                result = self._apply(item)
        except KeyboardInterrupt:
            result = _cut_by_operator(item)
            self._conclude(item, result, ctx.clock.now() - begun)
            self._write_end(item, turn, INTERRUPTED, result)
            raise
        self._conclude(item, result, ctx.clock.now() - begun)
        self._write_end(item, turn, result.outcome.value, result)
        return result

    def _apply(self, item: PlannedStep) -> StepResult:
        """Run the step; a named error becomes its result."""
        try:
            self._ctx.deadline.left(self._ctx.clock.now(), 0.0)
            return item.step.run(self._ctx)
        except OpsctlError as error:
            return result_of_error(error, item.step.effect)

    def _conclude(self, item: PlannedStep, result: StepResult, seconds: float) -> None:
        report = self.report
        self._ctx.results[item.name] = result
        report.steps.append(StepReport(item.name, result.outcome.value, round(seconds, 3)))
        report.findings.extend(result.findings)
        self._ctx.reporter.say(step_line(item.name, result, seconds))
        if not result.is_good and item.fail_run:
            report.fail(_run_outcome(result), result.exit_code)

    def _write_end(
        self, item: PlannedStep, turn: int | None, outcome: str, result: StepResult
    ) -> None:
        if turn is None:
            return
        ctx = self._ctx
        self._written(
            lambda: self._ledger.end_step(
                ctx.run_id,
                item.position,
                turn,
                at_s=ctx.wall(),
                outcome=outcome,
                changed=result.changed,
                body=body_of(result),
            )
        )

    def _written(self, write: Callable[[], Any]) -> Any:
        """Write to the ledger. Before anything is changed a failure ends the run; after it, it is said."""
        try:
            return write()
        except SafetyRefusal as error:
            if not self._changed:
                raise
            finding = Finding(error.code, error.subject or "", error.message, error.next_step or "")
            if finding not in self.report.findings:
                self.report.findings.append(finding)
                self._ctx.reporter.say(f"{error.message}; the run goes on, because it has begun")
            return None

    def _is_past(self, item: PlannedStep) -> bool:
        """Say whether a continued run is past this step: its server was launched after it."""
        if self._before is None or not self._plan.is_before_launch(item):
            return False
        return item.name != "ask" and bool(self._ctx.data_of("look").get("launched"))

    def _take_over(self, item: PlannedStep) -> None:
        """Keep what the cut run knew of a step that is not done again."""
        assert self._before is not None
        # by name: the playbook may have got a step in front of it since
        rows = [row for row in self._before.steps if row.name == item.name and row.outcome]
        result = _result_of_row(rows[-1]) if rows else StepResult(StepOutcome.UNCHANGED)
        self._ctx.results[item.name] = result
        self.report.steps.append(StepReport(item.name, StepOutcome.UNCHANGED.value, 0.0))
        self._ctx.reporter.say(
            f"  {item.name:<14} already behind us: this run's server was launched"
        )


def result_of_error(error: OpsctlError, effect: Effect) -> StepResult:
    """Turn a named error into a step's result.

    When the way breaks under a step that changes something, what it did is unknown: never "failed".
    """
    cut = is_cut(error)
    if isinstance(error, SafetyRefusal):
        outcome = StepOutcome.REFUSED
    elif cut and effect is not Effect.READ:
        outcome = StepOutcome.UNKNOWN
    else:
        outcome = StepOutcome.FAILED
    finding = Finding(error.code, error.subject or "", error.message, error.next_step or "")
    data = {"cut": True} if cut else {}
    return StepResult(outcome, findings=(finding,), exit_code=error.exit_code, data=data)


def body_of(result: StepResult) -> dict[str, Any]:
    """Return what the ledger keeps of a result beside its outcome."""
    return {
        "findings": [asdict(finding) for finding in result.findings],
        "data": dict(result.data),
        "exit_code": result.exit_code,
    }


def step_line(name: str, result: StepResult, seconds: float) -> str:
    """Return the line that a person reads when a step has ended."""
    note = str(result.data.get("summary") or "")
    if not result.is_good and result.findings:
        note = result.findings[0].text
    return f"  {name:<14} {result.outcome.value:<10} {seconds:6.2f} s  {note}".rstrip()


def _run_outcome(result: StepResult) -> str:
    if result.data.get("cut"):
        return CUT
    if result.outcome is StepOutcome.REFUSED:
        return "refused"
    return INTERRUPTED if result.exit_code == Interrupted.exit_code else "failed"


def _cut_by_operator(item: PlannedStep) -> StepResult:
    half = getattr(item.step, "half_done", f"{item.step.describe()}: this may be half done")
    finding = Finding("interrupted", item.name, f"stopped at once inside {item.name}: {half}")
    return StepResult(StepOutcome.UNKNOWN, findings=(finding,), exit_code=Interrupted.exit_code)


def _earlier(before: RunDetail | None) -> dict[str, str]:
    """Return how the steps of a run's earlier passes ended; one that was cut may have been done."""
    known = {item.value for item in StepOutcome}
    rows = before.steps if before is not None else ()
    return {
        row.name: row.outcome if row.outcome in known else StepOutcome.UNKNOWN.value for row in rows
    }


def _result_of_row(row: StepRow) -> StepResult:
    known = {item.value for item in StepOutcome}
    outcome = StepOutcome(row.outcome) if row.outcome in known else StepOutcome.UNKNOWN
    return StepResult(outcome, changed=False, data=row.body.get("data") or {})
