"""Read what the page shows: rows of the ledger, details of the newest, smoke results beside it."""

from __future__ import annotations

from pathlib import Path

from opsctl.domain.runs import RunRow
from opsctl.errors import UsageError
from opsctl.ledger import Ledger
from opsctl.report.content import Run, Smoke, smoke_of
from opsctl.smoke.store import load_result

DETAILED = 100  # the newest runs of which everything is shown


def gather(ledger: Ledger, state: Path, rows: list[RunRow], detailed: int = DETAILED) -> list[Run]:
    """Return the runs, newest first; the newest ``detailed`` with everything that is known of them.

    Of each signature the newest run is detailed too, so that the signature can be explained.
    """
    wanted = {row.id for row in rows[:detailed]}
    explained: set[str] = set()
    for row in rows:
        if row.signature and row.signature not in explained and len(explained) < detailed:
            explained.add(row.signature)
            wanted.add(row.id)
    return [_whole(ledger, state, row) if row.id in wanted else Run(row) for row in rows]


def _whole(ledger: Ledger, state: Path, row: RunRow) -> Run:
    try:
        detail = ledger.detail(row)
    except ValueError:
        return Run(row)  # a damaged record: its row is still worth showing
    smoke = smoke_of(detail)
    if row.playbook == "smoke" and smoke is not None:
        smoke = {**smoke, **_kept(state, row.id)}
    return Run(row, detail, smoke)


def _kept(state: Path, run: str) -> Smoke:
    """Return the evidence and timelines that the smoke's own file has; nothing when it is gone."""
    try:
        return load_result(state, run)
    except UsageError:
        return {}
