"""What a dead or hung server leaves to read: its log, kept, and a verdict on it."""

from __future__ import annotations

from typing import Any

from opsctl.errors import OpsctlError, TransportError
from opsctl.steps.base import StepContext

GOING_DOWN = "stopping"  # "offline" is said where systemd is not pid 1
LOG_BYTES = 8 << 20
LOG_LINES = 100_000


def diagnose_log(ctx: StepContext, path: str, *, hung: bool = False) -> dict[str, Any] | None:
    """Fetch the end of a run's log, keep it for `opsctl diagnose RUN`, and judge it; None without a log."""
    from opsctl.domain.crash import Context, diagnose, launch_of
    from opsctl.sglang.log import records_of

    text = fetch_log(ctx, path)
    if text is None:
        return None
    if ctx.kept is not None:
        ctx.kept.mkdir(parents=True, exist_ok=True, mode=0o700)
        (ctx.kept / "server.log").write_text(text, encoding="utf-8", errors="replace")
    patches = tuple(ctx.data_of("stage").get("contents") or ())
    planned = ctx.data_of("preflight").get("launch") or {}
    recorded = launch_of(planned.get("argv") or ())
    context = Context(hung=hung, patches=patches, server=ctx.server_name, recorded=recorded)
    return diagnose(records_of(text), context).as_data()


def refuse_going_down(ctx: StepContext) -> None:
    """Do not blame a server for an end that came with its container or machine.

    A shutdown from outside ends the server's unit first and our agent last, so it is seen as an exit.

    Raises:
        TransportError: systemd there says that the system is being shut down; the run is cut by that.
        AgentError: nothing answers there any more.
    """
    state = ctx.session.agent.call("units.system_state", {}, timeout_s=15.0)["state"]
    if state == GOING_DOWN:
        raise TransportError(
            f"{ctx.session.agent.name} is being shut down, and the server ended with it",
            next_step=f"when it is back: opsctl resume {ctx.run_id}",
            code="going-down",
            subject=ctx.server_name,
        )


def fetch_log(ctx: StepContext, path: str) -> str | None:
    """Return the end of a log on the server's host; None when it cannot be read."""
    request = {"path": path, "lines": LOG_LINES, "max_bytes": LOG_BYTES}
    try:
        reply = ctx.session.agent.call("log_read.tail", request, timeout_s=30.0)
    except OpsctlError:
        return None
    return str(reply["text"])
