"""Keep what the old server would take with it, before the first signal: log, stacks, kernel log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opsctl.errors import OpsctlError
from opsctl.output import Finding
from opsctl.records import dataclass
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult
from opsctl.steps.look import gpu_facts

LIMIT_S = 10.0
LOG_LINES = 400


@dataclass(frozen=True, slots=True)
class Collect:
    """Collect evidence of the server that is about to be stopped, within ten seconds."""

    name = "collect"
    effect = Effect.READ

    def describe(self) -> str:
        return "collect evidence of the old server"

    def preview(self, ctx: StepContext) -> list[str]:
        return [
            "keep log tail, stacks of its processes, kernel log and GPU memory in the ledger (10 s at most)"
        ]

    def run(self, ctx: StepContext) -> StepResult:
        end = ctx.clock.now() + LIMIT_S
        running = ctx.data_of("look").get("running") or []
        parts: list[tuple[str, Callable[[float], Any]]] = [
            ("processes", lambda left: evidence(ctx, running, left)),
            ("kernel", lambda left: kernel_log(ctx, left)),
            ("gpus", lambda left: gpu_facts(ctx)),
        ]
        if running:
            parts.insert(0, ("log", lambda left: log_tail(ctx, running[0]["log"], left)))
        data: dict[str, Any] = {}
        findings: list[Finding] = []
        for name, read in parts:
            left = end - ctx.clock.now()
            if left <= 0.5:
                findings.append(Finding("not-collected", name, "the ten seconds were over"))
                continue
            try:
                data[name] = read(left)
            except OpsctlError as error:
                findings.append(Finding("not-collected", name, error.message))
        data["summary"] = f"kept {', '.join(data) or 'nothing'}"
        return StepResult(StepOutcome.DONE, findings=tuple(findings), data=data)


def log_tail(ctx: StepContext, path: str, left_s: float) -> str:
    reply = ctx.session.agent.call(
        "log_read.tail", {"path": path, "lines": LOG_LINES}, timeout_s=left_s
    )
    return str(reply["text"])


def evidence(ctx: StepContext, running: list[dict[str, Any]], left_s: float) -> dict[str, Any]:
    """Return state, wait channel and stacks of the old server's processes, where it runs.

    Its roots are what was launched here and what listens on its port; workers are found by their titles too.
    """
    listening = (ctx.data_of("preflight").get("survey") or {}).get("port", {}).get("holders") or []
    roots = {one["pid"] for one in (*running, *listening)}
    request = {"roots": sorted(roots), "limit_s": max(0.5, left_s - 1.0)}
    return ctx.session.agent.call("evidence.collect", request, timeout_s=left_s)


def kernel_log(ctx: StepContext, left_s: float) -> list[str] | None:
    """Return the end of the kernel log of the machine that owns the GPUs; None where it may not be read."""
    reply = ctx.session.gpu_agent.call("evidence.kernel", {"limit_s": 2.0}, timeout_s=left_s)
    lines: list[str] | None = reply["lines"]
    return lines
