"""The agents of a run: opened on first use, one per host, shared by whoever needs the same host."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from opsctl.agent.client import RemoteAgent, start
from opsctl.domain.machine import Machine, compare_machines
from opsctl.errors import OpsctlError, TransportError
from opsctl.transport import open_transport
from opsctl.transport.base import Transport

if TYPE_CHECKING:
    from opsctl.site import Host, Server, Site
    from opsctl.stopped_inside import StoppedInside

# containers that use their node's own connection: sshd opens 10 sessions on one (MaxSessions), and the
# node's agent and its `pct` commands need some of them
SHARED_BY = 4
# what of a host's entry says how to reach it
WAY = ("local", "ssh", "pct", "via", "become", "identity_file", "config_file", "known_hosts")


def transport_entry(host: Host) -> dict[str, Any]:
    """Return a host of the site as the plain entry that ``open_transport`` takes."""
    entry = {name: getattr(host, name) for name in (*WAY, "connect_timeout_s")}
    return {name: value for name, value in entry.items() if value is not None}


class Hosts:
    """Transports and agents by host name. Safe to use from several threads."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._transports: dict[str, Transport] = {}
        self._agents: dict[str, RemoteAgent] = {}
        self._begun: dict[str, Future[RemoteAgent]] = {}
        self._lent: Counter[str] = Counter()
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.RLock()  # a container's transport asks for its node's

    def transport(self, name: str) -> Transport:
        """Return the transport of a host; nothing is connected yet."""
        with self._guard:
            if name not in self._transports:
                self._transports[name] = open_transport(
                    transport_entry(self.site.host(name)), self._node
                )
            return self._transports[name]

    def _node(self, name: str) -> Transport:
        """Return the way to a container's node: the node's own, for the first few containers."""
        self._lent[name] += 1
        if self._lent[name] > SHARED_BY:
            return open_transport(transport_entry(self.site.host(name)))
        return self.transport(name)

    def agent(self, name: str) -> RemoteAgent:
        """Return the agent of a host, started on first use.

        Raises:
            TransportError, AgentError: it could not be started; a later call tries again.
        """
        transport = self.transport(name)
        with self._guard:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            if name not in self._agents:
                begun = self._begun.pop(name, None)
                self._agents[name] = begun.result() if begun else start(transport)
            return self._agents[name]

    def rename(self, old: str, new: str) -> None:
        """Give a host entry another name, with what is open to it; its host was just asked for its own."""
        with self._guard:
            entries = {new if name == old else name: one for name, one in self.site.hosts.items()}
            self.site = self.site.model_copy(update={"hosts": entries})
            if old in self._transports:
                self._transports[new] = self._transports.pop(old)
            if old in self._agents:
                self._agents[new] = self._agents.pop(old)

    def begin(
        self, names: Iterable[str], then: Callable[[str, RemoteAgent], None] | None = None
    ) -> None:
        """Begin to start agents; ``agent`` waits for them, and raises their errors.

        Returns once the hosts are at work, so that the caller's imports do not compete with the connecting.

        Args:
            names: their hosts.
            then: called in the background with each agent that started.
        """
        begun = {name: Future[RemoteAgent]() for name in dict.fromkeys(names)}
        sent = {name: threading.Event() for name in begun}
        transports = {name: self.transport(name) for name in begun}
        self._begun |= begun

        def start_one(name: str) -> None:
            try:
                agent = start(transports[name], on_sent=sent[name].set)
            except Exception as error:  # noqa: BLE001 - raised where the agent is asked for
                begun[name].set_exception(error)
                return
            finally:
                sent[name].set()
            begun[name].set_result(agent)
            if then is not None:
                then(name, agent)

        for name in begun:
            threading.Thread(target=start_one, args=(name,), daemon=True, name="begin").start()
        for event in sent.values():
            event.wait()

    def warm(self, names: Iterable[str]) -> dict[str, OpsctlError]:
        """Start several agents at once, and return the errors of those that did not start."""
        errors: dict[str, OpsctlError] = {}

        def start_one(name: str) -> None:
            try:
                self.agent(name)
            except OpsctlError as error:
                errors[name] = error

        threads = [
            threading.Thread(target=start_one, args=(name,), daemon=True) for name in set(names)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return errors

    def close(self) -> None:
        """End all agents and close all transports; one that still connects ends with this process."""
        starting = {name for name, begun in self._begun.items() if not begun.done()}
        unused = [begun.result() for begun in self._begun.values() if _has_result(begun)]
        for agent in (*self._agents.values(), *unused):
            agent.close()
        for name, transport in self._transports.items():
            if name not in starting:
                transport.close()
        self._agents.clear()
        self._begun.clear()
        self._transports.clear()


def _has_result(begun: Future[RemoteAgent]) -> bool:
    return begun.done() and begun.exception() is None


class ServerSession:
    """One server's hosts: where it runs, where its processes are owned, where its GPUs are owned."""

    def __init__(self, hosts: Hosts, name: str) -> None:
        self.hosts = hosts
        self.name = name
        self.server: Server = hosts.site.server(name)
        entry = hosts.site.host(self.server.host)
        self.owner_host = entry.via or self.server.host
        self.gpu_host = hosts.site.gpu_host_of(name)
        self.container: str | None = str(entry.pct) if entry.pct is not None else None
        self.may_be_stopped = (
            False  # set by whoever only stops: a stopped container is an empty one
        )
        self._stopped: StoppedInside | None = None
        self._machine: Machine | None = None

    @property
    def agent(self) -> RemoteAgent:
        """The agent where the server is launched and patched: inside its container, if it has one."""
        if self._stopped is None:
            try:
                return self.hosts.agent(self.server.host)
            except TransportError as error:
                if not self.may_be_stopped or error.code != "container-stopped":
                    raise
                from opsctl.stopped_inside import StoppedInside

                self._stopped = StoppedInside(error, self.owner_agent)
        return cast("RemoteAgent", self._stopped)

    @property
    def owner_agent(self) -> RemoteAgent:
        """The agent in the namespace that owns the server's processes: the node of a container."""
        return self.hosts.agent(self.owner_host)

    @property
    def gpu_agent(self) -> RemoteAgent:
        """The agent on the machine that owns the GPUs; in a container's own view NVML hides pids."""
        return self.hosts.agent(self.gpu_owner)

    @property
    def gpu_owner(self) -> str:
        """The name of the host that owns the GPUs: the node, where the site names a container."""
        entry = self.hosts.site.host(self.gpu_host)
        return entry.via or self.gpu_host

    @property
    def machine(self) -> Machine:
        """Whether processes and GPUs are on one kernel, by boot id; read once."""
        if self._machine is None:
            if self.owner_host == self.gpu_owner:
                self._machine = compare_machines(None, None, same_entry=True)
            else:
                self._machine = _compare(self.owner_agent, self.gpu_agent)
        return self._machine

    @property
    def one_machine(self) -> bool:
        """True only where it is proven."""
        return self.machine.one is True

    def neighbours(self) -> dict[str, Server]:
        """Return the other servers that the site places on the same host, by name."""
        servers = self.hosts.site.servers
        return {
            name: server
            for name, server in servers.items()
            if name != self.name and server.host == self.server.host
        }

    def host_names(self) -> list[str]:
        """Return the names of the hosts that this server touches, each once."""
        return list(dict.fromkeys([self.server.host, self.owner_host, self.gpu_owner]))


def _compare(agent: RemoteAgent, gpu_agent: RemoteAgent) -> Machine:
    from opsctl.agent.read import read_gpus, read_host

    host, gpu_host = read_host(agent), read_host(gpu_agent)
    if host.boot_id == gpu_host.boot_id:
        return compare_machines(host.boot_id, gpu_host.boot_id)
    uuids, gpu_uuids = (
        [gpu.uuid for gpu in read_gpus(each, xids=False).gpus] for each in (agent, gpu_agent)
    )
    contained = host.container is not None or gpu_host.container is not None
    return compare_machines(host.boot_id, gpu_host.boot_id, uuids, gpu_uuids, contained=contained)


@contextmanager
def open_hosts(site: Site) -> Iterator[Hosts]:
    """Open the hosts of a site lazily, and close what was opened."""
    hosts = Hosts(site)
    try:
        yield hosts
    finally:
        hosts.close()


@contextmanager
def open_session(site: Site, name: str) -> Iterator[ServerSession]:
    """Open one server's session."""
    with open_hosts(site) as hosts:
        yield ServerSession(hosts, name)
