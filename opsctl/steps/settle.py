"""After a failed launch: leave the server for inspection, or stop it, as the site says; and say so."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.output import Finding
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult

BAD_STEPS = ("launch", "ready", "smoke")


@dataclass(frozen=True, slots=True)
class Settle:
    """Apply the server's ``on_failure`` policy when its launch, start or smoke went wrong."""

    name = "settle"
    effect = Effect.DESTROY

    def describe(self) -> str:
        return "after a failure: leave the server, or stop it, as the site says"

    def preview(self, ctx: StepContext) -> list[str]:
        return [f"after a failed start: {ctx.server.on_failure}"]

    def run(self, ctx: StepContext) -> StepResult:
        bad = [name for name in BAD_STEPS if (r := ctx.results.get(name)) and not r.is_good]
        if "launch" not in ctx.results or not bad:
            return StepResult(StepOutcome.UNCHANGED, data={"summary": "nothing to settle"})
        return leave(ctx, bad[0])


def leave(ctx: StepContext, failed: str) -> StepResult:
    """Leave what is there, and say what that is."""
    found = ctx.session.agent.call(
        "launch.find", {"state_dir": ctx.server.state_dir, "run": ctx.run_id}, timeout_s=20.0
    )
    running = found["state"] == "running"
    text = (
        f"{failed} failed; the server is left running for inspection (pid {found['pid']})"
        if running
        else f"{failed} failed; no process of this run is left to inspect"
    )
    finding = Finding("left-running" if running else "left-down", ctx.server_name, text)
    return StepResult(StepOutcome.UNCHANGED, findings=(finding,), data={"summary": text})
