"""Refuse an attempt that is known to fail: same patches, version, arguments and GPU model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from opsctl.domain.counted import counted
from opsctl.domain.fingerprint import Attempt, Judgement, judge, shortened
from opsctl.domain.launch import LaunchPlan
from opsctl.output import Finding
from opsctl.records import dataclass
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult
from opsctl.steps.swap import standing_contents

TICK_S = 0.001


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """Look up the last conclusive attempt with this content, here and beside the server."""

    again: str = ""  # the reason to go on all the same
    name = "known-failure"
    effect = Effect.READ

    def describe(self) -> str:
        return "ask the ledger and the host whether this attempt is known to fail"

    def preview(self, ctx: StepContext) -> list[str]:
        return []

    def run(self, ctx: StepContext) -> StepResult:
        plan = LaunchPlan.from_json(ctx.data_of("preflight")["launch"])
        plan = replace(plan, patches=patch_contents(ctx))
        attempts, damaged = known_attempts(ctx)
        judgement = judge(plan.content(), ctx.server_name, attempts)
        fingerprint = plan.content().fingerprint()
        data: dict[str, Any] = {
            "launch": plan.to_json(),
            "content": plan.content().to_json(),
            "fingerprint": fingerprint,
            "attempts": len({one.run for one in attempts}),
            "damaged_lines": damaged,
            "differences": list(judgement.differences),
            "last_passed": judgement.last_passed.to_json() if judgement.last_passed else None,
        }
        if ctx.memory is not None:
            ctx.memory.set_facts(ctx.run_id, facts_of(ctx, data), fingerprint)
        if judgement.blocking is None:
            data["summary"] = (
                f"attempt {fingerprint}: {_what_is_known(judgement, data['attempts'], ctx.run_id)}"
            )
            return StepResult(StepOutcome.DONE, data=data)
        finding = refusal(judgement, ctx.run_id)
        if self.again:
            said = Finding(
                "repeated", finding.subject, f"{finding.text}; again, because: {self.again}"
            )
            data["summary"] = f"known to fail, tried again because: {self.again}"
            return StepResult(StepOutcome.DONE, findings=(said,), data=data)
        return StepResult(StepOutcome.REFUSED, findings=(finding,), data=data, exit_code=50)


def known_attempts(ctx: StepContext) -> tuple[list[Attempt], int]:
    """Return the attempts of the host's copy and of the ledger, and how many lines were damaged."""
    reply = ctx.session.agent.call(
        "attempts.read", {"state_dir": ctx.server.state_dir}, timeout_s=15.0
    )
    found, damaged = [], int(reply["damaged"])
    for line in reply["attempts"]:
        try:
            found.append(Attempt.from_json(line))
        except ValueError:
            damaged += 1
    return (ctx.memory.attempts() if ctx.memory else []) + in_order(found), damaged


def in_order(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the host's attempts with times that rise as they were appended.

    Each was stamped by the clock of the machine that made it; the order of the lines is the truth.
    """
    found: list[Attempt] = []
    latest_s = 0.0
    for attempt in attempts:
        latest_s = max(attempt.at_s, latest_s + TICK_S)
        found.append(replace(attempt, at_s=latest_s))
    return found


def patch_contents(ctx: StepContext) -> dict[str, str]:
    """Return id -> sha256 of the content, of every patch that will be in place at the launch."""
    if "stage" not in ctx.results:
        return standing_contents(ctx)
    staged = ctx.data_of("stage").get("contents") or {}
    return {str(key): str(value) for key, value in staged.items()}


def refusal(judgement: Judgement, run: str) -> Finding:
    """Say which run failed, how, and what differs from the last comparable attempt that passed."""
    blocking = judgement.blocking
    assert blocking is not None
    text = f"run {blocking.run}: {blocking.detail or blocking.outcome.value}"
    text += ", with the same patches, version, arguments and GPU model"
    if blocking.signature:
        text += f", signature {blocking.signature}"
    if judgement.last_passed is None:
        text += "; no attempt on this server has passed yet"
    elif judgement.compared is None:
        text += f"; {_not_comparable(judgement.last_passed)}"
    elif judgement.differences:
        text += f"; the last that passed ({judgement.compared.run}) differs: "
        text += shortened(judgement.differences, run)
    return Finding(
        "known-failure",
        blocking.server,
        text,
        'change something, or go on with --again "reason"',
    )


def facts_of(ctx: StepContext, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the ledger keeps of a run's world before anything was changed."""
    look = ctx.data_of("look")
    return {
        "content": data["content"],
        "launch": data["launch"],
        "host": look.get("host"),
        "gpus": look.get("gpus"),
    }


def _not_comparable(passed: Attempt) -> str:
    return f"no comparable run has passed (run {passed.run} had another model or interpreter)"


def _what_is_known(judgement: Judgement, count: int, run: str) -> str:
    if not count:
        return "nothing is known yet"
    if judgement.last_passed is None:
        recorded = counted(count, "attempt")
        return f"not known to fail; none of this server has passed yet ({recorded} on record)"
    if judgement.compared is None:
        return f"not known to fail; {_not_comparable(judgement.last_passed)}"
    if not judgement.differences:
        return f"the same as run {judgement.compared.run}, which passed"
    words = shortened(judgement.differences, run)
    return f"differs from run {judgement.compared.run}, which passed: {words}"
