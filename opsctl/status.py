"""Look at everything once, for the status screen: hosts, containers, servers, GPUs, leftovers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar

from opsctl.agent.read import read_details, read_gpus, read_host, read_leftovers, read_package
from opsctl.domain.gpu import MemoryVerdict
from opsctl.domain.gpu_memory import judge_memory
from opsctl.domain.machine import Machine
from opsctl.domain.overview import Judgement, ServerState, judge_state, with_ending
from opsctl.errors import OpsctlError, TransportError
from opsctl.facts import GpuReport, Host, Leftover, Package
from opsctl.output import Finding
from opsctl.records import dataclass
from opsctl.session import Hosts, ServerSession
from opsctl.steps.picture import Picture, take_picture

if TYPE_CHECKING:
    from opsctl.agent.client import Agent
    from opsctl.last_run import FailedRun
    from opsctl.site import Server, Site

T = TypeVar("T")
COMMAND_TIMEOUT_S = 20.0
AT_ONCE = 32  # hosts looked at side by side; each is a thread that waits for SSH


@dataclass(frozen=True, slots=True)
class ContainerView:
    """A container as its node tells it; ``status`` None: the node could not be asked."""

    vmid: int
    node: str
    status: str | None
    lock: str | None = None
    name: str | None = None


@dataclass(slots=True)
class HostView:
    """One host of the site; ``error`` says why there is nothing else."""

    name: str
    way: str
    host: Host | None = None
    report: GpuReport | None = None  # None: this host's GPUs are read on its node
    container: ContainerView | None = None
    error: OpsctlError | None = None


@dataclass(slots=True)
class ServerView:
    """One server of the site."""

    name: str
    host: str
    port: int
    judgement: Judgement
    machine: Machine | None
    gpu_host: str
    picture: Picture | None = None
    memory: MemoryVerdict | None = None
    package: Package | None = None
    leftovers: tuple[Leftover, ...] = ()
    error: OpsctlError | None = None
    notes: list[Finding] = field(default_factory=list)
    last_failed_run: FailedRun | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """What one look saw."""

    hosts: tuple[HostView, ...]
    servers: tuple[ServerView, ...]


def look(hosts: Hosts, target: str | None = None) -> Overview:
    """Look at the whole site, at one host, or at one server and the hosts that it touches.

    Nothing is raised for a host that cannot be looked at: its view carries the error.

    Raises:
        UsageError: there is no host or server ``target``.
    """
    site = hosts.site
    host_names, server_names = _chosen(site, target)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="status") as pool:
        server_looks = {name: pool.submit(_look_at_server, hosts, name) for name in server_names}
        # a server's look reads the GPUs of its GPU host already
        read_by = {ServerSession(hosts, name).gpu_owner: name for name in server_names}
        host_looks = [
            pool.submit(_look_at_host, hosts, name, gpus=name not in read_by) for name in host_names
        ]
        views = [look.result() for look in host_looks]
        servers = {name: look.result() for name, look in server_looks.items()}
    for view in views:
        if view.error is None and view.name in read_by:
            picture = servers[read_by[view.name]].picture
            view.report = picture.report if picture else _gpus_of(hosts, view.name)
    return Overview(tuple(views), tuple(servers.values()))


def _gpus_of(hosts: Hosts, name: str) -> GpuReport | None:
    try:
        return read_gpus(hosts.agent(name))
    except OpsctlError:
        return None  # the server's own error tells why


def _chosen(site: Site, target: str | None) -> tuple[list[str], list[str]]:
    if target is None:
        return list(site.hosts), list(site.servers)
    if target in site.servers:
        server = site.servers[target]
        entry = site.host(server.host)
        names = [server.host, entry.via, site.gpu_host_of(target)]
        return list(dict.fromkeys(name for name in names if name)), [target]
    site.server_or_host(target)
    return [target], [name for name, server in site.servers.items() if server.host == target]


def _look_at_host(hosts: Hosts, name: str, *, gpus: bool) -> HostView:
    entry = hosts.site.host(name)
    view = HostView(name, hosts.transport(name).name)
    if entry.pct is not None and entry.via is not None:
        view.container = _look_at_container(hosts, entry.pct, entry.via)
    try:
        agent = hosts.agent(name)
        view.host = read_host(agent)
        if entry.pct is None and gpus:
            view.report = read_gpus(agent)
    except OpsctlError as error:
        view.error = error
    return view


def _look_at_container(hosts: Hosts, vmid: int, node: str) -> ContainerView:
    transport = hosts.transport(node)
    try:
        status = transport.run(["pct", "status", str(vmid)], timeout_s=COMMAND_TIMEOUT_S)
        config = transport.run(["pct", "config", str(vmid)], timeout_s=COMMAND_TIMEOUT_S)
    except TransportError:
        return ContainerView(vmid, node, None)
    if status.exit_code != 0:
        return ContainerView(vmid, node, None)
    fields = dict(
        line.split(": ", 1)
        for line in config.stdout.decode(errors="replace").splitlines()
        if ": " in line
    )
    word = status.stdout.decode(errors="replace").partition(":")[2].strip()
    return ContainerView(vmid, node, word or None, fields.get("lock"), fields.get("hostname"))


def _look_at_server(hosts: Hosts, name: str) -> ServerView:
    session = ServerSession(hosts, name)
    server = session.server
    unknown = Judgement(ServerState.UNKNOWN, "not looked at yet")
    view = ServerView(name, server.host, server.port, unknown, None, session.gpu_host)
    failed = hosts.warm(session.host_names())
    if failed:
        return _unreachable(session, view, failed)
    try:
        view.machine = session.machine
        picture = take_picture(session)
    except OpsctlError as error:
        view.error, view.judgement = error, Judgement(ServerState.UNKNOWN, error.message)
        return view
    view.picture = picture
    view.judgement = _judge(session, picture)
    view.memory = judge_memory(
        picture.report,
        picture.uuids,
        expect=server.gpus.expect,
        classes=picture.gpu_classes,
        servers=picture.gpu_servers,
        residents=picture.resident_gpu_pids,
        evictable=picture.evictable,
        found=picture.found,
    )
    found = _or_note(view, lambda: read_leftovers(session.agent, ports=[server.port]))
    view.leftovers = tuple(item for item in found or () if _is_left_over(item, view.judgement))
    if server.python is not None:
        view.package = _or_note(view, lambda: _package(session.agent, server))
    return view


def _package(agent: Agent, server: Server) -> Package:
    """Ask in the folder and the environment of the launch: PYTHONPATH decides what it imports."""
    env = {name: value for name, value in server.env.items() if isinstance(value, str)}
    return read_package(agent, str(server.python), "sglang", cwd=server.cwd, env=env)


def _is_left_over(item: Leftover, judgement: Judgement) -> bool:
    """Leave out what a living server has by right: its port, and lock files that nobody holds."""
    if item.kind == "port":
        return judgement.state not in (ServerState.LISTENING, ServerState.STARTING)
    return not (item.kind == "lock-file" and not item.owner_alive)


def _judge(session: ServerSession, picture: Picture) -> Judgement:
    pids = [m.pid for m in picture.selection.members]
    details = {d.pid: d for d in read_details(session.owner_agent, pids)} if pids else {}
    judged = judge_state(
        picture.selection, details, session.server.port, sglang=session.server.python is not None
    )
    return with_ending(judged, picture.place.launches, session.name)


def _unreachable(
    session: ServerSession, view: ServerView, failed: dict[str, OpsctlError]
) -> ServerView:
    """Tell what is missing; the GPUs are still shown when their host answers."""
    view.error = next(iter(failed.values()))
    view.judgement = Judgement(ServerState.UNKNOWN, view.error.message)
    if view.error.code == "container-stopped":
        view.judgement = Judgement(ServerState.STOPPED, "its container is stopped")
    gpu_entry = session.hosts.site.host(session.gpu_host)
    if (gpu_entry.via or session.gpu_host) not in failed:
        report = _or_note(view, lambda: read_gpus(session.gpu_agent))
        if report is not None:
            uuids = _uuids(session, report)
            view.memory = judge_memory(report, uuids, expect=session.server.gpus.expect)
    return view


def _uuids(session: ServerSession, report: GpuReport) -> Sequence[str]:
    from opsctl.domain.gpu import resolve_gpus

    return resolve_gpus(session.server.gpus.select, report)[0]


def _or_note(view: ServerView, read: Callable[[], T]) -> T | None:
    try:
        return read()
    except OpsctlError as error:
        view.notes.append(Finding(error.code, view.name, error.message, error.next_step or ""))
        return None
