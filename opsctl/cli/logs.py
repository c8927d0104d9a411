"""``opsctl logs``: the log of a server's run, read on its host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opsctl.cli.app import App, command, emit
from opsctl.errors import CheckFailed
from opsctl.output import Document, Finding

if TYPE_CHECKING:
    from opsctl.session import ServerSession

MARK = ">>> "


@command("logs")
@click.argument("server")
@click.option(
    "--run", "run", metavar="R", help="Of this run (a part of its id). Default: the newest."
)
@click.option("--rank", type=click.IntRange(0), help="Only lines of this rank (TPn).")
@click.option(
    "-n", "lines", type=click.IntRange(1), default=200, show_default=True, help="Last N lines."
)
def logs(app: App, server: str, run: str | None, rank: int | None, lines: int) -> int:
    """Print the end of SERVER's log; the first abnormal record is marked with ``>>>``.

    \b
    Examples:
      opsctl logs glm5 -n 50
      opsctl logs glm5 --run 3f2a --rank 3
    """
    from opsctl.session import open_session
    from opsctl.site_cache import load_site

    site = load_site(app.site_path)
    site.server(server)
    with open_session(site, server) as session:
        record = find_record(session, run)
        reply = session.agent.call(
            "log_read.tail",
            {"path": record["log"], "lines": lines, "max_bytes": 8 << 20},
            timeout_s=30.0,
        )
    text = str(reply["text"]).splitlines()
    number, diagnosis = first_abnormal(text)
    shown = [(n, line) for n, line in enumerate(text, 1) if rank is None or f"TP{rank}" in line]
    document = Document("logs", "done", run=record["run"])
    document.data = {
        "path": record["log"],
        "state": record["state"],
        "lines": [line for _, line in shown],
        "first_abnormal": number,
        "diagnosis": diagnosis,
    }
    if diagnosis and diagnosis.get("category"):
        document.findings.append(
            Finding(str(diagnosis["category"]), server, str(diagnosis["explanation"]))
        )
    return emit(app, document, lambda: "\n".join(marked(n, line, number) for n, line in shown))


def find_record(session: ServerSession, run: str | None) -> dict[str, Any]:
    """Return the launch record of the server's port, newest first, or the one that ``run`` fits."""
    server = session.server
    request = {"state_dir": server.state_dir, "port": server.port}
    records = session.agent.call("launch.records", request, timeout_s=30.0)["records"]
    found = [one for one in records if run is None or run in one["run"]]
    if found:
        record: dict[str, Any] = found[0]
        return record
    raise CheckFailed(
        f"no launch of {session.name} is recorded on {server.host}" + (f" as {run}" if run else ""),
        subject=session.name,
        next_step="opsctl keeps a log for each launch of its own; see `opsctl history`",
        code="no-log",
    )


def first_abnormal(lines: list[str]) -> tuple[int | None, dict[str, Any] | None]:
    """Return the number of the first abnormal line, and the verdict on these lines."""
    from opsctl.domain.crash import diagnose
    from opsctl.sglang.log import records_of

    found = diagnose(records_of("\n".join(lines)))
    return (found.line if found.category else None), found.as_data()


def marked(number: int, line: str, abnormal: int | None) -> str:
    return f"{MARK}{line}" if number == abnormal else line
