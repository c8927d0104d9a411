"""Show what dead servers left behind, and remove what is proven dead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from opsctl.agent.read import read_leftovers
from opsctl.domain.gpu import MIB
from opsctl.domain.leftovers import LeftoverVerdict, judge_leftovers
from opsctl.output import Finding
from opsctl.records import dataclass
from opsctl.steps.base import Agent, Effect, StepContext, StepOutcome, StepResult
from opsctl.steps.tidying import tidy


@dataclass(frozen=True, slots=True)
class Sweep:
    """Remove shared memory and lock files whose owner is dead; with ``remove`` false, only show.

    ``units``: let systemd forget the units of launches that are over, as the next launch would.
    """

    remove: bool = True
    units: bool = False
    name = "sweep"
    effect = Effect.DESTROY

    def describe(self) -> str:
        return "sweep what dead servers left behind" if self.remove else "look for leftovers"

    def preview(self, ctx: StepContext) -> list[str]:
        found = look(ctx.session.agent, ctx.server.port)
        hidden = ("port",) if self.remove else ("port", "lock-file")
        verdicts = [verdict for verdict in found if verdict.leftover.kind not in hidden]
        lines = [leftover_line(verdict) for verdict in verdicts]
        return [*lines, "and what this server leaves behind when it ends"] if self.remove else lines

    def run(self, ctx: StepContext) -> StepResult:
        agent = ctx.session.agent
        verdicts = look(agent, ctx.server.port)
        doomed = [verdict.leftover.path for verdict in verdicts if verdict.removes]
        removed: list[dict[str, Any]] = []
        if self.remove and doomed:
            reply = agent.call("sweep.remove", {"paths": doomed}, timeout_s=30.0)
            removed = reply["removed"]
        if self.units:
            tidy(ctx)
        gone = {item["path"] for item in removed}
        data: dict[str, Any] = {
            "leftovers": [
                {
                    **asdict(verdict.leftover),
                    "reason": verdict.reason,
                    "removed": verdict.leftover.path in gone,
                }
                for verdict in verdicts
            ],
            "removed": len(removed),
            "removed_bytes": sum(item["size_bytes"] or 0 for item in removed),
            "summary": summary(verdicts, removed),
        }
        outcome = StepOutcome.DONE if removed else StepOutcome.UNCHANGED
        findings = tuple(leftover_findings(verdicts, gone))
        return StepResult(outcome, changed=bool(removed), findings=findings, data=data)


def look(agent: Agent, port: int) -> list[LeftoverVerdict]:
    """Read the leftovers where the server runs, and decide for each."""
    return judge_leftovers(read_leftovers(agent, ports=[port]))


def leftover_line(verdict: LeftoverVerdict) -> str:
    """Return one leftover in words."""
    size = verdict.leftover.size_bytes
    amount = f", {size / MIB:.1f} MiB" if size else ""
    verb = "remove" if verdict.removes else "keep"
    return f"{verb} {verdict.leftover.path}{amount}: {verdict.reason}"


def leftover_findings(verdicts: Sequence[LeftoverVerdict], gone: set[str]) -> list[Finding]:
    """Return a finding for the port that is still bound, JIT locks, and segments left in place."""
    findings = []
    # a lock file of ours that nobody holds is free, and in nobody's way: it is not worth a finding
    left = [
        verdict
        for verdict in verdicts
        if verdict.removes and verdict.leftover.kind == "shm" and verdict.leftover.path not in gone
    ]
    if left:
        total = sum(verdict.leftover.size_bytes or 0 for verdict in left)
        text = f"{_count(len(left))} of dead processes, {total / MIB:.1f} MiB"
        findings.append(Finding("leftovers", left[0].leftover.path, text, "remove with --sweep"))
    for verdict in verdicts:
        leftover = verdict.leftover
        if leftover.kind == "port":
            text = f"still bound: pid {leftover.owner_pid or 'unknown'} {leftover.detail}"
            findings.append(Finding("port-held", leftover.path, text, "stop that process first"))
        elif leftover.kind == "jit-lock" and leftover.owner_alive is None:
            text = f"a build lock is there: {leftover.detail}"
            step = f"when nothing is being built, remove it: rm {leftover.path}"
            findings.append(Finding("jit-lock", leftover.path, text, step))
    return findings


def summary(verdicts: Sequence[LeftoverVerdict], removed: Sequence[Any]) -> str:
    if removed:
        total = sum(item["size_bytes"] or 0 for item in removed)
        return f"removed {_count(len(removed))}, {total / MIB:.1f} MiB"
    kept = [verdict for verdict in verdicts if verdict.leftover.kind == "shm"]
    dead = [verdict for verdict in kept if verdict.removes]
    if dead:
        return f"{_count(len(dead))} of dead processes found"
    return f"{len(kept)} segments kept" if kept else "nothing left behind"


def _count(number: int) -> str:
    return f"{number} leftover{'' if number == 1 else 's'}"
