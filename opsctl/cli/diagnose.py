"""``opsctl diagnose``: say what went wrong in a log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from opsctl.cli.app import App, command, emit
from opsctl.cli.seen import last_passed, own_patches
from opsctl.errors import ConfigError, OpsctlError, UsageError
from opsctl.output import Document, Finding

if TYPE_CHECKING:
    from opsctl.domain.crash import Context, Diagnosis
    from opsctl.domain.runs import RunRow
    from opsctl.ledger import Ledger

SEEN_ROWS = 5
EXIT_CODES = {"healthy": 0, "notice": 0, "fault": 20, "unknown": 21}
"""20 = looked, and it is bad; 21 = could not tell. Not 60: that is the code of the command that saw the
server die, and a log that is read here may be days old."""


@command("diagnose")
@click.argument("source", metavar="LOG|RUN|-")
@click.option(
    "--level", type=click.IntRange(min=1), help="Concurrency at which it failed, in requests."
)
@click.option(
    "--draft-tokens",
    type=click.IntRange(min=1),
    help="Draft tokens per request, if the log lacks them.",
)
@click.option(
    "--context-length",
    type=click.IntRange(min=1),
    help="Context length in tokens, if the log lacks it.",
)
@click.option(
    "--threshold", type=click.IntRange(min=0), help="Speculation is off above this many requests."
)
@click.option("--tp", type=click.IntRange(min=1), help="Tensor parallel size, if the log lacks it.")
def diagnose_command(
    app: App,
    source: str,
    level: int | None,
    draft_tokens: int | None,
    context_length: int | None,
    threshold: int | None,
    tp: int | None,
) -> int:
    """Say what went wrong in a log of SGLang (or vLLM), or in the log of a run.

    LOG is any log file: plain, .gz, output of journalctl, docker or dmesg, a captured stream; - is stdin.
    RUN is a run's id or a part of it; last: the newest run that kept a log.
    Exit code 0: nothing abnormal, or only a notice; 20: a fault was found; 21: could not tell.

    \b
    Examples:
      opsctl diagnose /var/log/sglang.log
      opsctl diagnose last
      journalctl -u opsctl-glm5 -o short-iso | opsctl diagnose -
    """
    from opsctl.domain.crash import Context, Launch

    launch = Launch(
        draft_tokens=draft_tokens, context_length=context_length, threshold=threshold, tp=tp
    )
    found, run = read_and_diagnose(app, source, Context(level=level, launch=launch))
    if source == "last" and run is not None and not app.as_json:
        click.echo(f"last: the log of run {run}, the newest run that kept one", err=True)
    source = run or source
    document = make_document(source, found)
    document.data["run"] = run
    seen = seen_before(app, found.signature)
    document.data["seen"] = seen
    if not app.as_json:
        document.findings.clear()  # the text says it all
    return emit(
        app, document, lambda: "\n".join([describe(source, found), *_seen_words(seen, run)])
    )


def read_and_diagnose(app: App, source: str, context: Context) -> tuple[Diagnosis, str | None]:
    """Diagnose a file, standard input, or the log that the ledger keeps for a run; and name that run."""
    from opsctl.domain.crash import diagnose
    from opsctl.sglang.log import open_log, read_lines, read_records, unpack
    from opsctl.sglang.order import in_order, mirrored

    stream: IO[bytes]
    try:
        path = None if source == "-" else find_log(app, source)
        stream = unpack(sys.stdin.buffer) if path is None else open_log(path)
        with stream:
            run = _run_of(app, path)
            if run is not None:
                _take_record(app, run, context)
            lines, turned = in_order(read_lines(stream))
            found = diagnose(read_records(lines), context)
            return (mirrored(found, turned) if turned else found), run
    except OSError as error:
        raise ConfigError(
            f"cannot read {source}: {error.strerror or error}", code="unreadable", subject=source
        ) from error


def find_log(app: App, source: str) -> Path:
    """Return the log that ``source`` names: a file, or a run whose log was kept in the state folder."""
    path = Path(source).expanduser()
    if path.is_dir():
        raise UsageError(
            f"{source} is a folder", next_step="name one log file, or - for stdin", subject=source
        )
    if path.exists():
        return path
    if "/" not in source and (kept := _log_of_run(app, source)) is not None:
        return kept
    raise UsageError(
        f"there is no file and no run {source!r}",
        next_step="give a log file, - for stdin, or a run of `opsctl history`",
        code="no-such-log",
        subject=source,
    )


def _take_record(app: App, run: str, context: Context) -> None:
    """Take the server's name and the recorded arguments of a run, so that no advice contradicts them."""
    from opsctl.domain.crash import launch_of

    try:
        with _ledger(app) as ledger:
            if ledger is None:
                return
            detail = ledger.find(run)
            passed = last_passed(ledger, detail.run.server)
    except OpsctlError:
        return  # the log can be judged without the ledger
    if ":" not in detail.run.server:  # a smoke of a URL has no name
        context.server = detail.run.server
    content = detail.facts.get("content") or {}
    context.recorded = launch_of(content.get("arguments") or ())
    bracket = ((detail.document or {}).get("data") or {}).get("bracket") or {}
    first_bad = bracket.get("first_bad")
    if first_bad is not None and context.level in (None, first_bad):
        context.exact = first_bad <= (bracket.get("last_good") or 0) + 1
    if content.get("patches"):
        from opsctl.patch_advice import advice

        context.way_out = advice(content, context.server, passed, own_patches(app))


