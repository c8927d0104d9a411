"""Look before anything else: the host, its GPUs, and what this run or others have launched here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

from opsctl.agent.read import read_gpus, read_host
from opsctl.domain.launch import back_id
from opsctl.errors import SafetyRefusal
from opsctl.output import Finding
from opsctl.records import dataclass
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult

LOST = "this run's server is gone: what it ran in was started anew since"


@dataclass(frozen=True, slots=True)
class Look:
    """Read host, GPUs and launch records; find a launch of this run, and refuse one that was overtaken."""

    expect: Literal["any", "absent"] = "any"
    name = "look"
    effect = Effect.READ

    def describe(self) -> str:
        return "look at the host, its GPUs and its launch records"

    def preview(self, ctx: StepContext) -> list[str]:
        return []

    def run(self, ctx: StepContext) -> StepResult:
        agent, server = ctx.session.agent, ctx.server
        place = {"state_dir": server.state_dir}
        mine = agent.call("launch.find", {**place, "run": ctx.run_id}, timeout_s=20.0)
        records = agent.call("launch.records", {**place, "port": server.port}, timeout_s=30.0)[
            "records"
        ]
        lost = bool(
            mine.get("rebooted")
        )  # gone with its machine or container: to be launched again
        launched = None if mine["state"] == "absent" or lost else mine
        host = read_host(agent)
        # the records bear the host's clock, the run's beginning bears ours
        begun_s = ctx.begun_s and ctx.begun_s + host.clock_s - ctx.wall()
        newer = overtaken_by(records, ctx.run_id, begun_s)
        if newer is not None:
            raise SafetyRefusal(
                f"run {newer['run']} has launched a server on port {server.port} since this run began",
                next_step=f"leave this run; look at the newer one with `opsctl show {newer['run']}`",
                code="overtaken",
                subject=ctx.server_name,
            )
        running = [one for one in records if one["state"] == "running" and one["run"] != ctx.run_id]
        data: dict[str, Any] = {
            "host": asdict(host),
            "gpus": gpu_facts(ctx),
            "launched": launched,
            "running": running,
        }
        data["summary"] = LOST if lost else summary(launched, running)
        if self.expect == "absent" and launched is None and running:
            text = f"it runs already: pid {running[0]['pid']}, launched by run {running[0]['run']}"
            finding = Finding(
                "already-running", ctx.server_name, text, "use `opsctl restart SERVER`"
            )
            return StepResult(StepOutcome.REFUSED, findings=(finding,), data=data, exit_code=50)
        return StepResult(StepOutcome.DONE, data=data)


def gpu_facts(ctx: StepContext) -> list[dict[str, Any]]:
    """Return what NVML says of each GPU now, short, for the ledger."""
    report = read_gpus(ctx.session.gpu_agent)
    return [
        {"uuid": gpu.uuid, "name": gpu.name, "used_bytes": gpu.used_bytes, "read": gpu.read.value}
        for gpu in report.gpus
    ]


def overtaken_by(
    records: list[dict[str, Any]], run: str, begun_s: float
) -> Mapping[str, Any] | None:
    """Return a launch of another run that was asked for after this run began; None without one.

    ``begun_s`` is on the host's clock.
    """
    ours = (run, back_id(run))
    later = [one for one in records if one["run"] not in ours and one["asked_s"] > begun_s]
    return later[0] if later and begun_s else None


def summary(launched: Mapping[str, Any] | None, running: list[dict[str, Any]]) -> str:
    if launched is not None:
        return f"this run's server was launched: {launched['state']}, pid {launched.get('pid')}"
    if running:
        return f"running: pid {running[0]['pid']}, launched by run {running[0]['run']}"
    return "no server of ours is recorded as running here"
