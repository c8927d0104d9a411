"""``opsctl launch``: start a server that does not run, and prove it."""

from __future__ import annotations

import click

from opsctl.cli.app import App, command
from opsctl.cli.run_options import attempt_options


@command("launch", changes=True)
@click.argument("server")
@attempt_options
def launch(
    app: App,
    server: str,
    smoke: bool,
    patch: bool,
    reason: str | None,
    again: str,
    allow_known_bad: bool,
    deadline_s: float | None,
) -> int:
    """Launch SERVER so that it outlives this command, and prove it healthy.

    It is refused when the server runs already; `opsctl restart` is for that.

    \b
    Examples:
      opsctl launch glm5
      opsctl launch glm5 --yes --no-smoke --json
    """
    from opsctl.cli.playbook_run import Order, run_order

    given = {"smoke": smoke, "patch": patch, "again": again, "allow_known_bad": allow_known_bad}
    return run_order(app, Order("launch", "launch", server, given, reason, deadline_s))
