"""Launch the server once, so that it outlives us, under a name that carries the run's id."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from opsctl.domain.launch import LaunchPlan
from opsctl.output import Finding
from opsctl.records import dataclass
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult
from opsctl.steps.failure import refuse_going_down
from opsctl.steps.launch_plan import full_environment, systemd_argv
from opsctl.steps.tidying import tidy

START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the server under systemd where that is pid 1, else under a supervisor of ours."""

    name = "launch"
    effect = Effect.CHANGE
    half_done = "the server may be starting; `opsctl resume` finds it by the run's id"

    def describe(self) -> str:
        return "launch the server"

    def preview(self, ctx: StepContext) -> list[str]:
        plan = planned(ctx)
        via = way_of(ctx)
        lines = [f"launch under {plan.unit if via == 'systemd' else 'the supervisor of opsctl'}"]
        lines.append(f"  {shlex.join(plan.argv)}")
        lines += [f"  env {name}={value}" for name, value in sorted(plan.public_env.items())]
        return [*lines, f"  log {plan.log}"]

    def run(self, ctx: StepContext) -> StepResult:
        plan = planned(ctx)
        via = way_of(ctx)
        request = {
            **plan.request(
                full_environment(ctx, plan), via, systemd_argv(plan) if via == "systemd" else []
            ),
            "state_dir": ctx.server.state_dir,
        }
        request["record"]["who"] = ctx.who
        request["record"]["reason"] = ctx.reason
        ctx.note("launch-intent", {"unit": plan.unit, "via": via, "log": plan.log})
        begun = ctx.clock.now()
        found = ctx.session.agent.call("launch.start", request, timeout_s=START_TIMEOUT_S)
        if found["state"] == "failed-to-start":
            refuse_going_down(ctx)
        tidy(ctx)
        return result_of_launch(found, plan, begun, ctx.clock.now())


def planned(ctx: StepContext) -> LaunchPlan:
    """Return the launch that the preflight has prepared and `known-failure` has completed."""
    return LaunchPlan.from_json(ctx.data_of("known-failure")["launch"])


def way_of(ctx: StepContext) -> str:
    """Return ``systemd`` where it is pid 1 and we are root there, else ``supervisor``."""
    survey = ctx.data_of("preflight")["survey"]
    return "systemd" if survey["systemd"] and survey["uid"] == 0 else "supervisor"


def result_of_launch(
    found: Mapping[str, Any], plan: LaunchPlan, begun: float, now: float
) -> StepResult:
    """Turn the far side's reply into the step's result."""
    data = {
        "via": found.get("via"),
        "unit": found.get("unit"),
        "pid": found.get("pid"),
        "start_ticks": found.get("start_ticks"),
        "boot_id": found.get("boot_id"),
        "log": found.get("log"),
        "state": found["state"],
        "exit": found.get("exit"),
        "begun_at": begun,
        "exec_s": found.get("exec_s"),
        "exec_at": now - float(found.get("age_s") or 0.0),
    }
    if found["state"] == "failed-to-start":
        error = (found.get("exit") or {}).get("error") or "no reason was given"
        finding = Finding(
            "failed-to-start", plan.server, f"it did not start: {error}", f"log: {plan.log}"
        )
        return StepResult(StepOutcome.FAILED, findings=(finding,), data=data, exit_code=60)
    name = found.get("unit") or f"supervisor pid {found.get('supervisor_pid')}"
    changed = bool(found.get("changed"))
    words = "is started" if changed else "was started by this run before"
    data["summary"] = f"pid {found.get('pid')} {words} ({name})"
    return StepResult(
        StepOutcome.DONE if changed else StepOutcome.UNCHANGED, changed=changed, data=data
    )
