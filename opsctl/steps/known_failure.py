"""Refuse an attempt that is known to fail."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """Look up the last conclusive attempt with this content; refuse when it failed."""

    again: str = ""  # the reason to go on all the same
    name = "known-failure"
    effect = Effect.READ

    def describe(self) -> str:
        return "ask the ledger and the host whether this attempt is known to fail"

    def preview(self, ctx: StepContext) -> list[str]:
        return []

    def run(self, ctx: StepContext) -> StepResult:
        return StepResult(StepOutcome.UNCHANGED)
