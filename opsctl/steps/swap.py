"""The server's patches in a run: staged and proven before the stop, swapped in after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opsctl.domain.patch import Patch
from opsctl.errors import CheckFailed
from opsctl.patch_library import load_library
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult
from opsctl.steps.patch import execute, findings_of, look, prove, target_of
from opsctl.steps.patch_plan import PatchPlan, plan_apply, plan_revert


@dataclass(frozen=True, slots=True)
class StagePatches:
    """Build the patched files and prove them by a fresh import from a staged copy; nothing changes."""

    allow_known_bad: bool = False
    name = "stage"
    effect = Effect.READ

    def describe(self) -> str:
        return "stage the patches and prove them in a fresh import"

    def preview(self, ctx: StepContext) -> list[str]:
        return []

    def run(self, ctx: StepContext) -> StepResult:
        plans, library = plan_swap(ctx, self.allow_known_bad)
        if not plans:
            return StepResult(StepOutcome.UNCHANGED, data={"summary": "no package to patch"})
        proofs = [prove(ctx.session.agent, plan, staged=True) for plan in plans if plan.changes]
        stands = plans[-1].after
        data: dict[str, Any] = {
            "contents": contents_of(library, plans[-1]),
            "transactions": [plan.lines() for plan in plans if plan.changes],
            "proofs": proofs,
            "summary": summary(plans, stands),
        }
        return StepResult(
            StepOutcome.DONE if proofs else StepOutcome.UNCHANGED,
            findings=tuple(findings_of(plans[0].look)),
            data=data,
        )


@dataclass(frozen=True, slots=True)
class ApplyPatches:
    """Swap the staged files in, all or none, and prove the package as it then stands."""

    allow_known_bad: bool = False
    name = "patch"
    effect = Effect.CHANGE
    half_done = "some files may be swapped; the next look finishes or takes back the transaction"

    def describe(self) -> str:
        return "swap the patches in"

    def preview(self, ctx: StepContext) -> list[str]:
        lines = [line for one in ctx.data_of("stage").get("transactions") or [] for line in one]
        return lines or ["no file changes: the package is as the site wants it"]

    def run(self, ctx: StepContext) -> StepResult:
        if "stage" in ctx.results and not ctx.data_of("stage").get("transactions"):
            return StepResult(StepOutcome.UNCHANGED, data={"summary": "nothing was staged"})
        plans, _ = plan_swap(ctx, self.allow_known_bad)
        if not plans:
            return StepResult(StepOutcome.UNCHANGED, data={"summary": "no package to patch"})
        moving = [plan for plan in plans if plan.changes]
        if not moving:
            words = summary(plans, plans[-1].after)
            return StepResult(StepOutcome.UNCHANGED, data={"summary": words})
        replies = []
        for plan in moving:
            ctx.note("patch-intent", {"action": plan.action, "patches": list(plan.patches)})
            replies.append(execute(ctx.session.agent, plan, ctx.run_id))
        data = {"transactions": replies, "summary": summary(plans, plans[-1].after)}
        return StepResult(StepOutcome.DONE, changed=True, data=data)


def plan_swap(
    ctx: StepContext, allow_known_bad: bool
) -> tuple[list[PatchPlan], Mapping[str, Patch]]:
    """Return what brings the package to the site's list; nothing where there is no package and no wish.

    A patch that stands and is not on the list is taken away, in a transaction of its own.
    """
    library = load_library()
    wanted = wanted_patches(ctx)
    if ctx.server.python is None:
        return [], library
    target = target_of(ctx.server, ctx.server_name)
    try:
        seen = look(ctx.session.agent, target, library, first=wanted)
    except CheckFailed as error:
        if wanted or error.code != "package-missing":
            raise
        return [], library  # sglang from a bare source tree: it runs, and nothing in it is patched
    surplus = [
        one for one in seen.applied if one not in wanted and not needed(library, one, wanted)
    ]
    if surplus and set(wanted) <= set(seen.applied):
        return [plan_revert(seen, surplus)], library
    return [plan_apply(seen, library, wanted, allow_known_bad=allow_known_bad)], library


def wanted_patches(ctx: StepContext) -> list[str]:
    """Return the site's patches, and those that its speculation wish resolves to."""
    resolved = ctx.data_of("preflight").get("speculation_patches") or []
    return list(dict.fromkeys([*ctx.server.patches, *resolved]))


def needed(library: Mapping[str, Patch], one: str, wanted: list[str]) -> bool:
    """Say whether a wanted patch needs ``one``."""
    return any(one in library[name].needs for name in wanted if name in library)


def contents_of(library: Mapping[str, Patch], plan: PatchPlan) -> dict[str, str]:
    """Return id -> sha256 over what each standing patch makes of its files, for this package version."""
    import hashlib

    found = {}
    for one in plan.after:
        variant = library[one].variant(plan.look.version) if one in library else None
        if variant is not None:
            text = repr([(file.path, file.after) for file in variant.files])
            found[one] = hashlib.sha256(text.encode()).hexdigest()
    return found


def summary(plans: list[PatchPlan], stands: tuple[str, ...]) -> str:
    moves = [f"{plan.action} {', '.join(plan.patches)}" for plan in plans if plan.changes]
    state = f"in place: {', '.join(stands)}" if stands else "no patch in place"
    return "; ".join([*moves, state])
