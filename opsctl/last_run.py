"""How a server's last run ended, for the status screen: read only, without SQLAlchemy, and never an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from opsctl.records import dataclass

LEDGER_WAIT_S = 0.2
# a look after the crash is no news about the server
QUERY = (
    "SELECT id, playbook, outcome, exit_code, signature FROM runs"
    " WHERE server = ? AND playbook <> 'evidence' ORDER BY started_s DESC, id DESC LIMIT 1"
)
# the same choice as the ledger's `whys`
STEP_QUERY = (
    "SELECT name, body FROM steps WHERE run = ? AND outcome NOT IN ('done', 'unchanged')"
    " ORDER BY started_s, position LIMIT 1"
)
DOCUMENT_QUERY = "SELECT document FROM runs WHERE id = ?"


@dataclass(frozen=True, slots=True)
class FailedRun:
    """The newest run of a server, which failed. ``log_kept``: `opsctl diagnose` can read its log.

    ``why``: the step that ended it, and what that found; None where the ledger does not tell.
    """

    run: str
    playbook: str
    outcome: str | None
    exit_code: int
    signature: str | None
    log_kept: bool
    why: str | None = None

    def describe(self) -> str:
        """Return the line of the status screen."""
        why = self.signature or self.why or self.outcome or "no signature"
        step = f"opsctl show {self.run}"
        if self.log_kept:
            step += f", opsctl diagnose {self.run}"
        return f"last run {self.run} failed (exit {self.exit_code}): {why}; next: {step}"


def last_failed_run(state: Path, server: str) -> FailedRun | None:
    """Return the server's newest run if it failed; None too where the ledger is absent, busy or broken."""
    path = state / "ledger.sqlite"
    try:
        if not path.is_file():
            return None
        return _read(path, state / "runs", server)
    except (OSError, ValueError):
        return None


def read_row(path: Path, query: str, value: str) -> tuple[Any, ...] | None:
    """Return the first row of a query with one value; None too where the ledger is absent or busy."""
    import sqlite3

    # without a WAL nobody has it open: read as it stands, or a mere look would leave a WAL behind
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=LEDGER_WAIT_S
        )
        try:
            row: tuple[Any, ...] | None = connection.execute(query, (value,)).fetchone()
        finally:
            connection.close()
    except sqlite3.Error:
        return None
    return row


def _read(path: Path, runs: Path, server: str) -> FailedRun | None:
    row = read_row(path, QUERY, server)
    if row is None or not row[3]:  # no exit code: still open
        return None
    run, playbook, outcome, code, signature = row
    kept = any((runs / run / name).is_file() for name in ("server.log", "server.log.gz"))
    return FailedRun(run, playbook, outcome, code, signature, kept, _why(path, run, outcome))


def _why(path: Path, run: str, outcome: str | None) -> str | None:
    """Return the step that ended a run with its first finding; a stop, which has no steps, tells its own."""
    step = read_row(path, STEP_QUERY, run)
    if step is not None:
        text = _first_text(step[1])
        return f"{step[0]}: {text}" if text else f"{step[0]} {outcome}"
    document = read_row(path, DOCUMENT_QUERY, run)
    return _first_text(document[0]) if document else None


def _first_text(body: str | None) -> str | None:
    found = (json.loads(body) if body else {}).get("findings") or ()
    return next((str(one.get("text")) for one in found if one), None)
