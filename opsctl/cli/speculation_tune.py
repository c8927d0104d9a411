"""`opsctl speculation tune`: propose the threshold at which drafting stops to pay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opsctl.cli.app import App, command, emit

if TYPE_CHECKING:
    from opsctl.smoke.compare import Side


@command("tune", changes=True)
@click.argument("server", required=False)
@click.option("--baseline", metavar="RUN,...", help="Smoke runs without speculation.")
@click.option("--speculation", metavar="RUN,...", help="Smoke runs with it.")
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Measurements of each side, in turns.",
)
@click.option("--levels", help="Concurrency levels, ascending: 1,2,5,10. Default: the server's.")
@click.option(
    "--profile",
    type=click.Choice(["quick", "full"]),
    default="full",
    show_default=True,
    help="How long each level is.",
)
def tune(
    app: App,
    server: str | None,
    baseline: str | None,
    speculation: str | None,
    repeats: int,
    levels: str | None,
    profile: str,
) -> int:
    """Propose `disable_above` from smoke runs of a server with and without speculation.

    With --baseline and --speculation only those runs are read. Without them SERVER is measured: it is
    restarted without its speculative flags, smoked, restarted as the site says, smoked. The
    threshold is the highest level up to which speculation never loses beyond the noise.

    \b
    Examples:
      opsctl speculation tune glm5 --repeats 3
      opsctl speculation tune --baseline a1b2,c3d4 --speculation e5f6,a7b8
    """
    from opsctl.cli.compare import read_sides
    from opsctl.errors import UsageError
    from opsctl.output import Document

    if bool(baseline) != bool(speculation):
        raise UsageError("--baseline and --speculation go together")
    if baseline is None and server is None:
        raise UsageError(
            "name a server to measure, or give --baseline and --speculation",
            next_step="the servers of this site: `opsctl config check --json`",
        )
    if baseline is None or speculation is None:
        from opsctl.cli.speculation_measure import plan_text, sides_by_measuring

        assert server is not None
        if app.dry_run:
            document = Document("speculation tune", "planned", data={"server": server})
            return emit(app, document, lambda: plan_text(app, server, repeats))
        baseline, speculation = sides_by_measuring(app, server, repeats, levels, profile)
    sides = read_sides(app, (f"baseline={baseline}", f"speculation={speculation}"))
    return _propose(app, server, sides)


def _propose(app: App, server: str | None, sides: list[Side]) -> int:
    from opsctl.output import Document, Finding
    from opsctl.smoke.tune import propose

    found = propose(*sides)
    subject = server or ""
    step = ""
    if found.action == "set":
        wish = f"speculation: {{disable_above: {found.disable_above}}}"
        step = f"servers: {{{server or 'SERVER'}: {{{wish}}}}}"
    document = Document(
        "speculation tune",
        found.action,
        21 if found.action == "unknown" else 0,
        findings=[Finding(f"tune-{found.action}", subject, found.reason, step)],
        data={
            "server": server,
            "action": found.action,
            "disable_above": found.disable_above,
            "reason": found.reason,
            "runs": {side.label: [str(run.get("run")) for run in side.runs] for side in sides},
            "comparison": found.comparison,
        },
    )
    return emit(app, document, lambda: f"{found.action}: {found.reason}")
