"""Find a running SGLang server, prove it, and read what its entry needs: the facts behind `opsctl adopt`."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from opsctl.adoption_place import Place, container_place, with_hosts
from opsctl.agent.read import processes_of, read_details, read_package
from opsctl.domain import adopt as domain
from opsctl.domain import adopt_entry
from opsctl.domain.adopt import Running, Started
from opsctl.domain.adopt_entry import Entry
from opsctl.domain.counted import counted
from opsctl.errors import CouldNotTell, SafetyRefusal, UsageError
from opsctl.records import dataclass
from opsctl.session import Hosts, ServerSession
from opsctl.site import Server

if TYPE_CHECKING:
    from opsctl.agent.client import Agent
    from opsctl.facts import Process
    from opsctl.steps.picture import Picture


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line adds to what is found."""

    name: str | None = None
    model: str | None = None
    port: int | None = None
    extra_env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Adopted:
    """One server, proven, as the site file will name it."""

    entry: Entry
    evidence: tuple[str, ...]
    pid: int  # in the view of the machine that owns its processes
    ns_pid: int  # inside its container, or the same
    known_as: str | None = None  # the site has it already under this name


def scan(agent: Agent) -> tuple[list[Process], int]:
    """Return the processes of a host, and the user id that the agent has there."""
    facts = agent.call("process.scan", timeout_s=30.0)
    processes = processes_of(facts)
    return processes, next((p.uid for p in processes if p.pid == facts["self_pid"]), 0)


def locate(hosts: Hosts, place: Place, pid: int | None) -> tuple[Place, Running]:
    """Return the server that ``pid`` belongs to (or the only one there), and the host where it runs.

    A server in a Proxmox container, seen from its node, is looked at again from inside the container.

    Raises:
        SafetyRefusal: it is none, or runs in a container that opsctl cannot enter.
        UsageError: there are several; CouldNotTell: there is none.
    """
    processes, _ = scan(hosts.agent(place.host))
    found = (
        domain.server_of(pid, processes, place.host)
        if pid is not None
        else _only(processes, place.host)
    )
    if found.container is None or hosts.site.host(place.host).pct is not None:
        if len(found.root.ns_pids) > 1 and found.container is None:
            raise _unknown_container(found, "a pid namespace of its own")
        return place, found
    if not found.container.isdigit():
        raise _unknown_container(found, f"container {found.container}")
    inner = container_place(hosts.site, place.host, found.container)
    hosts.site = with_hosts(hosts.site, inner.added)
    inside, _ = scan(hosts.agent(inner.host))
    return Place(inner.host, {**place.added, **inner.added}), domain.server_of(
        found.root.ns_pids[-1], inside
    )


def _unknown_container(found: Running, what: str) -> SafetyRefusal:
    return SafetyRefusal(
        f"pid {found.pid} runs in {what}, which opsctl has no way into",
        next_step="opsctl manages servers on a host or in a Proxmox container; "
        "stop this one with the tool that started its container",
        code="unknown-container",
        subject=str(found.pid),
    )


def _only(processes: Sequence[Process], host: str) -> Running:
    found = domain.find_running(processes)
    if len(found) == 1:
        return found[0]
    if not found:
        raise CouldNotTell(
            f"no SGLang server runs on host '{host}'",
            next_step="name another machine with --host; what is there: `opsctl status`",
            code="no-server",
            subject=host,
        )
    raise UsageError(
        f"{len(found)} SGLang servers run on host '{host}': {'; '.join(one.describe() for one in found)}",
        next_step="name the one that is meant by its pid",
        subject=host,
    )


def adopt(hosts: Hosts, place: Place, found: Running, options: Options) -> Adopted:
    """Prove one server and return its entry. ``hosts.site`` must know the place.

    Raises:
        SafetyRefusal, CouldNotTell: it is not proven, or something that the entry needs is not known.
    """
    agent = hosts.agent(place.host)
    (detail,) = read_details(agent, [found.pid]) or (None,)
    listening = detail.listening_ports if detail else None
    domain.refuse_unproven(found, listening)
    started = read_started(agent, found, options.extra_env)
    port = domain.port_of(found, listening, options.port)
    model = options.model or found.line.model or model_of(agent, found, port)
    taken = [*hosts.site.hosts, *hosts.site.servers]
    name = options.name or adopt_entry.name_for(found.line, model, port, taken)
    known = next(
        (
            key
            for key, one in hosts.site.servers.items()
            if one.host == place.host and one.port == port
        ),
        None,
    )
    draft = Server(host=place.host, port=port, model=model, python=started.interpreter or "python3",
                   user=_user(agent, found))  # fmt: skip
    picture = prove(
        hosts, name if known is None else known, draft if known is None else None, found
    )
    version = read_package(agent, started.interpreter or found.line.interpreter, "sglang",
                           cwd=started.cwd, env=_path_only(started)).version  # fmt: skip
    entry = adopt_entry.make_entry(
        name,
        place.host,
        found,
        started,
        port=port,
        model=model,
        uuids=held_gpus(picture),
        gpu_state=picture.report.state,
        user=draft.user,
        version=f"sglang {version}" if version else None,
        when=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    )
    outer = next(m for m in picture.selection.members if m.process and _is_same(m.process, found))
    evidence = evidence_of(found, started, listening, port, picture, version)
    if outer.pid != found.pid:
        node, vmid = hosts.site.host(place.host).via, hosts.site.host(place.host).pct
        evidence.append(
            f"its two pids: {found.pid} inside container {vmid} (for --host {place.host}), "
            f"{outer.pid} on its node {node} (for --host {node}; what status and NVML show)"
        )
    return Adopted(entry, tuple(evidence), outer.pid, found.root.ns_pids[-1], known)


