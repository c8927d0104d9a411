"""The options that restart and launch share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

reason_option = click.option("--reason", help="Why; it is shown to others and kept.")
deadline_option = click.option(
    "--deadline",
    "deadline_s",
    type=click.FloatRange(min=1),
    metavar="S",
    help="Bound the whole run, in seconds.",
)


def attempt_options(function: F) -> F:
    """Add what an attempt can be told: smoke, patches, reason, again, deadline."""
    for option in (
        deadline_option,
        click.option(
            "--allow-known-bad",
            is_flag=True,
            help="Put in a patch that is known to break the server.",
        ),
        click.option(
            "--again", default="", metavar="REASON", help="Repeat an attempt known to fail."
        ),
        reason_option,
        click.option("--patch/--no-patch", default=True, help="Swap the server's patches in."),
        click.option("--smoke/--no-smoke", default=True, help="Quick smoke after ready."),
    ):
        function = option(function)
    return function
