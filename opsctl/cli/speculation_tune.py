"""`opsctl speculation tune`: propose the threshold at which drafting stops to pay."""

from __future__ import annotations

import click

from opsctl.cli.app import App, command, emit


@command("tune")
@click.argument("server", required=False)
@click.option(
    "--baseline", metavar="RUN,...", required=True, help="Smoke runs without speculation."
)
@click.option("--speculation", metavar="RUN,...", required=True, help="Smoke runs with it.")
def tune(app: App, server: str | None, baseline: str, speculation: str) -> int:
    """Propose `disable_above` from measured smoke runs of the same server.

    Measure both over the same levels, best with --profile full and three times: single runs mislead.
    The threshold is the highest level up to which speculation never loses beyond the noise.

    \b
    Example:
      opsctl speculation tune glm5 --baseline a1b2,c3d4 --speculation e5f6,a7b8
    """
    from opsctl.cli.compare import read_sides
    from opsctl.output import Document, Finding
    from opsctl.smoke.tune import propose

    sides = read_sides(app, (f"baseline={baseline}", f"speculation={speculation}"))
    found = propose(*sides)
    subject = server or ""
    code = 21 if found.action == "unknown" else 0
    step = (
        f"servers: {{{server or 'SERVER'}: {{speculation: {{disable_above: {found.disable_above}}}}}}}"
        if found.action == "set"
        else ""
    )
    document = Document(
        "speculation tune",
        found.action,
        code,
        findings=[Finding(f"tune-{found.action}", subject, found.reason, step)],
        data={
            "server": server,
            "action": found.action,
            "disable_above": found.disable_above,
            "reason": found.reason,
            "comparison": found.comparison,
        },
    )
    return emit(app, document, lambda: f"{found.action}: {found.reason}")
