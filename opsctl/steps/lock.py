"""Take the machine's locks: one run at a time on the GPUs, and on the port where the server runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from opsctl.agent.read import read_gpus
from opsctl.domain.counted import counted
from opsctl.domain.gpu import resolve_gpus
from opsctl.errors import SafetyRefusal
from opsctl.records import dataclass
from opsctl.steps.base import Agent, Effect, StepContext, StepOutcome, StepResult

OWN_AGENT_S = 15.0  # an agent that lost its client takes up to 10 s to finish
NO_GPUS = ("no-library", "no-devices", "driver-not-loaded")


@dataclass(frozen=True, slots=True)
class Lock:
    """Lock each GPU on the machine that owns it, in UUID order, and the port on the server's host."""

    name = "lock"
    effect = Effect.CHANGE

    def describe(self) -> str:
        return "take the machine's locks on the GPUs and the port"

    def preview(self, ctx: StepContext) -> list[str]:
        return [f"lock port {ctx.server.port} on {ctx.server.host}, and the server's GPUs"]

    def run(self, ctx: StepContext) -> StepResult:
        owner = {
            "who": ctx.who,
            "run": ctx.run_id,
            "server": ctx.server_name,
            "reason": ctx.reason or "restart",
        }
        port = [f"port-{ctx.server.port}"]
        gpus = gpu_locks(ctx)
        acquire(ctx, ctx.session.agent, port, owner)
        if gpus:
            acquire(ctx, ctx.session.gpu_agent, gpus, owner)
        words = f"port {ctx.server.port} and {counted(len(gpus), 'GPU')} are ours"
        return StepResult(StepOutcome.DONE, data={"locks": [*port, *gpus], "summary": words})


def gpu_locks(ctx: StepContext) -> list[str]:
    """Return the lock of each GPU of the server, in UUID order: two runs never wait crosswise."""
    report = read_gpus(ctx.session.gpu_agent, xids=False)
    if report.state in NO_GPUS:
        return []
    uuids, _ = resolve_gpus(ctx.server.gpus.select, report)
    return [f"gpu-{uuid}" for uuid in sorted(uuids)]


def acquire(ctx: StepContext, agent: Agent, names: list[str], owner: Mapping[str, Any]) -> None:
    """Take all of them or none. Raises SafetyRefusal with who holds which, since when, why.

    A run that is continued may meet its own former agent, which finishes what it had in hand: that one
    is waited for.
    """
    end = ctx.clock.now() + OWN_AGENT_S
    request = {"names": names, "owner": dict(owner)}
    while True:
        reply = agent.call("lock.acquire", request, timeout_s=10.0)
        if reply["acquired"]:
            return
        holder = reply.get("holder") or {}
        if holder.get("run") not in (None, ctx.run_id) or ctx.clock.now() > end:
            break
        ctx.reporter.progress("waiting for this run's former agent to finish")
        ctx.clock.sleep(0.2)
    raise SafetyRefusal(
        f"{reply['name']} is locked by {describe_holder(holder, ctx.wall())}",
        next_step="wait for that run, or talk to its operator; the lock ends with its process",
        code="locked",
        subject=str(reply["name"]),
    )


def describe_holder(holder: Mapping[str, Any], now_s: float) -> str:
    """Say who, since when, and for what."""
    if not holder:
        return "another run, which has not written its name yet"
    since = float(holder.get("since_s") or now_s)
    clock = time.strftime("%H:%M:%S UTC", time.gmtime(since))
    return (
        f"{holder.get('who') or 'someone'} since {clock} ({max(0.0, now_s - since):.0f} s) "
        f"for: {holder.get('reason') or 'no reason given'} (run {holder.get('run') or 'unknown'})"
    )
