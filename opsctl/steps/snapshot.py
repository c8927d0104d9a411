"""Take a snapshot of the server's container before anything is changed, and prune opsctl's older ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opsctl.domain.container import DAY_S, OWN_PREFIX, prunable
from opsctl.errors import CheckFailed, OpsctlError
from opsctl.output import Finding
from opsctl.proxmox import PveError
from opsctl.records import dataclass
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult
from opsctl.steps.container import in_words, opened, refuse_locked

if TYPE_CHECKING:
    from opsctl.proxmox_container import Container

TASK_S = 900.0
NOT_AVAILABLE = "snapshot feature is not available"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Snapshot the container, named after the run; then delete opsctl's own ones beyond ``keep`` and age.

    ``keep`` 0 and ``older_than_days`` 0 set no limit; with both, only what is beyond both goes. Where there
    is no container, or its storage cannot take snapshots, the run goes on and says so, or, with
    ``require``, it ends there. A snapshot that fails ends the run in any case: nothing is changed yet.
    """

    keep: int = 0
    older_than_days: float = 0.0
    require: bool = False
    name = "snapshot"
    effect = Effect.CHANGE
    half_done = "the node goes on taking the snapshot; nothing else was changed"

    def describe(self) -> str:
        return "snapshot the server's container, and prune opsctl's older ones"

    def preview(self, ctx: StepContext) -> list[str]:
        if getattr(ctx.session, "container", None) is None:
            return [self._refusal(ctx, "it is in no container")]
        with opened(ctx) as container:
            before = container.snapshots()
            made = name_of(ctx)
            if any(item.get("name") == made for item in before):
                return [f"snapshot {made} of {in_words(ctx)} is there already"]
            if not can_snapshot(container):
                return [self._refusal(ctx, f"the storage of {in_words(ctx)} cannot take any")]
            gone = self._gone(ctx, before)
        return [
            f"take snapshot {made} of {in_words(ctx)}",
            *(f"then delete its snapshot {old}" for old in gone),
        ]

    def run(self, ctx: StepContext) -> StepResult:
        if getattr(ctx.session, "container", None) is None:
            return self._none(ctx, "it is in no container")
        with opened(ctx) as container:
            wait_for_own(ctx, container)
            before = container.snapshots()
            made = name_of(ctx)
            if any(item.get("name") == made for item in before):
                there = {"snapshot": made, "deleted": (), "summary": f"{made} is there already"}
                return StepResult(StepOutcome.UNCHANGED, data=there)
            refuse_locked(ctx, container)
            if not can_snapshot(container):
                return self._none(ctx, f"the storage of {in_words(ctx)} cannot take any")
            try:
                warnings = take(ctx, container, made)
            except CheckFailed as error:
                if NOT_AVAILABLE not in error.message:
                    raise
                return self._none(ctx, f"the storage of {in_words(ctx)} cannot take any")
            findings = [*warned(made, warnings)]
            deleted = prune(ctx, container, self._gone(ctx, before), findings)
        data: dict[str, Any] = {"snapshot": made, "deleted": deleted}
        data["summary"] = summary(made, deleted)
        return StepResult(StepOutcome.DONE, changed=True, findings=tuple(findings), data=data)

    def _gone(self, ctx: StepContext, before: list[dict[str, Any]]) -> list[str]:
        made, now_s = name_of(ctx), ctx.wall()
        return prunable(
            [*before, {"name": made, "snaptime": now_s}],
            keep=self.keep or None,
            older_than_s=self.older_than_days * DAY_S if self.older_than_days else None,
            now_s=now_s,
            never=made,
        )

    def _refusal(self, ctx: StepContext, why: str) -> str:
        ends = "the run ends there" if self.require else "the run goes on without"
        return f"no snapshot can be taken: {why}; {ends}"

    def _none(self, ctx: StepContext, why: str) -> StepResult:
        finding = Finding(
            "no-snapshot",
            ctx.server_name,
            f"no snapshot was taken: {why}",
            "patches are undone by `opsctl patch revert SERVER`; for the whole container, a backup (vzdump)",
        )
        data: dict[str, Any] = {"snapshot": None, "deleted": [], "summary": f"none: {why}"}
        if self.require:
            return StepResult(StepOutcome.REFUSED, findings=(finding,), data=data, exit_code=50)
        return StepResult(StepOutcome.UNCHANGED, findings=(finding,), data=data)


def name_of(ctx: StepContext) -> str:
    """Return the snapshot's name: the run's, so that a continued run finds it and takes no second one."""
    return f"{OWN_PREFIX}{ctx.run_id}"


def can_snapshot(container: Container) -> bool:
    """Ask whether every volume's storage can; a node that cannot say is tried."""
    try:
        return container.has_feature("snapshot")
    except PveError:
        return True


def wait_for_own(ctx: StepContext, container: Container) -> None:
    """Let the node finish a snapshot that this run asked for before it was cut."""
    for task in container.running_tasks():
        if task.get("type") == "vzsnapshot" and container.status().get("lock") == "snapshot":
            left_s = ctx.deadline.left(ctx.clock.now(), TASK_S)
            container.wait(task["upid"], timeout_s=left_s, on_progress=ctx.reporter.progress)


def take(ctx: StepContext, container: Container, made: str) -> int:
    """Take it and see it; return how many warnings the node had."""
    why = f"before {ctx.reason or 'a change'} (opsctl run {ctx.run_id})"
    ctx.note("snapshot-intent", {"snapshot": made})
    left_s = ctx.deadline.left(ctx.clock.now(), TASK_S)
    result = container.snapshot(made, why, timeout_s=left_s, on_progress=ctx.reporter.progress)
    if made not in {item.get("name") for item in container.snapshots()}:
        raise CheckFailed(
            f"the task ended well, but {in_words(ctx)} has no snapshot '{made}'",
            code="not-as-wanted",
            subject=made,
        )
    return result.warnings


def prune(
    ctx: StepContext, container: Container, gone: list[str], findings: list[Finding]
) -> list[str]:
    """Delete what may go. One that stays is told; it is no reason to end the run."""
    deleted = []
    for old in gone:
        try:
            left_s = ctx.deadline.left(ctx.clock.now(), TASK_S)
            result = container.delete_snapshot(
                old, timeout_s=left_s, on_progress=ctx.reporter.progress
            )
        except OpsctlError as error:
            text = f"snapshot {old} was not deleted: {error.message}"
            findings.append(Finding("snapshot-kept", old, text, error.next_step or ""))
            break
        findings += warned(old, result.warnings)
        deleted.append(old)
    return deleted


def warned(name: str, warnings: int) -> list[Finding]:
    if not warnings:
        return []
    text = f"the task of snapshot {name} was done, with {warnings} warnings"
    return [Finding("task-warnings", name, text)]


def summary(made: str, deleted: list[str]) -> str:
    return f"{made} taken" + (f", {len(deleted)} older deleted" if deleted else "")
