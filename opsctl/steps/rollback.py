"""Go back to the last attempt that passed: its patches, its arguments, its environment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from opsctl.domain.fingerprint import Attempt
from opsctl.domain.launch import SECRET, LaunchPlan, back_id, log_path
from opsctl.errors import OpsctlError
from opsctl.output import Finding
from opsctl.steps.base import StepContext, StepOutcome, StepResult
from opsctl.steps.launch import Launch
from opsctl.steps.ready import Ready
from opsctl.steps.record import attempt_of, keep_here, keep_there
from opsctl.steps.swap import bring_to


def go_back(ctx: StepContext) -> StepResult:
    """Launch the last attempt that passed, under a run id of its own; the failed one is stopped already."""
    known = ctx.data_of("known-failure").get("last_passed")
    if not known:
        return not_possible(ctx, "no attempt on this server has passed yet")
    passed = Attempt.from_json(known)
    plan = planned_back(ctx, passed)
    if passed.content.package_version != plan.package_version:
        was = passed.content.package_version
        return not_possible(
            ctx, f"it ran {plan.package} {was}, and {plan.package_version} is installed"
        )
    if missing := secrets_gone(ctx, passed):
        return not_possible(ctx, f"the site has no secret for {', '.join(missing)} any more")
    try:
        return carry_out(ctx, passed, plan)
    except OpsctlError as error:
        return not_possible(ctx, error.message)


def carry_out(ctx: StepContext, passed: Attempt, plan: LaunchPlan) -> StepResult:
    """Swap its patches in, launch, wait, record."""
    problem = swap_back(ctx, passed)
    if problem is not None:
        return not_possible(ctx, problem)
    sub = replace(
        ctx,
        run_id=plan.run,
        reason=f"back to run {passed.run} after run {ctx.run_id} failed",
        results={
            "preflight": ctx.results["preflight"],
            "known-failure": StepResult(
                StepOutcome.DONE,
                data={"launch": plan.to_json(), "content": plan.content().to_json()},
            ),
        },
    )
    for step in (Launch(), Ready()):
        sub.results[step.name] = step.run(sub)
        if not sub.results[step.name].is_good:
            break
    attempt = attempt_of(sub)
    if attempt is not None:
        keep_here(sub, attempt)
        keep_there(sub, attempt)
    last = list(sub.results.values())[-1]
    if not last.is_good:
        why = last.findings[0].text if last.findings else last.outcome.value
        return not_possible(ctx, f"it did not come up either: {why}")
    text = f"rolled back: the server runs as in run {passed.run} again, and it answered"
    finding = Finding(
        "rolled-back", ctx.server_name, text, "the change that failed is not in place"
    )
    data: dict[str, Any] = {
        "summary": text,
        "state": text,
        "run": plan.run,
        "ready": dict(last.data),
    }
    return StepResult(StepOutcome.DONE, True, (finding,), data=data)


def planned_back(ctx: StepContext, passed: Attempt) -> LaunchPlan:
    """Return the launch of the attempt that passed, as it was, with this run's way to log and address."""
    now = LaunchPlan.from_json(ctx.data_of("known-failure")["launch"])
    run = back_id(ctx.run_id)
    placed = dict.fromkeys(now.files, "")
    arguments = [item for item in passed.content.arguments if item.partition(":")[0] not in placed]
    files = dict(
        item.split(":", 1) for item in passed.content.arguments if item.partition(":")[0] in placed
    )
    return replace(
        now,
        run=run,
        argv=(now.argv[0], *arguments),
        log=log_path(ctx.server.log_dir, ctx.server_name, run),
        public_env=dict(passed.content.environment),
        patches=dict(passed.content.patches),
        files=files,
    )


def secrets_gone(ctx: StepContext, passed: Attempt) -> list[str]:
    """Return the secrets that the attempt had and the site no longer refers to."""
    had = [name for name, value in passed.content.environment.items() if value == SECRET]
    return [name for name in had if name not in ctx.server.env]


def swap_back(ctx: StepContext, passed: Attempt) -> str | None:
    """Bring the package to the attempt's patches; return why that is not possible, or None."""
    allowed = bool(ctx.values.get("allow_known_bad"))
    _, swap = bring_to(ctx, list(passed.content.patches), allow_known_bad=allowed)
    if swap.contents() != dict(passed.content.patches):
        return "its patches cannot be put in place as they were"
    return None


def not_possible(ctx: StepContext, why: str) -> StepResult:
    """Say that there is no way back, and that nothing runs."""
    text = f"there is no way back: {why}; nothing runs now"
    finding = Finding(
        "no-way-back", ctx.server_name, text, "launch it by hand: opsctl launch SERVER"
    )
    data = {"summary": text, "state": text}
    return StepResult(StepOutcome.FAILED, True, (finding,), data=data, exit_code=60)
