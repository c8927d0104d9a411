"""Look at every precondition of hosts and servers: the reads behind `opsctl doctor`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import Any

from opsctl.agent.client import RemoteAgent
from opsctl.agent.read import read_gpus, read_host, read_leftovers
from opsctl.containers import Place, find_place, nodes_of, open_container
from opsctl.doctor_server import examine_server, placed, tried
from opsctl.domain import doctor as domain
from opsctl.domain import doctor_gpu
from opsctl.domain.doctor import Check, State
from opsctl.domain.launch import tensor_parallel
from opsctl.errors import AgentError, OpsctlError, TransportError
from opsctl.facts import GpuReport
from opsctl.records import dataclass
from opsctl.session import Hosts, ServerSession

AT_ONCE = 16
FOLDERS = ("/", "/var/log", "/var/lib", "/tmp")


@dataclass(slots=True)
class Examination:
    """All checks, and the exit code of the first host that could not be reached."""

    checks: list[Check] = field(default_factory=list)
    unreached: int | None = None


def examine(hosts: Hosts, target: str | None) -> Examination:
    """Look at the whole site, at one host, or at one server and the hosts that it touches.

    Nothing is raised for what cannot be looked at: it is a check in the state unknown or bad.

    Raises:
        UsageError: there is no host or server ``target``.
    """
    names, servers = chosen(hosts, target)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="doctor") as pool:
        by_host = [pool.submit(examine_host, hosts, name) for name in names]
        looked = [one.result() for one in by_host]
        reached = {name for name, one in zip(names, looked, strict=True) if one.unreached is None}
        by_server = [
            pool.submit(examine_server, ServerSession(hosts, name), reached, parse=name == target)
            for name in servers
        ]
        checks = [one.result() for one in by_server]
    whole = Examination([check for one in looked for check in one.checks])
    whole.checks += [check for found in checks for check in found]
    whole.unreached = next((one.unreached for one in looked if one.unreached is not None), None)
    return whole


def chosen(hosts: Hosts, target: str | None) -> tuple[list[str], list[str]]:
    """Return the hosts and the servers to look at."""
    site = hosts.site
    if target is None:
        return list(site.hosts), list(site.servers)
    if target in site.servers:
        return ServerSession(hosts, target).host_names(), [target]
    site.server_or_host(target)
    return [target], []


def examine_host(hosts: Hosts, name: str) -> Examination:
    """Look at one host: the way there, the machine, its GPUs, its containers' node."""
    found = Examination()
    entry = hosts.site.host(name)
    way = "pct" if entry.pct is not None else "ssh" if entry.ssh else "local"
    if entry.pct is not None:
        found.checks += examine_container(hosts, name)
    if name in nodes_of(hosts.site):
        found.checks += examine_node(hosts, name)
    begun = time.monotonic()
    try:
        agent = hosts.agent(name)
        reached = Check(way, State.OK, f"{hosts.transport(name).name}, agent up in {_ms(begun)} ms")
        found.checks += [reached, *_machine(hosts, name, agent)]
    except OpsctlError as error:
        stopped = error.code == "container-stopped"
        found.checks += (
            [] if stopped else [Check(way, State.BAD, error.message, error.next_step or "")]
        )
        text = "not looked at: the host was not reached"
        found.checks += [
            Check(one, State.UNKNOWN, text) for one in ("rights", "python", "clock", "disk")
        ]
        if isinstance(error, TransportError | AgentError) and not stopped:
            found.unreached = error.exit_code
    found.checks = [placed(check.of(name), name, entry) for check in found.checks]
    return found


def _ms(begun: float) -> int:
    return round((time.monotonic() - begun) * 1000)


def _machine(hosts: Hosts, name: str, agent: RemoteAgent) -> list[Check]:
    site, entry = hosts.site, hosts.site.host(name)
    serving = [server for server, one in site.servers.items() if one.host == name]
    using = [s for s in site.servers if ServerSession(hosts, s).gpu_owner == name]
    agent.call("agent.noop")
    before = time.time()
    host = read_host(agent)
    after = time.time()
    folders = {*FOLDERS, *(site.servers[s].log_dir or "/var/log" for s in serving)}
    facts = agent.call("doctor.machine", {"folders": sorted(folders)}, timeout_s=30.0)
    way = "its transport" if not entry.become else "sudo -n"
    checks = [
        domain.judge_rights(host.uid, way),
        domain.judge_python(host, has_pidfd=facts["pidfd"]),
        domain.judge_clock(host.clock_s - (before + after) / 2, after - before),
    ]
    report = read_gpus(agent)
    gpus = len(report.gpus)
    checks += domain.judge_machine(facts, serves=bool(serving), gpus=gpus if using else 0)
    if entry.pct is None or using:
        checks += tried("nvml", lambda: _gpus(hosts, agent, report, using))
    homes = tried("leftovers", lambda: [domain.judge_left(read_leftovers(agent))])
    return checks + homes


