"""Show what will be done, exactly, and ask once."""

from __future__ import annotations

from opsctl.records import dataclass
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult

QUESTION = "Go on?"


@dataclass(frozen=True, slots=True)
class Ask:
    """Show the steps that change something, with their targets, and ask."""

    name = "ask"
    effect = Effect.READ

    def describe(self) -> str:
        return "ask"

    def preview(self, ctx: StepContext) -> list[str]:
        return []

    def run(self, ctx: StepContext) -> StepResult:
        past_launch = bool(ctx.data_of("look").get("launched"))
        lines = []
        for step in ctx.ahead:
            if past_launch and step.name != "launch" and step.effect is not Effect.READ:
                continue  # this run's server was launched: what made room for it is behind us
            lines += [f"  {step.name}: {line}" for line in step.preview(ctx)]
        if past_launch:
            lines.insert(0, "  this run has launched its server already; what is missing is done")
        ctx.reporter.say("\n".join(["this will happen:", *lines]))
        ctx.confirm(QUESTION)
        return StepResult(StepOutcome.DONE, data={"plan": lines, "summary": "agreed"})
