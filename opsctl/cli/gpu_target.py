"""The GPUs that a `gpu` command is about: those of a server, or those of a host."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from opsctl.cli.app import App
from opsctl.output import Finding
from opsctl.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opsctl.agent.client import RemoteAgent
    from opsctl.domain.gpu import Evict, GpuHolder, MemoryVerdict
    from opsctl.domain.machine import Machine
    from opsctl.domain.protection import Table
    from opsctl.facts import GpuReport
    from opsctl.session import Hosts
    from opsctl.site import Site


@dataclass(slots=True)
class Target:
    """The GPUs that a command is about."""

    name: str
    agent: RemoteAgent
    report: GpuReport
    uuids: tuple[str, ...]
    found: tuple[Finding, ...]
    classes: Mapping[int, tuple[str, str]]
    residents: frozenset[int]
    expect: int | None
    margin_bytes: int
    state_dir: Path
    servers: Mapping[int, str] = field(default_factory=dict)  # pid -> the site's server it is of
    evictable: Mapping[int, Evict] = field(default_factory=dict)
    machine: Machine | None = None  # of a server: whether its host and that of the GPUs are one
    where: str = ""  # of a server: both hosts, for people

    def judge(self, report: GpuReport) -> MemoryVerdict:
        from opsctl.domain.gpu_memory import judge_memory
        from opsctl.steps.baselines import load_baselines

        return judge_memory(
            report,
            self.uuids,
            expect=self.expect,
            baselines=load_baselines(self.state_dir),
            classes=self.classes,
            servers=self.servers,
            residents=self.residents,
            evictable=self.evictable,
            margin_bytes=self.margin_bytes,
            found=self.found,
        )


@contextmanager
def open_target(app: App, name: str, expect: int | None = None) -> Iterator[Target]:
    """Read the GPUs of a server or a host of the site."""
    from opsctl.session import open_hosts
    from opsctl.site_cache import load_site

    site = load_site(app.site_path)
    with open_hosts(site) as hosts:
        if name in site.servers:
            yield _server_target(app, hosts, name, expect)
        else:
            site.server_or_host(name)
            yield _host_target(app, site, hosts, name, expect)


def _server_target(app: App, hosts: Hosts, name: str, expect: int | None) -> Target:
    from opsctl.domain.gpu import MIB
    from opsctl.session import ServerSession
    from opsctl.steps.picture import take_picture

    session = ServerSession(hosts, name)
    for error in hosts.warm(session.host_names()).values():
        raise error
    picture = take_picture(session)
    server = session.server
    members = {pid: name for pid, (kind, _) in picture.gpu_classes.items() if kind == "member"}
    return Target(
        name,
        session.gpu_agent,
        picture.report,
        picture.uuids,
        picture.found,
        picture.gpu_classes,
        picture.resident_gpu_pids,
        expect or server.gpus.expect,
        server.stop.margin_mib * MIB,
        app.state(),
        {**picture.gpu_servers, **members},
        picture.evictable,
        session.machine,
        f"on {server.host}, GPUs of {session.gpu_host}",
    )


def _host_target(app: App, site: Site, hosts: Hosts, name: str, expect: int | None) -> Target:
    from opsctl.agent.read import processes_of, read_gpus
    from opsctl.domain.gpu import IDLE_MARGIN_BYTES, holders_of, resolve_gpus
    from opsctl.domain.process import describe
    from opsctl.domain.protection import Table, View, protections
    from opsctl.steps.picture import is_resident

    agent = hosts.agent(site.host(name).via or name)
    report = read_gpus(agent)
    facts = agent.call("process.scan", timeout_s=30.0)
    table = Table.of(processes_of(facts))
    holders = holders_of(report)
    graphics = frozenset(holder.pid for holder in holders if holder.kind == "G")
    never = protections(table, View(facts["self_pid"], 0, None), graphics)
    classes: dict[int, tuple[str, str]] = {}
    for holder in holders:
        process = table.by_pid.get(holder.pid)
        if process is not None:
            kind = "protected" if holder.pid in never else "foreign"
            classes[holder.pid] = (kind, describe(process))
    uuids, found = resolve_gpus("all", report)
    residents = frozenset(
        holder.pid for holder in holders if is_resident(holder, table.by_pid.get(holder.pid))
    )
    return Target(
        name,
        agent,
        report,
        uuids,
        found,
        classes,
        residents,
        expect,
        IDLE_MARGIN_BYTES,
        app.state(),
        _servers_of(hosts, site.host(name).via or name, table, holders),
    )


def _servers_of(
    hosts: Hosts, name: str, table: Table, holders: Sequence[GpuHolder]
) -> dict[int, str]:
    """Return for each holder the server of the site that it is of, where its command line tells."""
    from opsctl.domain.owners import server_of
    from opsctl.domain.server import ServerIdentity
    from opsctl.session import ServerSession

    here = []
    for one, server in hosts.site.servers.items():
        session = ServerSession(hosts, one)
        if session.owner_host == name:
            identity = ServerIdentity(
                one,
                server.port,
                server.model,
                command=tuple(server.command) if server.command else None,
            )
            here.append((session.container, identity))
    seen = {holder.pid: table.by_pid.get(holder.pid) for holder in holders}
    named = {pid: server_of(one, table, here) for pid, one in seen.items() if one is not None}
    return {pid: server for pid, server in named.items() if server is not None}
