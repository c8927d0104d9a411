"""What a dead or hung server leaves to read: its log, kept, and a verdict on it."""

from __future__ import annotations

from typing import Any

from opsctl.errors import OpsctlError
from opsctl.steps.base import StepContext

LOG_BYTES = 8 << 20
LOG_LINES = 100_000


def diagnose_log(ctx: StepContext, path: str, *, hung: bool = False) -> dict[str, Any] | None:
    """Fetch the end of a run's log, keep it for `opsctl diagnose RUN`, and judge it; None without a log."""
    from opsctl.domain.crash import Context, diagnose
    from opsctl.sglang.log import records_of

    text = fetch_log(ctx, path)
    if text is None:
        return None
    if ctx.kept is not None:
        ctx.kept.mkdir(parents=True, exist_ok=True, mode=0o700)
        (ctx.kept / "server.log").write_text(text, encoding="utf-8", errors="replace")
    patches = tuple(ctx.data_of("stage").get("contents") or ())
    return diagnose(records_of(text), Context(hung=hung, patches=patches)).as_data()


def fetch_log(ctx: StepContext, path: str) -> str | None:
    """Return the end of a log on the server's host; None when it cannot be read."""
    request = {"path": path, "lines": LOG_LINES, "max_bytes": LOG_BYTES}
    try:
        reply = ctx.session.agent.call("log_read.tail", request, timeout_s=30.0)
    except OpsctlError:
        return None
    return str(reply["text"])
