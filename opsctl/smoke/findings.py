"""What a smoke run has to say beyond its verdict, as findings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opsctl.domain.report import LevelReport, Outcome
from opsctl.output import Finding
from opsctl.smoke.judge import ACCEPT_DROP, Book
from opsctl.smoke.result import SmokeReport


def metrics_change(
    before: Mapping[str, float], after: Mapping[str, float] | None
) -> dict[str, Any]:
    change: dict[str, Any] = {
        "before": dict(before),
        "after": None if after is None else dict(after),
    }
    if after is not None:
        for name in ("retractions", "generation_tokens"):
            if name in before and name in after:
                change[name] = after[name] - before[name]
    return change


def batches_of(log: str) -> dict[str, Any]:
    """Return how many decode lines of a level's log ran in a CUDA graph, and how many did not."""
    eager = in_graph = 0
    for line in log.splitlines():
        if "Decode batch" in line:
            eager += "cuda graph: False" in line
            in_graph += "cuda graph: True" in line
    return {"decode_in_graph": in_graph, "decode_eager": eager} if eager or in_graph else {}


def _graph_finding(level: LevelReport, graphs: bool) -> Finding | None:
    """Say that most batches of a level ran without a graph, on a server that has some."""
    eager, in_graph = level.server.get("decode_eager", 0), level.server.get("decode_in_graph", 0)
    if not graphs or eager <= in_graph:
        return None
    return Finding(
        "eager-decode",
        f"level {level.concurrency}",
        f"{eager} of {eager + in_graph} decode lines ran without a CUDA graph: slower, not broken",
        "capture larger graphs (--cuda-graph-max-bs), or lower --max-running-requests",
    )


def add_findings(report: SmokeReport, book: Book) -> None:
    """Add what is worth telling to the report's findings."""
    subject = report.options.endpoint.url
    measured = [level for level in report.all_levels if level.requests]
    if not book.deterministic:
        report.findings.append(
            Finding(
                "not-deterministic",
                subject,
                "the same prompt gave two answers at temperature 0 without load: answers are not compared",
            )
        )
    if any(level.ok and level.tokens is None for level in measured):
        report.findings.append(
            Finding("no-usage", subject, "the server sends no usage: token rates are not known")
        )
    graphs = any(level.server.get("decode_in_graph") for level in measured)
    for level in measured:
        slow = _graph_finding(level, graphs)
        if slow is not None:
            report.findings.append(slow)
        retracted = level.server.get("retractions")
        if retracted:
            report.findings.append(
                Finding(
                    "retractions",
                    f"level {level.concurrency}",
                    f"{retracted:.0f} requests were retracted and run again: the KV pool was full",
                    "lower max-running-requests, or give the KV pool more memory",
                )
            )
        if level.accept_ratio is not None and level.accept_ratio < ACCEPT_DROP:
            report.findings.append(
                Finding(
                    "accept-length",
                    f"level {level.concurrency}",
                    f"the acceptance length is {level.accept_length:.2f}, "
                    f"{level.accept_ratio:.0%} of the first level's",
                    "expected where speculation is switched off by load; otherwise look at the draft",
                )
            )
        if (
            book.deterministic
            and level.answers
            and level.answers["wrong"]
            and level.outcome is Outcome.PASSED
        ):
            report.findings.append(
                Finding(
                    "answer-flipped",
                    f"level {level.concurrency}",
                    f"{level.answers['wrong']} answers differ from their start, within the allowance "
                    f"of {level.answers['allowed']['wrong_prompts']} prompts",
                )
            )
        if level.outcome is not Outcome.PASSED:
            report.findings.append(_level_finding(level))


def _level_finding(level: LevelReport) -> Finding:
    steps = {
        Outcome.CRASHED: "read the server's log of that moment: `opsctl diagnose LOG`",
        Outcome.HUNG: "dump the scheduler's stacks before anything is killed (py-spy dump)",
        Outcome.FAILED: "",
        Outcome.NOT_MEASURED: "nothing is claimed about the server; remove the limit and run again",
    }
    step = steps.get(level.outcome, "")
    if level.reason == "interrupted":
        step = "nothing is claimed about this level: it was cut short"
    return Finding(f"level-{level.outcome.value}", f"level {level.concurrency}", level.reason, step)
