"""Which processes are the server, which only hold its GPUs, which are never touched: decided purely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from opsctl.domain.gpu import GpuHolder
from opsctl.domain.launch_line import (
    LaunchLine,
    is_python,
    is_supervisor,
    own_script,
    read_title,
)
from opsctl.domain.orphans import Claim, Orphans
from opsctl.domain.owners import claims
from opsctl.domain.process import (
    Ambiguity,
    Judged,
    ProcessClass,
    Selection,
    describe,
    in_unit,
    is_command,
    launch_line_of,
)
from opsctl.domain.protection import (
    Table,
    View,
    other_place,
    owner_fits,
    owner_of,
    protections,
    unit_of,
)
from opsctl.domain.server import ServerIdentity
from opsctl.facts import Process, ProcessDetail
from opsctl.records import dataclass


def select(
    server: ServerIdentity,
    processes: Sequence[Process],
    details: Mapping[int, ProcessDetail],
    holders: Sequence[GpuHolder],
    view: View,
    others: Sequence[ServerIdentity] = (),
) -> Selection:
    """Decide for one snapshot which processes are the server's.

    Args:
        server: what the site and the launch record say.
        processes: every process that the view shows.
        details: what was read for the candidates (see ``candidates``).
        holders: NVML's list for all GPUs of the machine, in its own pid numbers.
        view: from where the table was read.
        others: the other servers that the site places on the same host.
    """
    here = tuple(holders) if view.holders_here else ()
    return _Judge(server, Table.of(processes), details, here, view, tuple(others)).selection()


@dataclass(slots=True)
class _Judge:
    server: ServerIdentity
    table: Table
    details: Mapping[int, ProcessDetail]
    holders: tuple[GpuHolder, ...]
    view: View
    others: tuple[ServerIdentity, ...]
    never: dict[int, str] = field(default_factory=dict)
    proven: dict[int, str] = field(default_factory=dict)
    unsure: dict[int, Ambiguity] = field(default_factory=dict)
    lines: dict[int, LaunchLine] = field(default_factory=dict)
    distant: dict[int, str] = field(
        default_factory=dict
    )  # fit, but serve in another network namespace
    spared: dict[int, str] = field(
        default_factory=dict
    )  # of the server's session, with scripts apart
    roots: frozenset[int] = frozenset()

    def selection(self) -> Selection:
        graphics = frozenset(hold.pid for hold in self.holders if hold.kind == "G")
        self.never = protections(self.table, self.view, graphics)
        for process in self.table.by_pid.values():
            line = launch_line_of(process)
            if line:
                self.lines[process.pid] = line
        self._prove_directly()
        direct = frozenset(self.proven)
        self._add_trees()
        self._add_sessions(direct)
        self._add_trees()
        self._doubt_near_misses()
        self._add_orphans()
        return self._result()

    def _eligible(self, process: Process) -> bool:
        return (
            process.pid not in self.never
            and other_place(process, self.table, self.view) is None
            and owner_fits(process, self.view, self.server.user)
        )

    def _prove_directly(self) -> None:
        for process in self.table.by_pid.values():
            reason = self._direct_proof(process)
            if reason is None:
                continue
            if self._eligible(process):
                self.proven[process.pid] = reason
            elif process.pid in self.never:
                self._doubt(process, f"{reason}, but it is {self.never[process.pid]}")

    def _direct_proof(self, process: Process) -> str | None:
        server = self.server
        if is_supervisor(process.argv):
            return None
        if server.is_recorded(process):
            return "named by the launch record"
        if in_unit(server, process):
            return f"in the server's unit {server.unit}"
        detail = self.details.get(process.pid)
        markers = (detail.environment_markers if detail else None) or {}
        if server.run_id is not None and markers.get("OPSCTL_RUN") == server.run_id:
            return f"carries the mark of run {server.run_id}"
        if self._in_recorded_session(process):
            return f"in the session that the launch record names ({process.session})"
        reason = self._proof_by_argv(process)
        if reason and self._in_other_network(process.pid):
            self.distant[process.pid] = reason
            return None
        return reason

    def _proof_by_argv(self, process: Process) -> str | None:
        if is_command(self.server, process):
            return "its command line is the site's command"
        line = self.lines.get(process.pid)
        if line and self.server.command is None and not _is_other_program(process):
            return self._proof_by_line(process, line)
        return None

    def _in_other_network(self, pid: int) -> bool:
        """Say whether a process is known to be in another network namespace than the server's place."""
        detail = self.details.get(pid)
        theirs, ours = detail.network_namespace if detail else None, self.view.network
        return theirs is not None and ours is not None and theirs != ours

    def _in_recorded_session(self, process: Process) -> bool:
        """A worker in the session of a recorded process that is dead.

        Its number may have led a later session too, so the title is asked for, and a living leader
        must be the recorded one (that one's session is looked at with its tree).
        """
        leader = self.table.by_pid.get(process.session)
        if self.view.container is not None or leader or read_title(process.argv) is None:
            return False  # from a host, sessions have other numbers than the record
        return any(
            entry.pid == process.session
            and entry.boot_id == process.identity.boot_id
            and entry.start_ticks <= process.identity.start_ticks
            for entry in self.server.recorded
        )

    def _proof_by_line(self, process: Process, line: LaunchLine) -> str | None:
        port_fits = self.server.fits_port(line)
        if port_fits is None:
            port_fits = self._listens(process.pid) or None
        if not port_fits or self.server.fits_model(line) is False:
            return None
        model = " with this model" if line.model and self.server.model else ""
        return f"command line: sglang on port {self.server.port}{model}"

    def _listens(self, pid: int) -> bool:
        detail = self.details.get(pid)
        return bool(detail and self.server.port in (detail.listening_ports or ()))

    def _add_trees(self) -> None:
        for pid in list(self.proven):
            for child in self._family(pid):
                if child.pid not in self.proven and self._eligible(child):
                    owner = self._claimed_by_other(child.pid)
                    if owner:
                        names = (self.server.describe(), owner.describe())
                        self._doubt(child, f"a child of pid {pid}, and also {owner.name}", names)
                    else:
                        self.proven[child.pid] = f"child of pid {child.ppid}"

    def _family(self, pid: int) -> list[Process]:
        """Return everything below ``pid``; without what a shell had begun before it became the server.

        ``train.py & exec python -m sglang.launch_server`` makes a stranger the server's child, and SGLang
        kills its children as it ends: a doubt. What opsctl launched itself has no such past.
        """
        if self._is_known_launch(pid) or pid not in self.lines:
            return self.table.descendants(pid)
        found: list[Process] = []
        for child in self.table.children.get(pid, ()):
            script = self._script_of_its_own(child, pid)
            if script is None:
                found += [child, *self.table.descendants(child.pid)]
            elif self._eligible(child):
                text = f"{script} runs on its own below the server's pid {pid}, which ends what is below it"
                self._doubt(child, text)
        return found

    def _is_known_launch(self, pid: int) -> bool:
        process = self.table.by_pid[pid]
        return self.server.is_recorded(process) or in_unit(self.server, process)

    def _script_of_its_own(self, process: Process, root: int) -> str | None:
        """Return the script by which a process is known to be a program apart from the server's, or None.

        In a service, a container's or systemd's, all is part of it.
        """
        unit = unit_of(process.cgroup)
        if process.pid in self.lines or (unit and unit == unit_of(self.table.by_pid[root].cgroup)):
            return None
        return None if self.server.command is not None else own_script(process.argv)

    def _add_sessions(self, direct: frozenset[int]) -> None:
        leaders = {pid for pid in direct if self.table.by_pid[pid].session == pid}
        for process in self.table.by_pid.values():
            inside = process.session in leaders and process.pid not in self.proven
            if not inside or process.pid in self.lines or not self._eligible(process):
                continue
            leader = process.session
            if self._is_known_launch(leader) or not self._is_apart(process, leader):
                self.proven[process.pid] = f"in the session of the server's pid {leader}"

    def _is_apart(self, process: Process, root: int) -> bool:
        family = [process, *self.table.ancestors(process.pid)]
        inside = [one for one in family if one.session == root and one.pid != root]
        apart = {one.pid: self._script_of_its_own(one, root) for one in inside}
        self.spared.update({pid: script for pid, script in apart.items() if script})
        return any(apart.values())

    def _claimed_by_other(self, pid: int) -> ServerIdentity | None:
        process, line = self.table.by_pid[pid], self.lines.get(pid)
        return next((other for other in self.others if claims(other, process, line)), None)

    def _doubt_near_misses(self) -> None:
        """With no root proven, a server that fits in part is a doubt and not an absence."""
        has_root = bool(self.proven)
        for pid, reason in () if has_root else self.distant.items():
            if other_place(self.table.by_pid[pid], self.table, self.view) is None:
                text = f"{reason}, but it runs in another network namespace than its host"
                self._doubt(self.table.by_pid[pid], text)
        for pid, line in self.lines.items():
            process = self.table.by_pid[pid]
            if pid in self.proven or pid in self.never or self._claimed_by_other(pid):
                continue
            if pid in self.distant:
                continue
            fits = self.server.fits_port(line) or self._listens(pid) or self._may_come(pid, line)
            alike = bool(fits or self.server.fits_model(line))
            if has_root or not alike or self.server.command is not None:
                continue
            place = other_place(process, self.table, self.view)
            if place and (self.view.container is not None or self._in_other_network(pid)):
                continue  # another container's server: its port is not ours
            if place or not owner_fits(process, self.view, self.server.user):
                why = place or f"belongs to {owner_of(process)}, and the site does not say so"
            elif _is_other_program(process):
                why = f"its program is {process.exe}, which is no Python"
            elif line.port is None:
                why = f"it does not listen on {self.server.port}, and may still be starting"
            else:
                why = f"the site says port {self.server.port}, model {self.server.model}"
            self._doubt(process, f"it serves {line.describe()}; {why}", self._names(pid, line))

    def _may_come(self, pid: int, line: LaunchLine) -> bool:
        """Say whether its config file may name our port, on which it does not listen yet."""
        detail = self.details.get(pid)
        ports = detail.listening_ports if detail else None
        return line.port is None and not ports and self.server.fits_model(line) is not False

    def _names(self, pid: int, line: LaunchLine) -> tuple[str, ...]:
        return (self.server.describe(), f"pid {pid} ({line.describe()})")

    def _doubt(self, process: Process, reason: str, candidates: tuple[str, ...] = ()) -> None:
        names = candidates or (self.server.describe(),)
        protected = process.pid in self.never
        self.unsure[process.pid] = Ambiguity(process.pid, process, reason, names, protected)

    def _add_orphans(self) -> None:
        if self.server.command is not None:
            return  # titles are SGLang's: a server of another kind has no such workers
        eligible = [
            process
            for process in self.table.by_pid.values()
            if process.pid not in self.proven and read_title(process.argv)
            if self._eligible(process)
        ]
        rivals = {
            pid: self._claimed_by_other(pid)
            for pid in self.lines
            if pid not in self.proven
            and other_place(self.table.by_pid[pid], self.table, self.view) is None
        }
        openers = frozenset(pid for pid, seen in self.details.items() if seen.gpu_devices)
        blind = None if self.view.holders_here or self.others else openers
        orphans = Orphans(
            self.server, self.table, self.holders, self.proven, rivals, self.lines, blind
        )
        for claim in orphans.judge(eligible):
            process = self.table.by_pid[claim.pid]
            if claim.is_ours:
                self.proven[claim.pid] = claim.reason
            else:
                self._doubt_orphan(process, claim)

    def _doubt_orphan(self, process: Process, claim: Claim) -> None:
        self._doubt(process, claim.reason, (self.server.describe(), *claim.rivals))

    def _find_roots(self) -> frozenset[int]:
        """Return who gets TERM first: the launched process; workers without a parent only without it."""
        tops = {pid for pid in self.proven if self.table.by_pid[pid].ppid not in self.proven}
        launched = {
            pid
            for pid in tops
            if pid in self.lines
            or is_command(self.server, self.table.by_pid[pid])
            or self.server.is_recorded(self.table.by_pid[pid])
        }
        return frozenset(launched or tops)

    def _result(self) -> Selection:
        self.roots = self._find_roots()
        members = [self._judged(pid, ProcessClass.MEMBER, why) for pid, why in self.proven.items()]
        members.sort(key=lambda member: (not member.is_root, member.pid))
        foreign: list[Judged] = []
        protected: list[Judged] = []
        for pid in self._outside_holders():
            judged = self._judge_outsider(pid)
            (protected if judged.kind is ProcessClass.PROTECTED else foreign).append(judged)
        listeners = [
            pid
            for pid in self.details
            if pid not in self.proven and self._listens(pid) and not self._in_other_network(pid)
        ]
        return Selection(
            self.server,
            tuple(members),
            tuple(foreign),
            tuple(protected),
            tuple(self.unsure[pid] for pid in sorted(self.unsure)),
            tuple(self._judge_outsider(pid) for pid in sorted(listeners)),
            tuple(
                f"pid {pid}: {line.describe()}"
                for pid, line in sorted(self.lines.items())
                if pid not in self.proven
            ),
        )

    def _outside_holders(self) -> list[int]:
        """Return who holds the server's GPUs, by NVML, or has a device open and no GPU known as its own."""
        wanted = self.server.gpu_uuids
        pids = {hold.pid for hold in self.holders if hold.uuid in wanted}
        if wanted:
            placed = {
                hold.pid for hold in self.holders
            }  # a neighbour on other GPUs opens devices, too
            opened = {pid for pid, detail in self.details.items() if detail.gpu_devices}
            pids |= opened - placed
        pids |= self.spared.keys()
        return sorted(pid for pid in pids if pid not in self.proven and pid not in self.unsure)

    def _judge_outsider(self, pid: int) -> Judged:
        process = self.table.by_pid.get(pid)
        if process is None:
            return self._judged(pid, ProcessClass.FOREIGN, "not visible from here")
        if pid in self.never:
            return self._judged(pid, ProcessClass.PROTECTED, self.never[pid])
        place = other_place(process, self.table, self.view)
        if place:
            return self._judged(pid, ProcessClass.PROTECTED, place)
        reason = describe(process)
        neighbour = self._neighbour_of(process)
        if neighbour is not None:
            reason = f"server {neighbour} of this site: {reason}"
        if pid in self.spared:
            reason = f"a program of its own ({self.spared[pid]}), though in the server's session: {reason}"
        if not owner_fits(process, self.view, self.server.user):
            reason = f"{owner_of(process)}'s: {reason}"
        if pid not in self.spared and not any(hold.pid == pid for hold in self.holders):
            detail = self.details.get(pid)
            devices = (detail.gpu_devices if detail else None) or ()
            reason += f"; has {', '.join(devices[:2])} open, NVML names no memory of it"
        return replace(self._judged(pid, ProcessClass.FOREIGN, reason), server=neighbour)

    def _neighbour_of(self, process: Process) -> str | None:
        """Return the other server of the site that a process is of, by its line or one above it."""
        for one in (process, *self.table.ancestors(process.pid)):
            owner = self._claimed_by_other(one.pid)
            if owner is not None:
                return owner.name
        return None

    def _judged(self, pid: int, kind: ProcessClass, reason: str) -> Judged:
        process = self.table.by_pid.get(pid)
        wanted = self.server.gpu_uuids
        holds = tuple(h for h in self.holders if h.pid == pid and (h.uuid in wanted or not wanted))
        return Judged(pid, process, kind, reason, holds, pid in self.roots)


def _is_other_program(process: Process) -> bool:
    """Say whether what runs is known and is no Python: argv is written by whoever starts a program."""
    exe = process.exe
    return exe is not None and not is_python(exe.removesuffix(" (deleted)"))
