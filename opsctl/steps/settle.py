"""After a failed launch: leave the server for inspection, stop it, or go back; as the site says, and said."""

from __future__ import annotations

from typing import Any

from opsctl.errors import OpsctlError
from opsctl.output import Finding
from opsctl.records import dataclass
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult
from opsctl.steps.gpu_memory import ProveGpuMemory
from opsctl.steps.record import CONCLUSIVE_EXIT_CODES
from opsctl.steps.rollback import go_back
from opsctl.steps.stop import StopServer

BAD_STEPS = ("launch", "ready", "smoke")
WORDS = {
    "leave": "leave the server for inspection",
    "stop": "stop it",
    "rollback": "stop it, and go back to the last attempt that passed",
}


@dataclass(frozen=True, slots=True)
class Settle:
    """Apply the server's ``on_failure`` policy when its launch, start or smoke went wrong."""

    name = "settle"
    effect = Effect.DESTROY

    def describe(self) -> str:
        return "after a failure: leave the server, stop it, or go back"

    def preview(self, ctx: StepContext) -> list[str]:
        return [f"after a failed start: {WORDS[ctx.server.on_failure]}"]

    def run(self, ctx: StepContext) -> StepResult:
        failed = failed_step(ctx)
        if failed is None:
            return StepResult(StepOutcome.UNCHANGED, data={"summary": "nothing to settle"})
        if ctx.server.on_failure == "leave":
            return leave(ctx, failed)
        stopped = stop(ctx)
        if not stopped.is_good or ctx.server.on_failure == "stop":
            return stopped
        return go_back(ctx)


def failed_step(ctx: StepContext) -> str | None:
    """Return the step of the launch that went wrong; None when nothing was launched or nothing went wrong.

    Only what the server itself did is a failure. An end that is not known, a wait that was interrupted or
    ran into --deadline, and a slow start are none: nothing is stopped for them.
    """
    if "launch" not in ctx.results or ctx.cancelled.is_set():
        return None
    found = [name for name in BAD_STEPS if (r := ctx.results.get(name)) and is_failure(r)]
    return found[0] if found else None


def is_failure(result: StepResult) -> bool:
    return result.outcome is StepOutcome.FAILED and result.exit_code in CONCLUSIVE_EXIT_CODES


def leave(ctx: StepContext, failed: str) -> StepResult:
    """Leave what is there, and say what that is."""
    request = {"state_dir": ctx.server.state_dir, "run": ctx.run_id}
    found = ctx.session.agent.call("launch.find", request, timeout_s=20.0)
    if found["state"] == "running":
        text = f"{failed} failed; the server is left running for inspection (pid {found['pid']})"
        code = "left-running"
    else:
        text = f"{failed} failed; no process of this run is left to inspect"
        code = "left-down"
    finding = Finding(code, ctx.server_name, text, f"opsctl logs {ctx.server_name}")
    data = {"summary": text, "state": text}
    return StepResult(StepOutcome.UNCHANGED, findings=(finding,), data=data)


def stop(ctx: StepContext) -> StepResult:
    """Stop what the failed launch left, and prove its memory."""
    data: dict[str, Any] = {}
    findings: tuple[Finding, ...] = ()
    for step in (StopServer(), ProveGpuMemory()):
        try:
            result = step.run(ctx)
        except OpsctlError as error:
            text = f"after the failure: {error.message}"
            result = StepResult(
                StepOutcome.FAILED,
                findings=(Finding(error.code, ctx.server_name, text, error.next_step or ""),),
                exit_code=error.exit_code,
            )
        data[step.name] = dict(result.data)
        findings += result.findings
        if not result.is_good:
            text = f"the failed server could not be stopped whole: {step.name}"
            data |= {"summary": text, "state": text}
            return StepResult(
                StepOutcome.FAILED, True, findings, data=data, exit_code=result.exit_code
            )
    text = "the failed server was stopped; nothing runs now"
    data |= {"summary": text, "state": text}
    return StepResult(StepOutcome.DONE, True, findings, data=data)
