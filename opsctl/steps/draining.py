"""Let running requests end before the first signal: by asking the server how many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opsctl.domain.counted import counted
from opsctl.errors import ConfigError, Interrupted
from opsctl.output import Finding
from opsctl.sglang.metrics import running_of_loads

if TYPE_CHECKING:
    from opsctl.steps.base import StepContext

# 0.5.12 has /get_load and /v1/loads; 0.5.9 only /get_load.
ROUTES = ("/v1/loads", "/get_load")
EVERY_S = 0.5


def drain(ctx: StepContext, seconds: float) -> list[Finding]:
    """Wait until no request runs or waits, at most ``seconds``; say what is left.

    opsctl cannot close the server's door: no version has a call for it, so whatever routes requests
    to it must stop first.

    Raises:
        Interrupted: the operator stopped it here; nothing has been signalled.
    """
    end = ctx.clock.now() + seconds
    route: str | None = None
    while True:
        try:
            route, running = _running(ctx, route)
        except ConfigError as error:  # a key that is not to be had keeps no server running
            return [Finding("not-drained", ctx.server_name, error.message, error.next_step or "")]
        if running == 0:
            ctx.reporter.say("drained: no request runs or waits")
            return []
        if running is None:
            text = "the server does not say how many requests run, so nothing was waited for"
            step = "its own TERM handling drains it, within --grace"
            return [Finding("not-drained", ctx.server_name, text, step)]
        ctx.reporter.progress(f"draining: {counted(running, 'request')} running or waiting")
        if ctx.cancelled.is_set():
            raise Interrupted(
                f"interrupted while {counted(running, 'request')} still ran; nothing was signalled",
                next_step="the server runs as before",
                subject=ctx.server_name,
            )
        if ctx.clock.now() >= end:
            text = f"{counted(running, 'request')} still ran after {seconds:g} s"
            step = "take the server out of your router first; opsctl cannot close its port"
            return [Finding("not-drained", ctx.server_name, text, step)]
        ctx.clock.sleep(min(EVERY_S, max(0.0, end - ctx.clock.now())))


def _running(ctx: StepContext, known: str | None) -> tuple[str | None, int | None]:
    for route in (known,) if known else ROUTES:
        running = running_of_loads(_get(ctx, route))
        if running is not None:
            return route, running
    return None, None


def _get(ctx: StepContext, route: str) -> Any:
    server = ctx.server
    headers = {}
    if server.api_key is not None:
        headers["Authorization"] = f"Bearer {server.api_key.resolve()}"
    request = {
        "address": server.address,
        "port": server.port,
        "path": route,
        "headers": headers,
        "timeout_s": 3.0,
    }
    return ctx.session.agent.call("probe.request", request, timeout_s=8.0)["json"]
