"""`opsctl doctor`: every precondition with its state, the reason, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opsctl.cli.app import App, command, emit, print_result
from opsctl.output import Document

if TYPE_CHECKING:
    from opsctl.domain.doctor import Check


@command("doctor")
@click.argument("target", required=False, metavar="[HOST|SERVER]")
@click.option("--all", "show_all", is_flag=True, help="Also list what is ok, not only count it.")
def doctor(app: App, target: str | None, show_all: bool) -> int:
    """Check every precondition: ok, warn, bad or unknown, with the reason and the mend. Reads only.

    Per host: the way there, rights, Python, clock, disks, limits, /dev/shm, leftovers, NVML, health,
    persistence, peer access; per node: pct and the API; per container: state and passthrough; per server:
    secrets, versions that fit, flags, model, port, patches. For one SERVER the installed parser is asked
    about the flags, which takes some seconds. What could not be looked at is unknown, never ok.

    \b
    Examples:
      opsctl doctor              everything in the site file
      opsctl doctor glm5 --all   one server and the hosts that it touches
      opsctl doctor gpu1 --json  one host, for a script

    Exit codes: 0 nothing is bad or unknown (warnings are told); 20 something is bad; 21 something could
    not be told; 30 or 40 a host was not reached.
    """
    from dataclasses import asdict

    from opsctl.cli.talk import Talk
    from opsctl.doctor import examine
    from opsctl.domain.doctor import State, exit_code_of
    from opsctl.session import open_hosts
    from opsctl.site import load_site

    site = load_site(app.site_path)
    talk = Talk(quiet=app.as_json)
    with open_hosts(site) as hosts, talk.ticking(f"looking at {target or 'the whole site'}"):
        found = examine(hosts, target)
    code = exit_code_of(found.checks, found.unreached)
    counts = {state.value: sum(c.state is state for c in found.checks) for state in State}
    outcome = next((word for word in ("bad", "unknown", "warn") if counts[word]), "ok")
    rows = [{**asdict(check), "state": check.state.value} for check in found.checks]
    for row in rows:
        row["next"] = row.pop("mend")
    document = Document("doctor", outcome, code, data={"checks": rows, "counts": counts})
    document.findings = [c.finding() for c in found.checks if c.state is not State.OK]
    if app.as_json:
        return emit(app, document, str)
    print_result("\n".join(lines_of(found.checks, counts, show_all=show_all)))
    return code


def lines_of(checks: list[Check], counts: dict[str, int], *, show_all: bool) -> list[str]:
    """Return the checks as text, by subject; of those that are ok only the names, unless all are wanted."""
    import shutil
    import textwrap

    width = max(40, min(120, shutil.get_terminal_size((100, 40)).columns))
    lines = []
    for subject in dict.fromkeys(check.subject for check in checks):
        lines.append(subject)
        mine = [check for check in checks if check.subject == subject]
        for check in mine:
            if check.state.value == "ok" and not show_all:
                continue
            head = f"  {check.state.value:<8}{check.name:<17} "
            hang = " " * min(len(head), 12 if width < 80 else len(head))
            lines += textwrap.wrap(
                check.text,
                width,
                initial_indent=head,
                subsequent_indent=hang,
                break_on_hyphens=False,
            )
            if check.mend:
                lines += textwrap.wrap(
                    check.mend, width, initial_indent=f"{hang}next: ", subsequent_indent=f"{hang}      ",
                    break_on_hyphens=False, break_long_words=False,
                )  # fmt: skip
        fine = list(dict.fromkeys(check.name for check in mine if check.state.value == "ok"))
        if fine and not show_all:
            lines += textwrap.wrap(
                ", ".join(fine), width, initial_indent="  ok      ", subsequent_indent="          ",
                break_on_hyphens=False,
            )  # fmt: skip
    lines.append(", ".join(f"{count} {word}" for word, count in counts.items()))
    return lines