def _log_of_run(app: App, run: str) -> Path | None:
    """Return the kept log of a run, by its id, a part of it, or ``last``; None without such a run.

    ``last`` is the newest run that kept a log: a look or a refusal after the crash keeps none.
    """
    if (_runs(app) / run).is_dir():
        name, rows = run, _rows(app)
    else:
        rows = _rows(app)
        if run == "last":
            rows = [row for row in rows if _kept(app, row.id)] or rows[:1]
        found = _full_id(rows, run)
        if found is None:
            return None
        name = found
    kept = _kept(app, name)
    if kept is not None:
        return kept
    step = f"see what it recorded: `opsctl show {name}`"
    server = next((row.server for row in rows if row.id == name and ":" not in row.server), None)
    if server is not None:
        step += f"; the server's log of now: `opsctl logs {server}`"
    other = _newest_with_log(app, rows, name)
    if other is not None:
        step = f"the newest run of its server that kept one: `opsctl diagnose {other}`; or {step}"
    raise UsageError(
        f"no log was kept for run {name}", next_step=step, code="no-such-log", subject=name
    )


def _kept(app: App, name: str) -> Path | None:
    files = (_runs(app) / name / kept for kept in ("server.log", "server.log.gz"))
    return next((file for file in files if file.is_file()), None)


def _newest_with_log(app: App, rows: list[RunRow], name: str) -> str | None:
    server = next((row.server for row in rows if row.id == name), None)
    return next((row.id for row in rows if row.server == server and _kept(app, row.id)), None)


def _run_of(app: App, path: Path | None) -> str | None:
    """Return the run that a log was kept for; None for any other file."""
    return path.parent.name if path is not None and path.parent.parent == _runs(app) else None


def _runs(app: App) -> Path:
    return _state(app) / "runs"


def _state(app: App) -> Path:
    from opsctl.cli.app import _default_state_dir

    return app.state_dir or _default_state_dir()


@contextmanager
def _ledger(app: App) -> Iterator[Ledger | None]:
    """The ledger when there is one: reading a log never makes one."""
    if not (_state(app) / "ledger.sqlite").is_file():
        yield None
        return
    from opsctl.ledger import Ledger

    ledger = Ledger.open(_state(app))
    try:
        yield ledger
    finally:
        ledger.close()


def _rows(app: App) -> list[RunRow]:
    with _ledger(app) as ledger:
        return [] if ledger is None else ledger.runs()


def _full_id(rows: list[RunRow], run: str) -> str | None:
    if run == "last" and rows:
        return rows[0].id
    found = [row.id for row in rows if run in row.id]
    if len(found) > 1:
        step = "give more of its id; `opsctl history --all` lists them, `last` is the newest"
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        text = f"'{run}' fits {len(found)} runs: {', '.join(found[:4])}{more}"
        raise UsageError(text, subject=run, next_step=step)
    return found[0] if found else None


def seen_before(app: App, signature: str | None) -> list[dict[str, Any]]:
    """Return the runs of the ledger that ended with this signature, newest first, and their patches."""
    if signature is None:
        return []
    from opsctl.cli import seen

    try:
        with _ledger(app) as ledger:
            return [] if ledger is None else seen.seen_before(ledger, signature, SEEN_ROWS)
    except OpsctlError:
        return []  # the log can be judged without the ledger


def make_document(source: str, found: Diagnosis) -> Document:
    """Return the result document of one diagnosis."""
    severity = found.severity
    findings = []
    if severity != "healthy":
        findings.append(
            Finding(found.category or "", source, found.explanation, "; ".join(found.next[:1]))
        )
    outcome = found.category or "healthy"
    return Document(
        "diagnose", outcome, EXIT_CODES[severity], findings=findings, data=found.as_data()
    )


def describe(source: str, found: Diagnosis) -> str:
    """Return the diagnosis as the text that a person reads."""
    if found.category is None:
        return f"healthy: {found.explanation}"
    rows = [
        f"{found.category}  (confidence {found.confidence:.2f})",
        f"  meaning       {found.explanation}",
    ]
    if found.first_record:
        place = f"{source}:{found.line}" if found.line else source
        rows.append(f"  first record  {place}\n                {found.first_record}")
    if found.noticed_in:
        rows.append(f"  noticed in    {found.noticed_in}")
    others = [first for first in found.ranks if first.rank is not None and first.line != found.line]
    for first in others[:8]:
        rows.append(f"  {first.rank:<13} line {first.line}: {first.text[:140]}")
    if len(others) > 8:
        rows.append(f"                and {len(others) - 8} more ranks")
    if found.last_batch:
        rows.append(f"  last batch    {found.last_batch[:200]}")
    if found.also:
        rows.append(f"  also seen     {', '.join(found.also)}")
    rows += [f"  next          {step}" for step in found.next]
    if found.signature:
        rows.append(f"  signature     {found.signature}")
    return "\n".join(rows)


def _seen_words(seen: list[dict[str, Any]], run: str | None) -> list[str]:
    """Return what the ledger knows of the signature; the run that is diagnosed is no earlier one."""
    from opsctl.cli.seen import passed_words, run_words

    rows = [f"  seen before   {run_words(one)}" for one in seen if one["run"] != run]
    if seen and not rows:
        rows.append("  seen before   no: this run is the first with this signature")
    return rows + [f"                {words}" for words in passed_words(seen)]
