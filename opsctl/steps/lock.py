"""Take the machine's lock: one run at a time on the GPUs and on the port."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult


@dataclass(frozen=True, slots=True)
class Lock:
    """Lock the GPUs on the machine that owns them, and the port where the server runs."""

    name = "lock"
    effect = Effect.CHANGE

    def describe(self) -> str:
        return "take the machine's lock on the GPUs and the port"

    def preview(self, ctx: StepContext) -> list[str]:
        return [f"lock port {ctx.server.port} on {ctx.server.host}, and the server's GPUs"]

    def run(self, ctx: StepContext) -> StepResult:
        return StepResult(StepOutcome.UNCHANGED)
