"""``opsctl history`` and ``opsctl show``: what was done, by whom, why, and how it ended."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opsctl.cli.app import App, command, emit
from opsctl.output import Document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opsctl.domain.runs import RunDetail, RunRow
    from opsctl.ledger import Ledger


@command("history")
@click.argument("server", required=False)
@click.option("--failed", is_flag=True, help="Only runs that ended with another exit code than 0.")
@click.option(
    "--signature", metavar="S", help="Only runs with this crash signature (its beginning)."
)
@click.option(
    "-n", "limit", type=click.IntRange(1), default=50, show_default=True, help="Newest N."
)
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option(
    "--html",
    "html_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write them into one HTML file: servers, curves, signatures, steps, evidence.",
)
def history(
    app: App,
    server: str | None,
    failed: bool,
    signature: str | None,
    limit: int,
    everything: bool,
    html_path: Path | None,
) -> int:
    """List runs, newest first: outcome, crash signature, who, why it was begun, and what stopped it.

    \b
    Examples:
      opsctl history glm5 --failed
      opsctl history --signature 3f2a --json
      opsctl history -n 500 --html runs.html
    """
    from opsctl.ledger import Ledger

    ledger = Ledger.open(app.state())
    try:
        rows = ledger.runs(
            server=server,
            failed=failed,
            signature=signature,
            limit=None if everything else limit,
        )
        whys = ledger.whys(rows)
        data: dict[str, Any] = {"runs": [{**asdict(row), "why": whys.get(row.id)} for row in rows]}
        if html_path is not None:
            total = ledger.count(server=server, failed=failed, signature=signature)
            question = words_of(server, failed, signature)
            data["html"] = write_html(app, ledger, rows, total, question, html_path)
    finally:
        ledger.close()
    document = Document("history", "done", data=data)
    return emit(app, document, lambda: table(rows, whys) if html_path is None else data["html"])


def words_of(server: str | None, failed: bool, signature: str | None) -> str:
    """Return what was asked for, in words."""
    words = [f"of {server}"] if server else []
    words += ["that failed"] if failed else []
    words += [f"with signature {signature}"] if signature else []
    return " ".join(words)


def write_html(
    app: App, ledger: Ledger, rows: list[RunRow], total: int, question: str, path: Path
) -> str:
    """Write the page whole or not at all; return its path. Raises UsageError."""
    from opsctl.errors import UsageError
    from opsctl.report.content import make_content
    from opsctl.report.gather import gather
    from opsctl.report.page import history_page

    runs = gather(ledger, app.state(), rows)
    content = make_content(
        runs, total=total, source=str(app.state()), at_s=time.time(), question=question
    )
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(history_page(content), encoding="utf-8", errors="replace")
        part.replace(path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", subject=str(path)
        ) from error
    return str(path)


@command("show")
@click.argument("run", metavar="RUN")
def show(app: App, run: str) -> int:
    """Show one run: attempt, steps, findings, result. RUN: its id, a part of it, or last.

    \b
    Examples:
      opsctl show last
      opsctl show 3f2a
    """
    from opsctl.ledger import Ledger

    ledger = Ledger.open(app.state())
    try:
        detail = ledger.find(run)
    finally:
        ledger.close()
    data = {"run": asdict(detail), "document": detail.document}
    document = Document("show", detail.run.outcome or "open", run=detail.run.id, data=data)
    return emit(app, document, lambda: describe(detail))


def table(rows: list[RunRow], whys: Mapping[str, str] | None = None) -> str:
    """Return runs as a table; ``whys`` tells by run what stopped those that did not end well."""
    if not rows:
        return "no runs"
    from opsctl.cli.render import columns

    width = shutil.get_terminal_size((120, 24)).columns
    cells = []
    for row in rows:
        outcome = row.outcome or "open"
        if row.exit_code:
            outcome += f" {row.exit_code}"
        begun = f"  {row.reason}" if row.reason else ""
        why = (whys or {}).get(row.id)
        stopped = f"  ({one_line(why, width - 4)})" if why else ""
        cells.append(
            (
                row.id,
                time.strftime("%Y-%m-%d %H:%M", time.gmtime(row.started_s)),
                row.server,
                row.playbook,
                outcome,
                row.signature or "-",
                f"{row.who}{begun}{stopped}",
            )
        )
    head = ("run", "when (UTC)", "server", "what", "outcome", "signature", "who, why")
    return "\n".join(columns(cells, head, indent=0, whole=True))


def one_line(text: str, width: int) -> str:
    """Return a reason in at most one line; `show` has all of it."""
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: max(1, width - 3)]}..."


def describe(detail: RunDetail) -> str:
    """Return one run as a person reads it."""
    run = detail.run
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(run.started_s))
    took = f", took {run.ended_s - run.started_s:.1f} s" if run.ended_s else ""
    lines = [
        f"run {run.id}: {run.playbook} {run.server}",
        f"  {when}{took}, by {run.who}" + (f", because: {run.reason}" if run.reason else ""),
        f"  outcome {run.outcome or 'open'}"
        + (f", exit {run.exit_code}" if run.exit_code is not None else ""),
    ]
    lines += _content(detail.facts.get("content") or {}, run.fingerprint)
    lines += _differences(detail)
    lines += ["  steps:"] if detail.steps else []
    for step in detail.steps:
        seconds = f"{step.ended_s - step.started_s:7.2f} s" if step.ended_s else "   never ended"
        note = (step.body.get("data") or {}).get("summary") or ""
        if not note and step.outcome not in ("done", "unchanged"):
            note = _first_finding(step.body)
        again = f" (turn {step.turn + 1})" if step.turn else ""
        lines.append(f"    {step.name + again:<18} {step.outcome or 'begun':<11} {seconds}  {note}")
    document = detail.document or {}
    lines += _levels(document.get("data") or {})
    for finding in document.get("findings") or []:
        subject = f"{finding['subject']}: " if finding.get("subject") else ""
        lines.append(f"  {subject}{finding['text']}")
        if finding.get("next"):
            lines.append(f"    next: {finding['next']}")
    downtime = (document.get("data") or {}).get("downtime")
    if downtime:
        parts = ", ".join(
            f"{name.removesuffix('_s')} {value:.2f}" for name, value in downtime.items()
        )
        lines.append(f"  downtime in s: {parts}")
    return "\n".join(lines)


def _levels(data: Mapping[str, Any]) -> list[str]:
    """Return one line per level of the smoke in a run's document."""
    smoke = data if "levels" in data else data.get("smoke") or {}
    lines = []
    for level in smoke.get("levels") or ():
        rate, first = level.get("output_tok_s"), (level.get("ttft_ms") or {}).get("p50")
        words = [level["outcome"] + (f" ({level['reason']})" if level.get("reason") else "")]
        words += [f"{rate:.1f} tok/s"] if rate is not None else []
        words += [f"TTFT p50 {first:.1f} ms"] if first is not None else []
        lines.append(f"    C={level['concurrency']}: {', '.join(words)}")
    return ["  levels:", *lines] if lines else []


def _differences(detail: RunDetail) -> list[str]:
    """Return all that differs from the last comparable run that passed, one a line."""
    data = next((s.body.get("data") or {} for s in detail.steps if s.name == "known-failure"), {})
    found = data.get("differences") or ()
    return ["  differs from the last good run:", *(f"    {one}" for one in found)] if found else []


def _first_finding(body: dict[str, Any]) -> str:
    """Return the first thing that a step found: why it did not do what it should."""
    return next((str(finding.get("text")) for finding in body.get("findings") or ()), "")


def _content(content: dict[str, Any], fingerprint: str | None) -> list[str]:
    if not content:
        return []
    patches = ", ".join(f"{k} {v[:8]}" for k, v in (content.get("patches") or {}).items()) or "none"
    package = f"{content.get('package') or 'own command'} {content.get('package_version') or ''}"
    gpu = content.get("gpu_model") or "no GPU"
    arguments = " ".join(content.get("arguments") or [])
    head = f"  attempt {fingerprint}: {package.strip()} on {gpu}, patches: {patches}"
    return [head, f"  arguments: {arguments}"]
