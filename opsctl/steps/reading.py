"""Reading what a decision about one server needs, from its hosts at once: the slowest one sets the time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from opsctl.agent.read import processes_of, read_details, read_gpus, read_host
from opsctl.domain.protection import Table
from opsctl.facts import GpuReport, Host, Process, ProcessDetail
from opsctl.records import dataclass

if TYPE_CHECKING:
    from opsctl.agent.client import Agent
    from opsctl.site import Server

NO_SUCH_UID = -1
_TIMEOUT_S = 30.0


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
class Place:
    """What the server's own side says: inside its container, if it has one.

    Attributes:
        launches: the launches that it remembers on the server's port, newest first.
        uid: the site's user in its numbers; None where none is named.
    """

    launches: Sequence[Mapping[str, Any]]
    host: Host
    uid: int | None


@dataclass(slots=True)
class Reading:
    """What was read. ``report`` and ``place`` wait for what comes later than the processes.

    Attributes:
        boot_id: of the namespace that owns the processes, whose view ``table`` is.
        gpu_table: what the GPUs' host shows, where that is the same kernel through another agent.
    """

    processes: list[Process]
    table: Table
    boot_id: str
    self_pid: int
    gpu_table: Table | None
    _session: StopSession
    _report: Future[GpuReport]
    _place: Callable[[], Place]
    _known: dict[int, ProcessDetail]

    def report(self) -> GpuReport:
        """Return what NVML said, waiting for it."""
        return self._report.result()

    def place(self) -> Place:
        """Return what the server's own side says, waiting for it."""
        return self._place()

    def details(self, pids: Sequence[int]) -> dict[int, ProcessDetail]:
        """Return the details of these processes; those that were read already are not read again."""
        wanted = [pid for pid in pids if pid not in self._known]
        if wanted:
            owner = self._session.owner_agent
            found = read_details(owner, wanted, timeout_s=_TIMEOUT_S)
            self._known.update({detail.pid: detail for detail in found})
        return {pid: self._known[pid] for pid in pids if pid in self._known}


def begin_reading(session: StopSession, known: Place | None = None) -> Reading:
    """Ask all hosts at once, and return once the processes are read.

    The server's own side, which is the last to answer where it is a container, may still be on its way.

    Args:
        session: the server's.
        known: what its own side said a moment ago, which is then not asked again.

    Raises:
        TransportError, AgentError: a host could not be looked at.
    """
    pool = ThreadPoolExecutor(5, thread_name_prefix="look")
    place = _ask_place(session, pool) if known is None else lambda: known
    gpus = pool.submit(lambda: read_gpus(session.gpu_agent))
    elsewhere = pool.submit(_gpu_host_table, session)
    try:
        facts = session.owner_agent.call("process.scan", timeout_s=_TIMEOUT_S)
        processes = processes_of(facts)
        table = Table.of(processes)
        gpu_table = table if session.owner_agent is session.gpu_agent else elsewhere.result()
        return Reading(
            processes,
            table,
            facts["boot_id"],
            facts["self_pid"],
            gpu_table,
            session,
            gpus,
            place,
            {},
        )
    finally:
        pool.shutdown(wait=False)


def _ask_place(session: StopSession, pool: ThreadPoolExecutor) -> Callable[[], Place]:
    """Ask the server's own side, and return what waits for its answers."""
    launches = pool.submit(_launches, session)
    host = pool.submit(lambda: read_host(session.agent))
    uid = pool.submit(_uid_inside, session)
    return lambda: Place(launches.result(), host.result(), uid.result())


def _launches(session: StopSession) -> Sequence[Mapping[str, Any]]:
    server = session.server
    request = {"port": server.port, "limit": 20, "state_dir": server.state_dir}
    reply = session.agent.call("launch.records", request, timeout_s=_TIMEOUT_S)
    found: Sequence[Mapping[str, Any]] = reply["records"]
    return found


def _uid_inside(session: StopSession) -> int | None:
    """Return the uid of the site's user in the container's own numbers; None where none is named."""
    user = session.server.user
    if user is None or user.isdigit():
        return int(user) if user else None
    if session.container is None:
        return NO_SUCH_UID  # names can be compared as they are
    users = session.agent.call("process.scan", timeout_s=_TIMEOUT_S)["users"]
    uids = [int(uid) for uid, name in users.items() if name == user]
    return uids[0] if uids else NO_SUCH_UID


def _gpu_host_table(session: StopSession) -> Table | None:
    """Return what the GPUs' host shows, when it is the same kernel seen through another agent."""
    if session.owner_agent is session.gpu_agent or not session.one_machine:
        return None
    return Table.of(processes_of(session.gpu_agent.call("process.scan", timeout_s=_TIMEOUT_S)))
