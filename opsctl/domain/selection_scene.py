"""What is known before it is decided which processes are a server's, and what each fact says; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opsctl.domain.gpu import GpuHolder
from opsctl.domain.launch_line import LaunchLine
from opsctl.domain.owners import claims
from opsctl.domain.process import Ambiguity, Judged, ProcessClass, in_unit, launch_line_of
from opsctl.domain.protection import Table, View, other_place, owner_fits, protections
from opsctl.domain.server import ServerIdentity
from opsctl.facts import Process, ProcessDetail
from opsctl.records import dataclass


@dataclass(frozen=True, slots=True)
class Scene:
    """One snapshot of the machine, and the server that is looked for in it."""

    server: ServerIdentity
    table: Table
    details: Mapping[int, ProcessDetail]
    holders: tuple[GpuHolder, ...]  # none where NVML's pids are another machine's
    view: View
    others: tuple[ServerIdentity, ...]
    never: Mapping[int, str]  # who is never signalled, and why
    lines: Mapping[int, LaunchLine]  # who serves something, by its command line

    @staticmethod
    def of(
        server: ServerIdentity,
        processes: Sequence[Process],
        details: Mapping[int, ProcessDetail],
        holders: Sequence[GpuHolder],
        view: View,
        others: Sequence[ServerIdentity],
    ) -> Scene:
        """Index the process table, and read what every process is by itself."""
        table = Table.of(processes)
        here = tuple(holders) if view.holders_here else ()
        graphics = frozenset(hold.pid for hold in here if hold.kind == "G")
        never = protections(table, view, graphics)
        lines = {
            process.pid: line
            for process in table.by_pid.values()
            if (line := launch_line_of(process))
        }
        return Scene(server, table, details, here, view, tuple(others), never, lines)

    def is_eligible(self, process: Process) -> bool:
        """Say whether a process may be the server's at all: by its place and its owner, and not protected."""
        return (
            process.pid not in self.never
            and other_place(process, self.table, self.view) is None
            and owner_fits(process, self.view, self.server.user)
        )

    def is_known_launch(self, pid: int) -> bool:
        """Say whether opsctl launched it, or systemd did in the server's unit."""
        process = self.table.by_pid[pid]
        return self.server.is_recorded(process) or in_unit(self.server, process)

    def listens(self, pid: int) -> bool:
        """Say whether a process is known to listen on the server's port."""
        detail = self.details.get(pid)
        return bool(detail and self.server.port in (detail.listening_ports or ()))

    def is_in_other_network(self, pid: int) -> bool:
        """Say whether a process is known to be in another network namespace than the server's place."""
        detail = self.details.get(pid)
        theirs, ours = detail.network_namespace if detail else None, self.view.network
        return theirs is not None and ours is not None and theirs != ours

    def claimed_by_other(self, pid: int) -> ServerIdentity | None:
        """Return the other server of the site that a process is, by its line."""
        process, line = self.table.by_pid[pid], self.lines.get(pid)
        return next((other for other in self.others if claims(other, process, line)), None)

    def doubt(self, process: Process, reason: str, candidates: tuple[str, ...] = ()) -> Ambiguity:
        """Return that a process may be the server's, and why that cannot be told."""
        names = candidates or (self.server.describe(),)
        protected = process.pid in self.never
        return Ambiguity(process.pid, process, reason, names, protected)

    def judged(self, pid: int, kind: ProcessClass, reason: str, *, is_root: bool = False) -> Judged:
        """Return the decision on a process, with what it holds of the server's GPUs."""
        process = self.table.by_pid.get(pid)
        wanted = self.server.gpu_uuids
        holds = tuple(h for h in self.holders if h.pid == pid and (h.uuid in wanted or not wanted))
        return Judged(pid, process, kind, reason, holds, is_root)
