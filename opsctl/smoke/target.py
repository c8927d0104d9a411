"""A server of the site as something to smoke: the way to its port, and eyes on its host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from opsctl.agent.client import Agent
from opsctl.agent.read import read_details, read_gpus, read_host, read_processes
from opsctl.domain.process import candidates
from opsctl.domain.protection import View
from opsctl.domain.selection import select
from opsctl.domain.server import ServerIdentity
from opsctl.errors import OpsctlError, UsageError
from opsctl.facts import Process, ProcessId
from opsctl.records import dataclass
from opsctl.session import ServerSession
from opsctl.sglang.endpoint import Endpoint
from opsctl.site_lookup import ONLY_THERE
from opsctl.smoke.agent_watch import AgentWatch, vital
from opsctl.smoke.host_load import HostLoad, open_host_load
from opsctl.smoke.relay import Relay


@dataclass(slots=True)
class Target:
    """What a smoke run needs of one server."""

    endpoint: Endpoint
    watch: AgentWatch | None
    problem: str | None = None  # why nobody watches
    load: HostLoad | None = None  # who sends, when that is the server's host
    way: str = "here"  # here, tunnel or host
    launched_by: str | None = None  # the run that started the server, where it left a record


@contextmanager
def open_target(session: ServerSession, way: str | None = None) -> Iterator[Target]:
    """Open the way to a server's port and the watch on its processes and log.

    A host other than this machine is reached by a relay through its transport, so the port need not
    be open to anybody.

    Args:
        session: the server's agents.
        way: ``here`` (TCP from this machine), ``tunnel`` (the relay), ``host`` (an agent there sends);
            None takes the site's word (``smoke.from``), else ``here`` for this machine and ``tunnel``
            for others.

    Raises:
        UsageError: ``here``, and the server listens where only its own host can reach it.
    """
    server = session.server
    key = None if server.api_key is None else server.api_key.resolve()
    entry = session.hosts.site.host(server.host)
    way = way or server.smoke.from_ or ("here" if entry.local else "tunnel")
    if way == "here" and not entry.local and server.address in ONLY_THERE:
        raise UsageError(
            f"{session.name} has the address {server.address}, which only its own host reaches",
            next_step="use --from tunnel or --from host, or give its outer address with --url",
        )
    with ExitStack() as stack:
        dial = None
        if not entry.local and way != "here":
            relay = Relay(session.hosts.transport(server.host), server.address, server.port)
            stack.callback(relay.close)
            dial = relay.dial
        endpoint = Endpoint(server.address, server.port, api_key=key, dial=dial)
        load = None
        if way == "host":
            transport = session.hosts.transport(server.host)
            load = stack.enter_context(
                open_host_load(transport, server.address, server.port, server.python)
            )
        record: dict[str, Any] = {}
        try:
            record = launch_record(session)
            watch, problem = watch_of(session, record), None
        except (OpsctlError, UsageError) as error:
            watch, problem = None, error.message
        if watch is None and problem is None:
            problem = "none of the host's processes is proven to be this server"
        yield Target(endpoint, watch, problem, load, way, record.get("run"))


def watch_of(session: ServerSession, record: dict[str, Any]) -> AgentWatch | None:
    """Return the watch of a running server; None when no process is proven to be it."""
    members = find_members(session, record)
    if not members:
        return None
    log = record.get("log") or _log_of(session, vital(members)[:1])
    return AgentWatch(
        session.owner_agent,
        members,
        session.agent if log else None,
        log,
        gpu_facts=lambda: gpu_evidence(session),
    )


def gpu_evidence(session: ServerSession) -> dict[str, Any]:
    """Return what NVML says of each GPU after a crash, and the Xids of the kernel log."""
    report = read_gpus(session.gpu_agent)
    return {
        "state": report.state,
        "detail": report.detail,
        "xids": None if report.xids is None else list(report.xids[-20:]),
        "gpus": [
            {
                "uuid": gpu.uuid,
                "read": gpu.read.value,
                "used_bytes": gpu.used_bytes,
                "recovery_action": gpu.recovery_action,
            }
            for gpu in report.gpus
        ],
    }


def _log_of(session: ServerSession, roots: list[Process]) -> str | None:
    """Return the file that a server's root writes to, by its number where the server runs."""
    for root in roots:
        pid = root.ns_pids[-1] if session.container is not None and root.ns_pids else root.pid
        try:
            path = session.agent.call("log_read.of_process", {"pid": pid})["path"]
        except OpsctlError:
            return None
        return None if path is None else str(path)
    return None


def launch_record(session: ServerSession) -> dict[str, Any]:
    """Return the newest launch on the server's port that still runs; empty when there is none."""
    request: dict[str, Any] = {"port": session.server.port, "limit": 20}
    if session.server.state_dir is not None:
        request["state_dir"] = session.server.state_dir
    try:
        found = session.agent.call("launch.records", request)["records"]
    except OpsctlError:
        return {}
    running = [one for one in found if one.get("state") == "running"]
    mine = [one for one in running if one.get("server") in (None, session.name)]
    record: dict[str, Any] = (mine or running or [{}])[0]
    return record


def find_members(session: ServerSession, record: dict[str, Any]) -> list[Process]:
    """Return the server's processes as its owner's agent sees them."""
    agent: Agent = session.owner_agent
    host = read_host(agent)
    server = session.server
    recorded: tuple[ProcessId, ...] = ()
    if record.get("pid") is not None and record.get("start_ticks") is not None:
        recorded = (ProcessId(host.boot_id, record["pid"], record["start_ticks"]),)
    identity = ServerIdentity(
        session.name,
        server.port,
        server.model,
        server.python,
        tuple(server.command) if server.command is not None else None,
        server.user,
        record.get("unit"),
        record.get("run"),
        recorded,
    )
    view = View(
        int(session.owner_agent.hello.get("pid", 0)),
        host.uid,
        None if server.user is not None else host.uid,
        session.container,
        holders_here=False,
    )
    processes = read_processes(agent)
    wanted = candidates(identity, processes, (), view)
    details = {found.pid: found for found in read_details(agent, wanted)} if wanted else {}
    selection = select(identity, processes, details, (), view)
    return [judged.process for judged in selection.members if judged.process is not None]
