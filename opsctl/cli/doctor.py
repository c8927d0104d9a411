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
    rows = [
        {
            "name": check.name,
            "state": check.state.value,
            "text": check.text,
            "subject": check.subject,
            "next": check.next,
        }
        for check in found.checks
    ]
    document = Document("doctor", outcome, code, data={"checks": rows, "counts": counts})
    document.findings = [c.finding() for c in found.checks if c.state is not State.OK]
    if app.as_json:
        return emit(app, document, str)
    print_result("\n".join(lines_of(found.checks, counts, show_all=show_all)))
    return code


def lines_of(checks: list[Check], counts: dict[str, int], *, show_all: bool) -> list[str]:
    """Return the checks as text, by subject; of those that are ok only the names, unless all are wanted."""
    import shutil

    width = max(40, min(120, shutil.get_terminal_size((100, 40)).columns))
    lines = []
    for subject in dict.fromkeys(check.subject for check in checks):
        lines.append(subject)
        mine = [check for check in checks if check.subject == subject]
        for check in mine:
            if check.state.value != "ok" or show_all:
                lines += _lines_of_one(check, width)
        fine = list(dict.fromkeys(check.name for check in mine if check.state.value == "ok"))
        if fine and not show_all:
            lines += wrapped(", ".join(fine), width, "  ok      ", " " * 10)
    lines.append(", ".join(f"{count} {word}" for word, count in counts.items()))
    return lines


def _lines_of_one(check: Check, width: int) -> list[str]:
    from opsctl.cli import given

    head = f"  {check.state.value:<8}{check.name:<17} "
    hang = " " * min(len(head), 12 if width < 80 else len(head))
    lines = wrapped(check.text, width, head, hang)
    mend, order = given.runnable(check.mend), given.runnable(check.command)
    if mend:
        end = ":" if order else ""
        lines += wrapped(f"{mend}{end}", width, f"{hang}next: ", f"{hang}      ")
    if order:  # a line of its own, which nothing breaks: it is there to be copied
        lines.append(f"{hang}      {order}" if mend else f"{hang}next: {order}")
    return lines


def wrapped(text: str, width: int, first: str, hang: str) -> list[str]:
    """Return text in lines of ``width``; a command (in backticks, or the whole text) is never broken."""
    import re
    import textwrap

    joint = "\x00"
    whole = text.startswith("opsctl ")
    kept = re.sub(r"`[^`]+`", lambda one: one.group(0).replace(" ", joint), text)
    lines = textwrap.wrap(
        text.replace(" ", joint) if whole else kept,
        width,
        initial_indent=first,
        subsequent_indent=hang,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace(joint, " ") for line in lines]
