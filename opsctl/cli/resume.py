"""``opsctl resume``: go on with a run that was cut; it looks first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opsctl.cli.app import App, command, emit
from opsctl.errors import UsageError
from opsctl.output import Document

if TYPE_CHECKING:
    from opsctl.domain.runs import RunDetail, RunRow


@command("resume", changes=True)
@click.argument("run", required=False, metavar="[RUN]")
def resume(app: App, run: str | None) -> int:
    """Go on with RUN (its id, or a part of it) where it was cut; without RUN, list what is open.

    It looks first and does only what is missing: a server that RUN has launched is found by the run's
    id and never launched a second time.

    \b
    Examples:
      opsctl resume             what is open
      opsctl resume 3f2a --yes
    """
    from opsctl.ledger import Ledger
    from opsctl.runner import RESUMABLE

    ledger = Ledger.open(app.state())
    try:
        if run is None:
            return list_open(app, [row for row in ledger.runs() if row.outcome in RESUMABLE])
        detail = ledger.find(run)
    finally:
        ledger.close()
    if detail.run.outcome not in RESUMABLE:
        raise UsageError(
            f"run {detail.run.id} has ended: {detail.run.outcome}",
            subject=detail.run.id,
            next_step=f"see `opsctl show {detail.run.id}`; a new attempt is a new run",
        )
    return go_on(app, detail)


def go_on(app: App, detail: RunDetail) -> int:
    """Run the same playbook with the same inputs under the same run id."""
    from opsctl.cli.playbook_run import Order, run_order

    inputs = detail.inputs
    order = Order(
        str(inputs.get("command") or detail.run.playbook),
        detail.run.playbook,
        detail.run.server,
        inputs.get("given") or {},
        detail.run.reason,
        inputs.get("deadline_s"),
    )
    return run_order(app, order, detail)


def list_open(app: App, rows: list[RunRow]) -> int:
    from dataclasses import asdict

    from opsctl.cli.history import table

    document = Document("resume", "done", data={"runs": [asdict(row) for row in rows]})
    return emit(app, document, lambda: table(rows) if rows else "nothing is open")
