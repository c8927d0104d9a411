"""Start the server's container where it is stopped; everything after it talks to the inside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from opsctl.errors import CheckFailed, SafetyRefusal, TransportError
from opsctl.output import Finding
from opsctl.records import dataclass
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult

if TYPE_CHECKING:
    from opsctl.proxmox_container import Container as PveContainer
    from opsctl.proxmox_container import TaskResult
    from opsctl.session import ServerSession
    from opsctl.transport.base import Transport

STOPPED = "container-stopped"
START_S = 180.0
SETTLE_S = 5.0  # a container that was started is seen running by then, or was stopped again
BOOT_S = 60.0  # for its init; what is not up by then is met by the steps that need it
BOOTED = (
    "case $(readlink /proc/1/exe) in */systemd) "
    "systemctl is-system-running | grep -Eqx 'running|degraded|maintenance';; esac"
)


@dataclass(frozen=True, slots=True)
class Container:
    """Ask, start the container, and wait until it answers. One that runs, or none at all: nothing to do."""

    name = "container"
    effect = Effect.CHANGE

    def describe(self) -> str:
        return "start the server's container if it is stopped"

    def preview(self, ctx: StepContext) -> list[str]:
        if not is_stopped(ctx):
            return []
        return [
            f"start {in_words(ctx)}, which is stopped; its inside cannot be looked at before that"
        ]

    def run(self, ctx: StepContext) -> StepResult:
        if not is_stopped(ctx):
            return StepResult(StepOutcome.UNCHANGED, data={"summary": "nothing to start"})
        with opened(ctx) as container:
            refuse_locked(ctx, container)
            try:
                ctx.confirm(f"{in_words(ctx)} is stopped. Start it?")
            except SafetyRefusal as error:
                error.message = f"{in_words(ctx)} is stopped, and stays so: {error.message}"
                raise
            left_s = ctx.deadline.left(ctx.clock.now(), START_S)
            result = start(ctx, container, left_s)
            init_pid = container.status().get("pid")
        wait_for_init(ctx, inside_of(ctx))
        findings: tuple[Finding, ...] = ()
        if result is not None and result.warnings:
            text = f"its start was done with {result.warnings} warnings"
            findings = (Finding("task-warnings", str(container.vmid), text),)
        words = f"{'started' if result else 'somebody else started'} {in_words(ctx)}"
        data = {"vmid": container.vmid, "task": result and result.upid, "init_pid": init_pid}
        data["summary"] = words
        return StepResult(StepOutcome.DONE, changed=True, findings=findings, data=data)


def start(ctx: StepContext, container: PveContainer, left_s: float) -> TaskResult | None:
    """Start it; None when somebody else was faster."""
    from opsctl.proxmox import PveError

    try:
        return container.act("start", timeout_s=left_s, on_progress=ctx.reporter.progress)
    except (PveError, CheckFailed):
        if container.status().get("status") == "running":
            return None
        raise


@contextmanager
def opened(ctx: StepContext) -> Iterator[PveContainer]:
    """Open the way to the server's container on its node, for one step."""
    from opsctl.containers import find_place, open_container

    session = cast("ServerSession", ctx.session)
    container = open_container(session.hosts, find_place(session.hosts.site, session.server.host))
    try:
        yield container
    finally:
        container.api.close()


def inside_of(ctx: StepContext) -> Transport:
    """Return the way into the server's container."""
    from opsctl.containers import container_transport, find_place

    session = cast("ServerSession", ctx.session)
    return container_transport(session.hosts, find_place(session.hosts.site, session.server.host))


def is_stopped(ctx: StepContext) -> bool:
    """Say whether the server's container is seen to be stopped. Other trouble on the way is raised."""
    if getattr(ctx.session, "container", None) is None:
        return False
    try:
        agent = ctx.session.agent
    except TransportError as error:
        if error.code != STOPPED:
            raise
        return True
    return bool(getattr(agent, "is_stopped", False))


def refuse_locked(ctx: StepContext, container: PveContainer) -> None:
    """Raise SafetyRefusal (exit 50) while another task of the node holds the container."""
    lock = container.lock(container.status())
    if lock is not None:
        raise SafetyRefusal(
            f"{in_words(ctx)} is {lock.describe(ctx.wall())}",
            next_step=lock.advice(container.vmid),
            code="container-locked",
            subject=str(container.vmid),
        )


def wait_for_init(ctx: StepContext, inside: Transport) -> None:
    """Wait until commands run inside and its systemd, if it has one, has started its units."""
    begun = ctx.clock.now()
    end = begun + ctx.deadline.left(begun, BOOT_S)
    answered = False
    while ctx.clock.now() < end and not ctx.cancelled.is_set():
        try:
            done = inside.run(["sh", "-c", BOOTED], timeout_s=20.0)
        except TransportError as error:
            if error.code != STOPPED or answered or ctx.clock.now() - begun > SETTLE_S:
                raise  # it was stopped again meanwhile
        else:
            answered = True
            if done.exit_code == 0:
                return
        ctx.reporter.progress(f"{in_words(ctx)} is booting")
        ctx.clock.sleep(0.3)
    if not answered:
        raise CheckFailed(
            f"{in_words(ctx)} was started, and did not come up within {BOOT_S:.0f} s",
            next_step="look on the node: pct status, and the task's log",
            code="container-not-up",
            subject=ctx.server_name,
        )


def in_words(ctx: StepContext) -> str:
    session = cast("ServerSession", ctx.session)
    return f"container {session.container} on {session.owner_host}"
