"""What a server must look like to be taken for the one that the site names."""

from __future__ import annotations

from dataclasses import field

from opsctl.domain.launch_line import LaunchLine, same_path
from opsctl.facts import Process, ProcessId
from opsctl.records import dataclass


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The site's entry joined with the launch record: all that proves a process to be this server.

    ``recorded`` holds processes seen when the server was launched, numbered in the namespace of the
    agent that launched it. ``gpu_uuids`` are the UUIDs of the server's set.
    """

    name: str
    port: int
    model: str | None = None
    python: str | None = None
    command: tuple[str, ...] | None = None
    user: str | None = None
    unit: str | None = None
    run_id: str | None = None
    recorded: tuple[ProcessId, ...] = ()
    gpu_uuids: frozenset[str] = field(default_factory=frozenset)

    def describe(self) -> str:
        """Return name, port and model, for a sentence."""
        model = f", model {self.model}" if self.model else ""
        return f"{self.name} (port {self.port}{model})"

    def is_recorded(self, process: Process) -> bool:
        """Say whether the launch record names this very process (boot, pid in any namespace, start)."""
        identity = process.identity
        numbers = {identity.pid, *process.ns_pids[-1:]}
        return any(
            entry.boot_id == identity.boot_id
            and entry.start_ticks == identity.start_ticks
            and entry.pid in numbers
            for entry in self.recorded
        )

    def fits_port(self, line: LaunchLine) -> bool | None:
        """Compare ports. None: the command line leaves the port to a config file."""
        return None if line.port is None else line.port == self.port

    def fits_model(self, line: LaunchLine) -> bool | None:
        """Compare models. None: one of the two sides does not say."""
        if self.model is None or line.model is None:
            return None
        return same_path(self.model, line.model)