def read_started(agent: Agent, found: Running, extra: Sequence[str]) -> Started:
    """Read how it was started; values of secrets stay on the host."""
    request = {
        "pid": found.pid,
        "start_ticks": found.root.identity.start_ticks,
        "keep": domain.KEPT_PREFIXES,
        "names": [*domain.KEPT_NAMES, *extra],
        "secret_name": domain.SECRET_NAME,
        "secret_value": domain.SECRET_VALUE,
    }
    facts = agent.call("adopt.read", request, timeout_s=15.0)
    return Started(
        interpreter=facts["interpreter"],
        cwd=facts["cwd"],
        output=facts["output"],
        env=facts["env"],
        secrets=tuple(facts["secrets"]),
        other_secrets=tuple(facts["other_secrets"]),
    )


def model_of(agent: Agent, found: Running, port: int) -> str:
    """Ask the server itself for its model, where a config file names it. Raises CouldNotTell."""
    for path in ("/model_info", "/get_model_info"):
        request = {"address": "127.0.0.1", "port": port, "path": path, "timeout_s": 5.0}
        answer = agent.call("probe.request", request, timeout_s=10.0).get("json")
        if isinstance(answer, dict) and isinstance(answer.get("model_path"), str):
            return str(answer["model_path"])
    raise CouldNotTell(
        "its model stands in a config file, and the server does not tell it",
        next_step="name the model with --model",
        code="which-model",
        subject=str(found.pid),
    )


def prove(hosts: Hosts, name: str, draft: Server | None, found: Running) -> Picture:
    """Look as `opsctl status NAME` will, and refuse unless the process is found to be that server.

    Args:
        draft: the entry to try; None: the site's own.
    """
    from opsctl.steps.picture import take_picture

    if draft is not None:
        servers = {**hosts.site.servers, name: draft}
        hosts.site = hosts.site.model_copy(update={"servers": servers})
    try:
        picture = take_picture(ServerSession(hosts, name))
    finally:
        if draft is not None:
            servers = {key: one for key, one in hosts.site.servers.items() if key != name}
            hosts.site = hosts.site.model_copy(update={"servers": servers})
    roots = [m for m in picture.selection.members if m.process and _is_same(m.process, found)]
    if not roots:
        doubts = "; ".join(one.reason for one in picture.selection.ambiguous)
        raise SafetyRefusal(
            f"pid {found.pid} would not be found again as '{name}': {doubts or 'nothing proves it'}",
            next_step=f"look with: opsctl status {name}" if draft is None else None,
            code="not-found-again",
            subject=name,
        )
    return picture


def _is_same(process: Process, found: Running) -> bool:
    """Say whether a process of the owner's view is the one that was seen inside (boot ids may differ)."""
    root = found.root
    return (
        process.identity.start_ticks == root.identity.start_ticks
        and process.ns_pids[-1:] == root.ns_pids[-1:]
    )


def held_gpus(picture: Picture) -> list[str]:
    """Return the GPUs whose memory the server's processes hold, in the driver's order."""
    held = {hold.uuid for member in picture.selection.members for hold in member.holds}
    return [gpu.uuid for gpu in picture.report.gpus if gpu.uuid in held]


def evidence_of(
    found: Running,
    started: Started,
    listening: Sequence[int] | None,
    port: int,
    picture: Picture,
    version: str | None,
) -> list[str]:
    """Return what proves it, one sentence each."""
    titles: dict[str, int] = {}
    for title in found.workers:
        kind = re.sub(r"_?(TP|PP|DP|EP)\d+.*", "", title)
        titles[kind] = titles.get(kind, 0) + 1
    workers = ", ".join(f"{count} x {kind}" for kind, count in sorted(titles.items()))
    where = f", listens on {port}" if port in (listening or ()) else f", not yet on port {port}"
    held = held_gpus(picture)
    report = picture.report
    gpus = f"holds memory of {len(held)} of {counted(len(report.gpus), 'GPU')}"
    who = f"user {found.root.user or found.root.uid}"
    return [
        f"pid {found.pid}: {started.interpreter}, sglang {version or '?'}, {who}{where}",
        f"its tree: {len(found.pids)} processes; {workers or 'no titled worker yet'}",
        gpus if report.gpus else f"no GPU ({report.detail or report.state})",
    ]


def _path_only(started: Started) -> dict[str, str]:
    kept = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
    return {name: value for name, value in (started.env or {}).items() if name in kept}


def _user(agent: Agent, found: Running) -> str | None:
    """Return the server's owner, where it is not the user that the host is reached as."""
    _, uid = scan(agent)
    return None if uid == found.root.uid else found.root.user or str(found.root.uid)
