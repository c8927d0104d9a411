"""`opsctl speculation`: how a server's drafting is turned off under load, and why in that way."""

from __future__ import annotations

from pathlib import Path

import click

from opsctl.cli.app import App, command, emit
from opsctl.cli.speculation_tune import tune
from opsctl.errors import SafetyRefusal
from opsctl.output import Document, Finding


@click.group("speculation")
def speculation() -> None:
    """Explain how drafting stops under load.

    `speculation: {disable_above: N}` of a server is a wish. What fulfils it depends on the installed
    version and the set-up: a launch flag, a source patch, or nothing can.

    \b
    Example:
      opsctl speculation explain glm5
    """


@command("explain")
@click.argument("server")
@click.option(
    "--patches",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Another folder of patches.",
)
def explain(app: App, server: str, folder: Path | None) -> int:
    """Say by what `disable_above` is fulfilled on the server's host, with the launch arguments.

    Exit 50 when nothing can fulfil it.

    \b
    Example:
      opsctl speculation explain glm5
    """
    from opsctl.cli.patch import open_work
    from opsctl.domain.speculation import Means, resolve, without_a_wish
    from opsctl.site_cache import load_site

    entry = load_site(app.site_path).servers.get(server)
    with open_work(app, server, (), folder) as work:
        seen = work.look()[0]
        library = work.library
    assert entry is not None  # open_work has refused an unknown server
    report = seen.report("spec-disable-v2")
    wish = entry.speculation
    env = {key: value for key, value in entry.env.items() if isinstance(value, str)}
    found = resolve(
        seen.version,
        entry.args,
        env,
        wish.disable_above if wish else None,
        wish.margin if wish else 1,
        report is not None and report.variant is not None,
    )
    refused = found.means is Means.REFUSED
    findings = (
        [Finding("speculation-refused", server, found.reason, found.way_out or "")]
        if refused
        else []
    )
    if wish is None and (
        said := without_a_wish(library, seen.applied, entry.patches, seen.version, entry.args)
    ):
        findings.append(Finding("speculation-patch", server, *said))
    data = {
        "server": server,
        "version": seen.version,
        "disable_above": wish.disable_above if wish else None,
        "margin": wish.margin if wish else None,
        "means": found.means.value,
        "reason": found.reason,
        "args": dict(found.args),
        "env": dict(found.env),
        "patches": list(found.patches),
        "config": found.config,
    }
    code = SafetyRefusal.exit_code if refused else 0
    document = Document(
        "speculation explain", found.means.value, code, findings=findings, data=data
    )

    def text() -> str:
        lines = [f"{server} (sglang {seen.version}): {found.means.value}: {found.reason}"]
        lines += [
            f"  --{name} {'' if value is True else value}".rstrip()
            for name, value in found.args.items()
        ]
        lines += [f"  {name}={value}" for name, value in found.env.items()]
        lines += [f"  patch {one}" for one in found.patches]
        lines += [f"  {{config}}: {found.config}"] if found.config else []
        return "\n".join(lines)

    return emit(app, document, text)


speculation.add_command(explain)
speculation.add_command(tune)
