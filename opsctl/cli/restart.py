"""``opsctl restart``: stop by proof, patch, launch, prove; the main job."""

from __future__ import annotations

import click

from opsctl.cli.app import App, command


@command("restart", changes=True)
@click.argument("server")
@click.option("--smoke/--no-smoke", default=True, help="Quick smoke after ready.")
@click.option("--patch/--no-patch", default=True, help="Swap the server's patches in.")
@click.option("--reason", help="Why; it is shown to others and kept.")
@click.option("--again", default="", metavar="REASON", help="Repeat an attempt known to fail.")
@click.option(
    "--allow-known-bad", is_flag=True, help="Put in a patch that is known to break the server."
)
@click.option(
    "--deadline",
    "deadline_s",
    type=click.FloatRange(min=1),
    metavar="S",
    help="Bound the whole run, in seconds.",
)
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