def _gpus(hosts: Hosts, agent: RemoteAgent, report: GpuReport, using: Sequence[str]) -> list[Check]:
    from opsctl.steps.launch_plan import server_argv

    wanted = [
        hosts.site.servers[name]
        for name in using
        if hosts.site.servers[name].gpus.expect or hosts.site.servers[name].python
    ]
    checks = doctor_gpu.judge_gpus(report, expected=any(one.gpus.expect for one in wanted))
    if report.state != "ok":
        return checks
    spans = max((tensor_parallel(server_argv(one)) for one in wanted), default=1)
    return checks + doctor_gpu.judge_links(agent.call("gpu.links", timeout_s=20.0), spans)


def examine_node(hosts: Hosts, name: str) -> list[Check]:
    """Look at what a Proxmox node needs for `opsctl ct`: pct and its API."""
    vmids = [
        one.pct for one in hosts.site.hosts.values() if one.pct is not None and one.via == name
    ]
    return tried("pct", lambda: [_pct(hosts, name)]) + tried(
        "api", lambda: [_api(hosts, name, vmids)]
    )


def _pct(hosts: Hosts, name: str) -> Check:
    done = hosts.transport(name).run(["pct", "list"], timeout_s=20.0)
    if done.exit_code == 0:
        count = max(0, len(done.stdout.splitlines()) - 1)
        return Check("pct", State.OK, f"lists {count} containers")
    said = done.stderr.decode(errors="replace").strip().splitlines()
    text = said[-1] if said else f"exit {done.exit_code}"
    return Check(
        "pct", State.BAD, f"pct list: {text}", "is this the node, and may this user run pct?"
    )


def _api(hosts: Hosts, name: str, vmids: Sequence[int | None]) -> Check:
    if not vmids:
        return Check(
            "api", State.UNKNOWN, "no container of this node is in the site, so none was asked for"
        )
    container = open_container(hosts, Place(int(vmids[0] or 0), name, ()))
    try:
        container.status()
        return Check("api", State.OK, f"{container.api.name} answers for container {vmids[0]}")
    finally:
        container.api.close()


def examine_container(hosts: Hosts, name: str) -> list[Check]:
    """Look at a container from its node: state, lock, and the passthrough of GPUs to its servers."""
    from opsctl.passthrough import examine as examine_passthrough

    place = find_place(hosts.site, name)

    def look() -> list[Check]:
        container = open_container(hosts, place)
        try:
            status = container.status()
            checks = [_running(place, status)]
            if not any(hosts.site.servers[one].gpus for one in place.servers):
                return checks
            seen = examine_passthrough(hosts, place, container)
        finally:
            container.api.close()
        broken = [domain.from_finding("passthrough", State.BAD, one) for one in seen.judged.broken]
        doubts = [domain.from_finding("passthrough", State.WARN, one) for one in seen.judged.doubts]
        if seen.inside is None:
            text = "the container does not run: its inside was not looked at"
            doubts.append(
                Check("passthrough", State.UNKNOWN, text, f"opsctl ct start {place.vmid}")
            )
        whole = Check("passthrough", State.OK, f"{len(seen.judged.rows)} devices, as they must be")
        return checks + ([*broken, *doubts] or [whole])

    return tried("container", look)


def _running(place: Place, status: dict[str, Any]) -> Check:
    if status.get("lock"):
        text = f"it is locked ({status['lock']})"
        return Check("container", State.WARN, text, f"by whom: opsctl ct status {place.vmid}")
    if status.get("status") == "running":
        return Check("container", State.OK, f"container {place.vmid} runs")
    text = f"container {place.vmid} is {status.get('status') or 'in an unknown state'}"
    return Check("container", State.BAD, text, f"opsctl ct start {place.vmid}")
