"""A smoke report as a document, as text, and as it grows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from opsctl.domain.counted import counted
from opsctl.domain.report import LevelReport, Outcome, Spread
from opsctl.output import Document, Finding
from opsctl.smoke.run import SmokeReport
from opsctl.smoke.store import answers_to_json


def smoke_document(report: SmokeReport, run: str | None = None) -> Document:
    """Return the document of the output contract."""
    document = Document(
        "smoke",
        report.outcome,
        report.exit_code,
        run,
        findings=list(report.findings),
        data=report_data(report),
    )
    if report.interrupted:
        done = sum(1 for level in report.levels if level.outcome is Outcome.PASSED)
        document.findings.insert(
            0,
            Finding(
                "interrupted",
                report.options.endpoint.url,
                f"interrupted after {done} of {len(report.wanted)} levels; "
                f"{sum(level.cancelled for level in report.all_levels)} streams were cut",
            ),
        )
    return document


def report_data(report: SmokeReport, *, stored: bool = False) -> dict[str, Any]:
    """Return the report as data; what only later commands need is added when it is stored."""
    info = report.info
    data: dict[str, Any] = {
        "url": report.options.endpoint.url,
        "api": info.api,
        "server": {
            "kind": info.kind,
            "version": info.version,
            "model": info.model,
            "max_running": info.max_running,
            "context_tokens": info.context_tokens,
            "graph_sizes": list(info.graph_sizes),
            "speculation": info.speculation,
            "draft_tokens": info.draft_tokens,
        },
        "profile": report.options.profile,
        "seed": report.options.seed,
        "load": report.load,
        "wanted_levels": list(report.wanted),
        "levels": [level.to_dict(timeline=stored) for level in report.levels],
        "down": [level.to_dict(timeline=stored) for level in report.down],
        "mixed": None if report.mixed is None else report.mixed.to_dict(timeline=stored),
        "bracket": report.bracket,
        "bisection": report.bisection,
        "diagnosis": report.diagnosis,
        "evidence": report.evidence,
        "interrupted": report.interrupted,
        "seconds": round(report.seconds, 3),
        "warmup_s": None if report.warmup_s is None else round(report.warmup_s, 3),
    }
    if stored:
        data["outcome"] = report.outcome
        data["answers"] = answers_to_json(report.answers)
        data["at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        data["findings"] = [
            {"code": f.code, "subject": f.subject, "text": f.text, "next": f.next}
            for f in report.findings
        ]
    return data


COLUMNS = ("C", "outcome", "requests", "failed", "tok/s", "TTFT p50", "p99", "ITL p50", "p99")


def level_cells(level: LevelReport) -> list[str]:
    """Return one level as the cells of the table; times in ms."""

    def cell(value: Spread | None, name: str) -> str:
        return "-" if value is None else f"{getattr(value, name):.1f}"

    mark = {"down": " down", "mixed": " mixed", "warm-up": " warm-up"}.get(level.phase, "")
    rate = "-" if level.output_tok_s is None else f"{level.output_tok_s:.1f}"
    return [
        f"{level.concurrency}{mark}",
        level.outcome.value,
        str(level.requests),
        str(level.failed),
        rate,
        cell(level.ttft_ms, "p50"),
        cell(level.ttft_ms, "p99"),
        cell(level.itl_ms, "p50"),
        cell(level.itl_ms, "p99"),
    ]


def text_report(report: SmokeReport, run: str | None) -> str:
    """Return the report that a person reads: the table, then the verdict."""
    info = report.info
    what = " ".join(part for part in (info.kind, info.version, info.model) if part)
    sender = {"host": "sent from the server's host, ", "tunnel": "sent through a tunnel, "}
    way = sender.get(report.load.get("from", "here"), "")
    how = f"{info.api}, {report.options.profile} profile, {way}closed loop; times in ms"
    lines = [
        f"{report.options.endpoint.url}  {what}  {how}",
        "",
        *table([list(COLUMNS), *(level_cells(level) for level in report.all_levels)]),
        "",
    ]
    bracket = report.bracket
    if bracket is not None:
        good = "none" if bracket["last_good"] is None else f"C={bracket['last_good']}"
        lines.append(f"bracket: last good {good}, first bad C={bracket['first_bad']}")
    if report.bisection:
        ways = {True: "every time", False: "not every time: flaky", None: "not repeated"}
        words = ways[report.bisection["deterministic"]]
        lines.append(f"bisected: first bad C={report.bisection['first_bad']}, it fails {words}")
    if report.diagnosis:
        lines.append(f"diagnosis: {report.diagnosis.get('category') or 'unknown'}")
        explanation = report.diagnosis.get("explanation")
        if explanation:
            lines.append(f"  {explanation}")
    lines.append(f"verdict: {report.outcome}" + (f"  (run {run})" if run else ""))
    return "\n".join(lines)


def table(rows: list[list[str]]) -> list[str]:
    """Return rows as aligned lines; numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


class PlainView:
    """Plain lines on stderr, one per step: for CI."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write or _to_stderr

    def __call__(self, kind: str, payload: dict[str, Any]) -> None:
        if kind == "start":
            levels = ", ".join(map(str, payload["levels"]))
            info = payload["info"]
            self._write(f"smoke: {info.kind} server, {info.api} route, levels {levels}")
        elif kind == "level":
            way = "" if payload["phase"] == "up" else f" ({payload['phase']})"
            self._write(
                f"C={payload['concurrency']}{way}: {counted(payload['requests'], 'request')}"
            )
        elif kind == "confirm":
            self._write(f"sign of trouble: {payload['sign'].detail}; looking whether it lives")
        elif kind == "evidence":
            self._write("collecting evidence")
        elif kind == "level-end":
            level: LevelReport = payload["level"]
            rate = "" if level.output_tok_s is None else f", {level.output_tok_s:.1f} tok/s"
            ttft = "" if level.ttft_ms is None else f", TTFT p50 {level.ttft_ms.p50:.1f} ms"
            why = f": {level.reason}" if level.reason else ""
            self._write(f"C={level.concurrency}: {level.outcome.value}{rate}{ttft}{why}")

    def close(self) -> None:
        """Nothing to close: each line is whole."""


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
