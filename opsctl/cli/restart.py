"""``opsctl restart``: stop by proof, patch, launch, prove; the main job."""

from __future__ import annotations

import click

from opsctl.cli.app import App, command
from opsctl.cli.run_options import attempt_options


@command("restart", changes=True)
@click.argument("server")
@attempt_options
def restart(
    app: App,
    server: str,
    smoke: bool,
    patch: bool,
    reason: str | None,
    again: str,
    allow_known_bad: bool,
    deadline_s: float | None,
) -> int:
    """Stop SERVER by proof, prove its GPU memory free, swap patches in, launch it, and prove it healthy.

    Whatever can fail without the stop fails before it: until the question is answered, the running
    server is not touched.

    \b
    Examples:
      opsctl restart glm5 --dry-run
      opsctl restart glm5 --reason "graph crash at 10"
      opsctl restart glm5 --yes --json --deadline 1800        (CI)
    """
    from opsctl.cli.playbook_run import Order, run_order

    given = {"smoke": smoke, "patch": patch, "again": again, "allow_known_bad": allow_known_bad}
    return run_order(app, Order("restart", "restart", server, given, reason, deadline_s))
