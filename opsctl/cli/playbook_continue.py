"""Runs that were cut: whether they can go on, with which plan, and what explains the cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opsctl.domain.runs import RunDetail
    from opsctl.plan import Plan
    from opsctl.playbook import Playbook
    from opsctl.runner import RunReport
    from opsctl.steps.base import StepContext


# what ends a run that was agreed to, and is no fault of it: with the reason gone, it goes on
WILL_PASS = frozenset({"container-locked", "did-not-shut-down"})


def build_again(playbook: Playbook, before: RunDetail, given: Mapping[str, Any]) -> Plan:
    """Build the plan of a run that is continued; its playbook may have changed since it was begun.

    Raises:
        SafetyRefusal: exit 50, with what differs, where it is no longer the same run.
    """
    from opsctl.domain.runs import why_not_continued
    from opsctl.errors import SafetyRefusal, UsageError
    from opsctl.plan import build

    plan: Plan | None = None
    try:
        plan = build(playbook, given)
        why = why_not_continued(before, [item.name for item in plan.steps])
    except UsageError as error:
        why = error.message
    if plan is None or why is not None:
        raise SafetyRefusal(
            f"run {before.run.id} was begun with other steps of playbook {before.run.playbook}: {why}",
            next_step=f"look at what it left (opsctl status {before.run.server}), then begin a new run",
            code="playbook-changed",
            subject=before.run.id,
        )
    return plan


def stays_open(before: RunDetail | None, report: RunReport, ctx: StepContext) -> bool:
    """Say whether the run can be continued: it was cut, its container was in the way, or a pass did nothing.

    A locked container, a "no" to the question, a start that failed: with the reason gone, it goes on.
    """
    from opsctl.runner import RESUMABLE, SKIPPED

    if report.outcome in RESUMABLE:
        return True
    agreed = any(step.name == "ask" and step.outcome != SKIPPED for step in report.steps)
    if report.failed and agreed and WILL_PASS & {finding.code for finding in report.findings}:
        return True
    if before is None or not report.failed:
        return False
    began = {step.name for step in report.steps if step.outcome != SKIPPED}
    overtaken = any(finding.code == "overtaken" for finding in report.findings)
    return not overtaken and not began & {step.name for step in ctx.ahead}


def close_if_nothing_began(before: RunDetail | None, report: RunReport, ctx: StepContext) -> None:
    """Let a first pass that ended before it began to change anything be no run to go on with.

    A new run does the same; what stood in its way (a wrong site file, a host that is off) is said. Where
    the container went away under the run, its resume starts that again: such a run stays open.
    """
    from opsctl.runner import CUT, RESUMABLE, SKIPPED
    from opsctl.steps.base import Effect

    if before is not None or report.outside is not None or report.outcome not in RESUMABLE:
        return
    began = {step.name for step in report.steps if step.outcome != SKIPPED}
    if not began & {step.name for step in ctx.ahead if step.effect is not Effect.READ}:
        report.outcome = "failed" if report.outcome == CUT else "refused"


def look_after_a_cut(report: RunReport, ctx: StepContext) -> None:
    """Say what became of the server's container, where that is why the run was cut."""
    from opsctl.runner import CUT

    if report.outcome != CUT:
        return
    from opsctl.steps.aftermath import container_now

    found = container_now(ctx)
    if found is not None:
        report.findings.append(found)
        report.outside = found.text
