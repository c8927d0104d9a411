"""`opsctl history` over 10,000 runs, against sqlite3's own shell of Python reading the same rows."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure, in_turns, process

RUNS = 10_000
PEER = """
import sqlite3, sys
rows = sqlite3.connect(sys.argv[1]).execute(
    "select id, started_s, server, playbook, outcome, who from runs order by started_s desc")
print("\\n".join("%s %s %s %s %s %s" % row for row in rows))
"""


def run() -> list[Figure]:
    """Measure the whole process with ``--all`` against one query that prints the same rows."""
    with tempfile.TemporaryDirectory() as folder:
        file = fill(Path(folder))
        argv = [sys.executable, "-m", "opsctl", "history", "--all", "--state", folder]
        peer = [sys.executable, "-c", PEER, str(file)]
        ours_ms, peer_ms = in_turns(process(argv), process(peer), 9)
    note = f"{ours_ms / peer_ms:.1f} x of Python's sqlite3 printing the same rows"
    return [Figure(f"opsctl history, {RUNS:,} runs", ours_ms, None, 600.0, note=note)]


def fill(folder: Path) -> Path:
    """Write a ledger with many runs; return its file."""
    from opsctl import ledger_tables as tables
    from opsctl.ledger import Ledger

    row: dict[str, Any] = {
        "server": "glm5",
        "playbook": "restart",
        "outcome": "done",
        "exit_code": 0,
        "who": "ann@desk",
        "inputs": "{}",
        "document": "x" * 3000,
    }
    ledger = Ledger.open(folder)
    with ledger._engine.begin() as connection:
        rows = [{**row, "id": f"r{n:05}", "started_s": float(n)} for n in range(RUNS)]
        connection.execute(tables.runs.insert(), rows)
    ledger.close()
    return folder / "ledger.sqlite"
