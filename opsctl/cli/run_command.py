"""``opsctl run``: any playbook, shipped or your own."""

from __future__ import annotations

import click

from opsctl.cli.app import App, command
from opsctl.cli.run_options import deadline_option, reason_option
from opsctl.errors import UsageError


@command("run", changes=True)
@click.argument("playbook")
@click.argument("server")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="An input; repeatable.")
@reason_option
@deadline_option
def run(
    app: App,
    playbook: str,
    server: str,
    sets: tuple[str, ...],
    reason: str | None,
    deadline_s: float | None,
) -> int:
    """Run PLAYBOOK (a name, or a path that ends in .yaml) for SERVER.

    \b
    Examples:
      opsctl run restart glm5 --set smoke=false
      opsctl run ./drain-and-stop.yaml glm5 --dry-run
    """
    from opsctl.cli.playbook_run import Order, run_order

    given = dict(_pair(item) for item in sets)
    return run_order(app, Order("run", playbook, server, given, reason, deadline_s))


def _pair(item: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not equals or not name:
        raise UsageError(f"'{item}' is not NAME=VALUE", subject=item)
    return name, value
