"""The picture of one server before anything is done: its processes, its GPUs, and whose is what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from opsctl.domain.gpu import Evict, GpuHolder, holders_of, resolve_gpus
from opsctl.domain.gpu_memory import UNSEEN
from opsctl.domain.process import Judged, ProcessClass, Selection, candidates, describe
from opsctl.domain.protection import PROTECTED_PROGRAMS, Table, View, program_of
from opsctl.domain.selection import select
from opsctl.domain.server import ServerIdentity
from opsctl.domain.stop_plan import UnitFact
from opsctl.facts import GpuReport, Host, Process, ProcessId
from opsctl.output import Finding
from opsctl.records import dataclass
from opsctl.steps.reading import NO_SUCH_UID, Place, Reading, StopSession, begin_reading


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that a decision about one server needs, read at one time.

    ``gpu_classes`` maps pids as NVML numbers them to (class, words), ``gpu_servers`` those of the site's
    other servers to these; ``resident_gpu_pids`` are those of daemons and displays, which use the cards
    also while no server runs; ``evictable`` those that the server's stop may end as well.
    """

    server: ServerIdentity
    selection: Selection
    table: Table
    view: View
    report: GpuReport
    uuids: tuple[str, ...]
    found: tuple[Finding, ...]
    gpu_classes: Mapping[int, tuple[str, str]]
    resident_gpu_pids: frozenset[int]
    boot_id: str
    place: Place
    gpu_servers: Mapping[int, str] = field(default_factory=dict)
    evictable: Mapping[int, Evict] = field(default_factory=dict)

    def unit_facts(self) -> dict[str, UnitFact]:
        """Return what the launch records say of their units, by name: systemd need not be asked again."""
        return {
            launch["unit"]: UnitFact(launch["unit"], launch["restart"], launch.get("pid"))
            for launch in self.place.launches
            if launch.get("unit") and launch.get("restart")
        }


def take_picture(session: StopSession, known: Place | None = None) -> Picture:
    """Read processes, launch records and GPUs at once, and decide whose is what.

    ``known`` is what the server's own side said a moment ago (see ``begin_reading``).

    Raises:
        TransportError, AgentError: a host could not be looked at.
    """
    reading = begin_reading(session, known)
    # most candidates are known by what runs: their details are read while the GPUs and a container answer
    plain = identity_of(session, (), (), "", reading.boot_id)
    reading.details(candidates(plain, reading.processes, (), _view(session, reading)))
    table, report = reading.table, reading.report()
    uuids, found = resolve_gpus(session.server.gpus.select, report)
    here, unseen = translate(holders_of(report), reading.gpu_table, table)
    joined = [holder for holder, _ in here]
    others = neighbours_of(session, report)
    place = reading.place()
    server = identity_of(session, place.launches, uuids, place.host.boot_id, reading.boot_id)
    view = _view(session, reading, place)
    details = reading.details(candidates(server, reading.processes, joined, view))
    chosen = select(server, reading.processes, details, joined, view, others)
    chosen, classes, residents = _with_unseen(chosen, here, unseen, reading.gpu_table)
    boot_id = reading.boot_id
    named = {one.pid: one.server for one in chosen.foreign if one.server}
    servers = {gpu_pid: named[one.pid] for one, gpu_pid in here if one.pid in named}
    strangers = {one.pid for one in chosen.foreign if one.process is not None}
    evictable = {
        gpu_pid: Evict(session.name, one.pid) for one, gpu_pid in here if one.pid in strangers
    }
    return Picture(
        server,
        chosen,
        table,
        view,
        report,
        uuids,
        found,
        classes,
        residents,
        boot_id,
        place,
        servers,
        evictable,
    )


def _view(session: StopSession, reading: Reading, place: Place | None = None) -> View:
    processes, agent_pid = reading.processes, reading.self_pid
    uid = None
    if place is not None:
        uid = place.host.uid if place.uid is None else place.uid
    return View(
        agent_pid=agent_pid,
        uid=next((p.uid for p in processes if p.pid == agent_pid), 0),
        owner_uid=None if uid is None or place is None else _owner_uid(session, uid, place.host),
        container=session.container,
        holders_here=session.one_machine and _shares(reading.gpu_table, reading.table, agent_pid),
        network=None if place is None else place.host.network_namespace,
    )


def identity_of(
    session: StopSession,
    launches: Sequence[Mapping[str, Any]],
    uuids: Sequence[str],
    inner_boot_id: str,
    boot_id: str,
) -> ServerIdentity:
    """Join the site's entry with what the host remembers of launches on this port, newest first.

    LXC gives a container a boot id of its own: a record made inside it counts while that id is the
    container's present one, and is compared with processes under the node's. Older launches count as
    well: a worker that outlived its main process is still known by what was recorded when it was ready.
    """
    server = session.server
    present = [launch for launch in launches if launch.get("boot_id") == inner_boot_id]
    newest = next(iter(present), None)
    recorded = tuple(
        ProcessId(boot_id, one["pid"], one["start_ticks"])
        for launch in present
        for one in (launch, *(launch.get("members") or ()))
        if one.get("pid") and one.get("start_ticks")
    )
    return ServerIdentity(
        name=session.name,
        port=server.port,
        model=server.model,
        python=server.python,
        command=tuple(server.command) if server.command else None,
        user=server.user,
        unit=newest.get("unit") if newest else None,
        run_id=newest.get("run") if newest else None,
        recorded=recorded,
        gpu_uuids=frozenset(uuids),
    )


