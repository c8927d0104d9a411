"""After a run was cut: what has become of the server's container, which is often why."""

from __future__ import annotations

from opsctl.errors import OpsctlError
from opsctl.output import Finding
from opsctl.steps.base import StepContext
from opsctl.steps.container import in_words, opened


def container_now(ctx: StepContext) -> Finding | None:
    """Return what the node says of the container now, where that explains a cut; None where it does not.

    Best effort: when the node cannot be asked either, the cut itself has said so.
    """
    if getattr(ctx.session, "container", None) is None:
        return None
    try:
        with opened(ctx) as container:
            seen = container.status()
            lock = container.lock(seen)
    except OpsctlError:
        return None
    subject = str(container.vmid)
    locked = f"; it is {lock.describe(ctx.wall())}" if lock is not None else ""
    if seen.get("status") != "running":
        text = f"{in_words(ctx)} is {seen.get('status') or 'in an unknown state'} now{locked}"
        step = f"go on, which starts it where that is needed: opsctl resume {ctx.run_id}"
        return Finding("container-stopped", subject, text, step)
    up_s = float(seen.get("uptime") or 0)
    if up_s < ctx.wall() - ctx.begun_s and not _is_our_start(ctx, seen.get("pid")):
        text = f"{in_words(ctx)} was started anew {up_s:.0f} s ago: what ran in it is gone{locked}"
        return Finding("container-restarted", subject, text, f"go on: opsctl resume {ctx.run_id}")
    return None


def _is_our_start(ctx: StepContext, init_pid: object) -> bool:
    """Say whether the container runs since this pass started it: its init still is that one."""
    ours = ctx.results.get("container")
    return ours is not None and ours.changed and ours.data.get("init_pid") == init_pid
