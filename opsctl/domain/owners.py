"""Which server of the site a process is of, as far as its command line or those above it tell."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.domain.launch_line import LaunchLine
from opsctl.domain.process import is_command, launch_line_of
from opsctl.domain.protection import Table, container_of
from opsctl.domain.server import ServerIdentity
from opsctl.facts import Process


def claims(server: ServerIdentity, process: Process, line: LaunchLine | None) -> bool:
    """Say whether a process is this server's by its launch record or its own command line."""
    if server.is_recorded(process) or is_command(server, process):
        return True
    by_line = line is not None and server.command is None and server.fits_port(line)
    return bool(by_line and line is not None and server.fits_model(line) is not False)


def server_of(
    process: Process, table: Table, servers: Sequence[tuple[str | None, ServerIdentity]]
) -> str | None:
    """Return the name of the server that a process is of, by its own line or one above it.

    Args:
        process: of ``table``.
        table: a host's processes, those of its containers with them.
        servers: each with the container that it runs in, None for the host itself.
    """
    inside = container_of(process.cgroup)
    for one in (process, *table.ancestors(process.pid)):
        line = launch_line_of(one)
        for container, server in servers:
            if container == inside and claims(server, one, line):
                return server.name
    return None