def neighbours_of(session: StopSession, report: GpuReport) -> list[ServerIdentity]:
    """Return what the site says of the other servers on the same host."""
    found = []
    for name, server in session.neighbours().items():
        uuids, _ = resolve_gpus(server.gpus.select, report)
        found.append(
            ServerIdentity(
                name=name,
                port=server.port,
                model=server.model,
                command=tuple(server.command) if server.command else None,
                user=server.user,
                gpu_uuids=frozenset(uuids),
            )
        )
    return found


def translate(
    holders: Sequence[GpuHolder], gpu_table: Table | None, table: Table
) -> tuple[list[tuple[GpuHolder, int]], list[GpuHolder]]:
    """Return the holders with the pid that each has in ``table``, and those that it does not show.

    Args:
        holders: as NVML numbers them: pids of the GPU host.
        gpu_table: that host's processes; None when it is another kernel.
        table: the processes of the server's side.
    """
    if gpu_table is None:
        return [], list(holders)
    by_start: dict[tuple[str, int], list[Process]] = {}
    for process in table.by_pid.values():
        key = (process.identity.boot_id, process.identity.start_ticks)
        by_start.setdefault(key, []).append(process)
    here: list[tuple[GpuHolder, int]] = []
    unseen: list[GpuHolder] = []
    for holder in holders:
        there = gpu_table.by_pid.get(holder.pid)
        pid = None if there is None else _same_process(there, by_start)
        if pid is None:
            unseen.append(holder)
        else:
            here.append((replace(holder, pid=pid), holder.pid))
    return here, unseen


def _same_process(there: Process, by_start: Mapping[tuple[str, int], list[Process]]) -> int | None:
    """Find one process in another view: same boot, same start, and its pid in both namespaces' lists."""
    key = (there.identity.boot_id, there.identity.start_ticks)
    for process in by_start.get(key, ()):
        same_space = process.pid_namespace == there.pid_namespace
        if process.ns_pids[-1:] == there.ns_pids[-1:] and same_space:
            return process.pid
    return None


def _shares(gpu_table: Table | None, table: Table, agent_pid: int) -> bool:
    """Say whether the GPUs' host sees the server's side: equal kernels can still hide from each other."""
    if gpu_table is None:
        return True  # one agent for both
    agent = table.by_pid[agent_pid]
    key = (agent.identity.boot_id, agent.identity.start_ticks)
    return any(_same_process(there, {key: [agent]}) for there in gpu_table.by_pid.values())


def _owner_uid(session: StopSession, inner_uid: int, inside: Host) -> int | None:
    """Return the uid that the server's processes have in the owner's view; None: compare the name.

    An unprivileged container shifts its uids, by ranges that a configuration may split (``lxc.idmap``).
    """
    if session.container is None:
        return None if inner_uid == NO_SUCH_UID else inner_uid
    if inner_uid == NO_SUCH_UID:
        return NO_SUCH_UID  # nobody of that name runs anything there
    for first, outside, count in inside.uid_map:
        if first <= inner_uid < first + count:
            return outside + inner_uid - first
    return NO_SUCH_UID if inside.uid_map else inner_uid


def _with_unseen(
    chosen: Selection,
    here: Sequence[tuple[GpuHolder, int]],
    unseen: Sequence[GpuHolder],
    gpu_table: Table | None,
) -> tuple[Selection, dict[int, tuple[str, str]], frozenset[int]]:
    """Add the holders that the server's side does not show, and class every holder by NVML's pid."""
    classes: dict[int, tuple[str, str]] = {}
    residents: set[int] = set()
    outside = {j.pid: j for j in (*chosen.foreign, *chosen.protected, *chosen.members)}
    for holder, gpu_pid in here:
        judged = outside.get(holder.pid)
        if judged is not None:
            classes[gpu_pid] = (judged.kind.value, _words(judged))
            if is_resident(holder, judged.process):
                residents.add(gpu_pid)
    foreign = list(chosen.foreign)
    for holder in unseen:
        there = gpu_table.by_pid.get(holder.pid) if gpu_table else None
        words = describe(there) if there else UNSEEN
        daemon = PROTECTED_PROGRAMS.get(program_of(there)) if there else None
        kind = ProcessClass.FOREIGN
        if is_resident(holder, there):
            residents.add(holder.pid)
            kind, words = ProcessClass.PROTECTED, daemon or words
        classes[holder.pid] = (kind.value, words)
        if holder.uuid in chosen.server.gpu_uuids and kind is ProcessClass.FOREIGN:
            foreign.append(Judged(holder.pid, None, kind, words, (holder,)))
    return replace(chosen, foreign=tuple(foreign)), classes, frozenset(residents)


def is_resident(holder: GpuHolder, process: Process | None) -> bool:
    """Say whether a holder uses the card also while no server runs: a display, or a daemon of the driver."""
    daemon = process is not None and program_of(process) in PROTECTED_PROGRAMS
    return holder.kind == "G" or daemon


def _words(judged: Judged) -> str:
    return describe(judged.process) if judged.process else judged.reason
