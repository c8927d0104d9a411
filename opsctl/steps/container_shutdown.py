"""Shut the server's container down cleanly, as the last thing of a stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from opsctl.domain.container import forced_finding
from opsctl.errors import CheckFailed
from opsctl.output import Finding
from opsctl.proxmox_container import NODE_WORK_S
from opsctl.records import dataclass
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult
from opsctl.steps.container import in_words, is_stopped, opened, refuse_locked
from opsctl.steps.lock import acquire

if TYPE_CHECKING:
    from opsctl.proxmox_container import Container, TaskResult
    from opsctl.session import ServerSession


@dataclass(frozen=True, slots=True)
class ShutDownContainer:
    """Let the container's own init end it within ``timeout_s``; only with ``force`` it is stopped after that.

    The other servers that the site places in it end with it: the plan names them, and it is refused while
    another run works on one of them.
    """

    timeout_s: int = 60
    force: bool = False
    name = "container-shutdown"
    effect = Effect.DESTROY
    half_done = "the node goes on shutting the container down; look with `opsctl ct status SERVER`"

    def describe(self) -> str:
        return "shut the server's container down cleanly"

    def preview(self, ctx: StepContext) -> list[str]:
        if getattr(ctx.session, "container", None) is None:
            return ["nothing to shut down: the server is in no container"]
        if is_stopped(ctx):
            return [f"{in_words(ctx)} is stopped already"]
        others = sorted(cast("ServerSession", ctx.session).neighbours())
        with_it = f", and with it {', '.join(others)}" if others else ""
        after = "then stop it at once" if self.force else "then leave it running and say so"
        return [f"shut down {in_words(ctx)}{with_it}; after {self.timeout_s} s {after}"]

    def run(self, ctx: StepContext) -> StepResult:
        if getattr(ctx.session, "container", None) is None:
            text = "there is no container to shut down: the server runs on its host itself"
            finding = Finding("no-container", ctx.server_name, text)
            return StepResult(
                StepOutcome.UNCHANGED, findings=(finding,), data={"summary": "no container"}
            )
        with opened(ctx) as container:
            if container.status().get("status") == "stopped":
                already = {"vmid": container.vmid, "summary": "it is stopped already"}
                return StepResult(StepOutcome.UNCHANGED, data=already)
            refuse_locked(ctx, container)
            hold_neighbours(ctx)
            result, findings = self._end(ctx, container)
            after = container.status().get("status")
        if after != "stopped":
            raise CheckFailed(
                f"the node's task ended well, but {in_words(ctx)} is {after}",
                next_step=f"opsctl ct status {ctx.server_name}",
                code="not-as-wanted",
                subject=ctx.server_name,
            )
        words = "stopped at once" if findings else "shut down"
        data: dict[str, Any] = {
            "vmid": container.vmid,
            "task": result.upid,
            "forced": bool(findings),
        }
        data["summary"] = f"{in_words(ctx)}: {words}, seen stopped"
        return StepResult(StepOutcome.DONE, changed=True, findings=tuple(findings), data=data)

    def _end(self, ctx: StepContext, container: Container) -> tuple[TaskResult, list[Finding]]:
        """Shut it down; what does not end is stopped only when that was asked for."""
        limit_s = ctx.deadline.left(ctx.clock.now(), 2 * self.timeout_s + NODE_WORK_S)
        try:
            result, forced = container.shut_down(
                self.timeout_s,
                force=self.force,
                limit_s=limit_s,
                on_progress=ctx.reporter.progress,
            )
        except CheckFailed as error:
            if error.code == "did-not-shut-down":
                error.next_step = (
                    f"what keeps it: opsctl ct exec {ctx.server_name} -- ps -ef; then ask it again: opsctl "
                    f"resume {ctx.run_id}; or pull its plug: opsctl ct stop {ctx.server_name}"
                )
            raise
        return result, [forced_finding(container.vmid, self.timeout_s)] if forced else []


def hold_neighbours(ctx: StepContext) -> None:
    """Take the port locks of the other servers inside: no run may be working on one of them.

    Raises:
        SafetyRefusal: exit 50, with who holds which.
    """
    session = cast("ServerSession", ctx.session)
    names = sorted({f"port-{server.port}" for server in session.neighbours().values()})
    if names:
        owner = {"who": ctx.who, "run": ctx.run_id, "server": ctx.server_name}
        owner["reason"] = ctx.reason or "container-shutdown"
        acquire(ctx, ctx.session.agent, names, owner)
