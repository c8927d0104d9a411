"""The server's patches in a run: staged and proven before the stop, swapped in after it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from opsctl.domain.patch import Patch
from opsctl.errors import CheckFailed
from opsctl.output import Finding
from opsctl.patch_library import find_patch, load_library
from opsctl.records import dataclass
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult
from opsctl.steps.patch import execute, findings_of, look, prove, target_of
from opsctl.steps.patch_plan import Look, PatchPlan, plan_exactly, refuse_known_bad

STAGED_KEY = "staged-swap"


@dataclass(frozen=True, slots=True)
class Swap:
    """What brings a package to a list of patches: one transaction, or none."""

    library: Mapping[str, Patch]
    look: Look | None = None  # None: there is no package, and no wish
    plans: tuple[PatchPlan, ...] = ()
    stands: tuple[str, ...] = ()  # all that will be in place afterwards

    @property
    def moving(self) -> list[PatchPlan]:
        return [plan for plan in self.plans if plan.changes]

    def contents(self) -> dict[str, str]:
        """Return id -> sha256 over what each patch that will stand makes of its files."""
        found = {}
        for one in self.stands:
            variant = self.library[one].variant(self.look.version) if self.look else None
            if variant is not None:
                text = repr([(file.path, file.after) for file in variant.files])
                found[one] = hashlib.sha256(text.encode()).hexdigest()
        return found

    def summary(self) -> str:
        if self.look is None:
            return "no package to patch"
        moves = [plan.summary() for plan in self.moving]
        state = f"in place: {', '.join(self.stands)}" if self.stands else "no patch in place"
        return "; ".join([*moves, state])


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
        swap = plan_swap(ctx, wanted_patches(ctx), allow_known_bad=self.allow_known_bad)
        proofs = [prove(ctx.session.agent, plan, staged=True) for plan in swap.moving]
        ctx.live[STAGED_KEY] = swap
        data: dict[str, Any] = {
            "contents": swap.contents(),
            "transactions": [plan.lines() for plan in swap.moving],
            "proofs": proofs,
            "summary": swap.summary(),
        }
        findings = tuple(findings_of(swap.look)) if swap.look else ()
        wrong = [proof["detail"] for proof in proofs if not proof["ok"]]
        if wrong:
            failed = [Finding("proof-failed", ctx.server_name, text) for text in wrong]
            code = CheckFailed.exit_code
            return StepResult(StepOutcome.FAILED, False, (*findings, *failed), data, code)
        done = StepOutcome.DONE if proofs else StepOutcome.UNCHANGED
        return StepResult(done, findings=findings, data=data)


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
        staged = ctx.live.get(STAGED_KEY)
        replies, swap = bring_to(
            ctx,
            wanted_patches(ctx),
            allow_known_bad=self.allow_known_bad,
            staged=staged if isinstance(staged, Swap) else None,
        )
        data = {"transactions": replies, "summary": swap.summary()}
        if not replies:
            return StepResult(StepOutcome.UNCHANGED, data=data)
        return StepResult(StepOutcome.DONE, changed=True, data=data)


def bring_to(
    ctx: StepContext,
    wanted: list[str],
    *,
    allow_known_bad: bool = False,
    staged: Swap | None = None,
) -> tuple[list[dict[str, Any]], Swap]:
    """Do the transactions one after the other; return their replies and what stands afterwards.

    ``staged`` is what the stage step of this run planned and proved. It is neither looked at nor proven a
    second time: the import takes half a minute, and by now the server is down. The agent compares each
    file with what was staged and changes nothing when one has changed since.
    """
    swap = staged or plan_swap(ctx, wanted, allow_known_bad=allow_known_bad)
    replies: list[dict[str, Any]] = []
    while swap.moving:
        plan = swap.moving[0]
        if swap is staged and is_proven(swap, ctx.data_of("stage")):
            plan = replace(plan, provable=False)
        ctx.note("patch-intent", {"action": plan.action, "patches": list(plan.patches)})
        replies.append(execute(ctx.session.agent, plan, ctx.run_id))
        if len(swap.moving) == 1:
            break
        swap = plan_swap(ctx, wanted, allow_known_bad=allow_known_bad)
    return replies, swap


def is_proven(swap: Swap, staged: Mapping[str, Any]) -> bool:
    """Say whether the stage proved exactly what is to be done now: same files, same contents."""
    proofs = staged.get("proofs") or []
    return (
        bool(proofs)
        and all(proof.get("ok") for proof in proofs)
        and staged.get("transactions") == [plan.lines() for plan in swap.moving]
        and staged.get("contents") == swap.contents()
    )


def plan_swap(ctx: StepContext, wanted: list[str], *, allow_known_bad: bool = False) -> Swap:
    """Plan what brings the package to ``wanted`` and what those need; a patch too many goes first."""
    library = load_library(ctx.patch_folder)
    if ctx.server.python is None:
        return Swap(library)
    for one in wanted:
        find_patch(library, one)
    target = target_of(ctx.server, ctx.server_name)
    try:
        seen = look(ctx.session.agent, target, library, first=wanted)
    except CheckFailed as error:
        if wanted or error.code != "package-missing":
            raise
        return Swap(
            library
        )  # sglang from a bare source tree: it runs, and nothing in it is patched
    plan = plan_exactly(seen, library, wanted, allow_known_bad=allow_known_bad)
    return Swap(library, seen, (plan,), plan.after)


def standing_contents(ctx: StepContext) -> dict[str, str]:
    """Return id -> sha256 of what stands now, for a run that leaves the patches alone.

    Raises:
        SafetyRefusal: exit 50, when one of them is known to be bad, and the run was not told to go on.
    """
    if ctx.server.python is None:
        return {}
    library = load_library(ctx.patch_folder)
    try:
        seen = look(ctx.session.agent, target_of(ctx.server, ctx.server_name), library)
    except CheckFailed as error:
        if error.code != "package-missing":
            raise
        return {}
    allowed = bool(ctx.values.get("allow_known_bad"))
    for one in seen.applied:
        refuse_known_bad(library, one, allowed, seen.version, stands=True)
    return Swap(library, seen, (), seen.applied).contents()


def wanted_patches(ctx: StepContext) -> list[str]:
    """Return the site's patches, and those that its speculation wish resolves to."""
    resolved = ctx.data_of("preflight").get("speculation_patches") or []
    return list(dict.fromkeys([*ctx.server.patches, *resolved]))
