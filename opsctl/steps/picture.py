"""The picture of one server before anything is done: its processes, its GPUs, and whose is what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from opsctl.agent.read import processes_of, read_details, read_gpus, read_host
from opsctl.domain.gpu import GpuHolder, holders_of, resolve_gpus
from opsctl.domain.process import Judged, ProcessClass, Selection, candidates, describe
from opsctl.domain.protection import PROTECTED_PROGRAMS, Table, View, container_of, program_of
from opsctl.domain.selection import select
from opsctl.domain.server import ServerIdentity
from opsctl.facts import GpuReport, Process, ProcessDetail, ProcessId
from opsctl.output import Finding

if TYPE_CHECKING:
    from opsctl.agent.client import Agent
    from opsctl.site import Server

NO_SUCH_UID = -1


class StopSession(Protocol):
    """What a stop needs of a session (see opsctl.session.ServerSession)."""

    name: str
    server: Server
    container: str | None

    @property
    def agent(self) -> Agent: ...

    @property
    def owner_agent(self) -> Agent: ...

    @property
    def gpu_agent(self) -> Agent: ...

    @property
    def one_machine(self) -> bool: ...

    def neighbours(self) -> Mapping[str, Server]:
        """The other servers that the site places on the same host."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that a decision about one server needs, read at one time.

    ``gpu_classes`` maps pids as NVML numbers them to (class, words).
    """

    server: ServerIdentity
    selection: Selection
    table: Table
    view: View
    report: GpuReport
    uuids: tuple[str, ...]
    found: tuple[Finding, ...]
    gpu_classes: Mapping[int, tuple[str, str]]
    protected_gpu_pids: frozenset[int]
    boot_id: str


def take_picture(session: StopSession) -> Picture:
    """Read processes, launch records and GPUs at once, and decide whose is what.

    Raises:
        TransportError, AgentError: a host could not be looked at.
    """
    owner = session.owner_agent
    with ThreadPoolExecutor(4, thread_name_prefix="look") as pool:
        scan = pool.submit(owner.call, "process.scan", timeout_s=30.0)
        gpus = pool.submit(read_gpus, session.gpu_agent)
        records = pool.submit(_launch_records, session)
        host = pool.submit(read_host, session.agent)
        inside = pool.submit(_uid_inside, session)
        elsewhere = pool.submit(_gpu_host_table, session)
        facts, report, launches = scan.result(), gpus.result(), records.result()
        inner, inner_uid, gpu_table = host.result(), inside.result(), elsewhere.result()
    processes = processes_of(facts)
    table = Table.of(processes)
    uuids, found = resolve_gpus(session.server.gpus.select, report)
    server = identity_of(session, launches, uuids, inner.boot_id, facts["boot_id"])
    view = View(
        agent_pid=facts["self_pid"],
        uid=_agent_uid(processes, facts["self_pid"]),
        owner_uid=_owner_uid(session, processes, inner.uid if inner_uid is None else inner_uid),
        container=session.container,
        holders_here=session.one_machine and _shares(gpu_table, table, facts["self_pid"]),
    )
    if session.owner_agent is session.gpu_agent:
        gpu_table = table
    here, unseen = translate(holders_of(report), gpu_table, table)
    joined = [holder for holder, _ in here]
    pids = candidates(server, processes, joined, view)
    details = {detail.pid: detail for detail in _details(owner, pids)}
    others = neighbours_of(session, report)
    chosen = select(server, processes, details, joined, view, others)
    chosen, classes, stays = _with_unseen(chosen, here, unseen, gpu_table)
    return Picture(
        server, chosen, table, view, report, uuids, found, classes, stays, facts["boot_id"]
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


def _launch_records(session: StopSession) -> list[Mapping[str, Any]]:
    server = session.server
    request = {"port": server.port, "limit": 20, "state_dir": server.state_dir}
    found: list[Mapping[str, Any]] = session.agent.call("launch.records", request, timeout_s=30.0)[
        "records"
    ]
    return found


def _uid_inside(session: StopSession) -> int | None:
    """Return the uid of the site's user in the container's own numbers; None where none is named."""
    user = session.server.user
    if user is None or user.isdigit():
        return int(user) if user else None
    if session.container is None:
        return NO_SUCH_UID  # names can be compared as they are
    users = session.agent.call("process.scan", timeout_s=30.0)["users"]
    uids = [int(uid) for uid, name in users.items() if name == user]
    return uids[0] if uids else NO_SUCH_UID


def _owner_uid(session: StopSession, processes: Sequence[Process], inner_uid: int) -> int | None:
    """Return the uid that the server's processes have in the owner's view; None: compare the name."""
    if session.container is None:
        return None if inner_uid == NO_SUCH_UID else inner_uid
    if inner_uid == NO_SUCH_UID:
        return NO_SUCH_UID  # nobody of that name runs anything there
    for process in processes:
        if container_of(process.cgroup) == session.container and process.ns_pids[-1:] == (1,):
            return (
                process.uid + inner_uid
            )  # an unprivileged container shifts all uids by its root's
    return inner_uid


def _agent_uid(processes: Sequence[Process], agent_pid: int) -> int:
    return next((p.uid for p in processes if p.pid == agent_pid), 0)


def _gpu_host_table(session: StopSession) -> Table | None:
    """Return what the GPUs' host shows, when it is the same kernel seen through another agent."""
    if not session.one_machine or session.owner_agent is session.gpu_agent:
        return None
    return Table.of(processes_of(session.gpu_agent.call("process.scan", timeout_s=30.0)))


def _details(owner: Agent, pids: Sequence[int]) -> list[ProcessDetail]:
    return read_details(owner, pids, timeout_s=30.0) if pids else []


def _with_unseen(
    chosen: Selection,
    here: Sequence[tuple[GpuHolder, int]],
    unseen: Sequence[GpuHolder],
    gpu_table: Table | None,
) -> tuple[Selection, dict[int, tuple[str, str]], frozenset[int]]:
    """Add the holders that the server's side does not show, and class every holder by NVML's pid."""
    classes: dict[int, tuple[str, str]] = {}
    outside = {j.pid: j for j in (*chosen.foreign, *chosen.protected, *chosen.members)}
    for holder, gpu_pid in here:
        judged = outside.get(holder.pid)
        if judged is not None:
            classes[gpu_pid] = (judged.kind.value, _words(judged))
    foreign = list(chosen.foreign)
    for holder in unseen:
        there = gpu_table.by_pid.get(holder.pid) if gpu_table else None
        words = describe(there) if there else "not visible from here"
        daemon = PROTECTED_PROGRAMS.get(program_of(there)) if there else None
        kind = ProcessClass.FOREIGN
        if holder.kind == "G" or daemon:
            kind, words = ProcessClass.PROTECTED, daemon or words
        classes[holder.pid] = (kind.value, words)
        if holder.uuid in chosen.server.gpu_uuids and kind is ProcessClass.FOREIGN:
            foreign.append(Judged(holder.pid, None, kind, words, (holder,)))
    stays = frozenset(pid for pid, (kind, _) in classes.items() if kind == "protected")
    return replace(chosen, foreign=tuple(foreign)), classes, stays


def _words(judged: Judged) -> str:
    return describe(judged.process) if judged.process else judged.reason
