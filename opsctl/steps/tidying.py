"""Let systemd and the host's state folder forget the launches on one port that are over."""

from __future__ import annotations

import logging
import threading

from opsctl.errors import AgentError, OpsctlError
from opsctl.steps.base import StepContext

TIMEOUT_S = 30.0
TIDYING_KEY = "tidying"
logger = logging.getLogger(__name__)


def tidy(ctx: StepContext) -> None:
    """Clear units of ours that are over, and all but the newest launch records; best effort.

    SGLang ends itself with KILL, so that a unit which was stopped well stays with systemd as failed.
    """
    if getattr(ctx.session.agent, "is_stopped", False):
        return  # its container is down: nothing of systemd is there
    request = {"state_dir": ctx.server.state_dir, "run": ctx.run_id, "port": ctx.server.port}
    try:
        ctx.session.agent.call("launch.tidy", request, timeout_s=TIMEOUT_S)
    except AgentError as error:
        logger.info("launch records were not tidied: %s", error.message)


def begin_tidying(ctx: StepContext) -> None:
    """Tidy beside what comes next, so that nobody waits for it while no server runs."""

    def run() -> None:
        try:
            tidy(ctx)
        except OpsctlError as error:  # the way broke: the next step says so
            logger.info("launch records were not tidied: %s", error.message)

    thread = threading.Thread(target=run, name="tidying", daemon=True)
    thread.start()
    ctx.live[TIDYING_KEY] = thread


def end_tidying(ctx: StepContext) -> None:
    """Wait for what ``begin_tidying`` began, where it did."""
    thread = ctx.live.pop(TIDYING_KEY, None)
    if isinstance(thread, threading.Thread):
        thread.join(TIMEOUT_S)
