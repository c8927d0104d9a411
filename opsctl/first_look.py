"""What a machine has to offer to a new site file: GPUs, running servers, Proxmox containers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from opsctl import adoption, adoption_place
from opsctl.adoption import Adopted, Options
from opsctl.adoption_place import Place
from opsctl.agent.read import read_gpus, read_host
from opsctl.domain.adopt import Running, find_running
from opsctl.errors import OpsctlError, TransportError
from opsctl.facts import GpuReport, Host
from opsctl.output import Finding
from opsctl.records import dataclass
from opsctl.session import Hosts
from opsctl.site import Server
from opsctl.site_edit import flow, render_entry

COMMAND_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Container:
    """One line of ``pct list``."""

    vmid: int
    name: str
    status: str


@dataclass(slots=True)
class Machine:
    """One machine as it was found."""

    name: str
    entry: Mapping[str, Any]
    host: Host
    report: GpuReport
    containers: tuple[Container, ...] | None  # None: it is no Proxmox node
    added: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # its containers with servers
    adopted: list[Adopted] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def look(hosts: Hosts, place: Place) -> Machine:
    """Look at one machine, and adopt each server that runs there or in its containers.

    A server that cannot be adopted is a finding, and the others are.

    Raises:
        TransportError, AgentError: the machine cannot be looked at.
    """
    place = adoption_place.settle_name(hosts, place)
    agent = hosts.agent(place.host)
    processes, _ = adoption.scan(agent)
    machine = Machine(
        place.host,
        dict(place.added).get(place.host, {}),
        read_host(agent),
        read_gpus(agent),
        list_containers(hosts, place.host),
    )
    for found in find_running(processes):
        _adopt_one(hosts, place, found, machine)
    return machine


def _adopt_one(hosts: Hosts, place: Place, found: Running, machine: Machine) -> None:
    try:
        where, server = adoption.locate(hosts, Place(place.host, {}), found.pid)
        one = adoption.adopt(hosts, where, server, Options())
    except OpsctlError as error:
        text = f"not adopted: {error.message}"
        subject = f"pid {found.pid} on {place.host}"
        machine.findings.append(Finding(error.code, subject, text, error.next_step or ""))
        return
    machine.added |= where.added
    machine.adopted.append(one)
    machine.findings += one.entry.findings
    servers = {**hosts.site.servers, one.entry.name: _as_server(one)}
    hosts.site = hosts.site.model_copy(update={"servers": servers})


def _as_server(one: Adopted) -> Server:
    return Server.model_validate(dict(one.entry.values))


def list_containers(hosts: Hosts, host: str) -> tuple[Container, ...] | None:
    """Return the containers of a Proxmox node, None where there is no pct (or it does not answer)."""
    try:
        done = hosts.transport(host).run(["pct", "list"], timeout_s=COMMAND_TIMEOUT_S)
    except (TransportError, OSError):
        return None
    if done.exit_code != 0:
        return None
    return parse_containers(done.stdout.decode(errors="replace"))


def parse_containers(text: str) -> tuple[Container, ...]:
    """Read ``pct list``: VMID, Status, an optional Lock, Name."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0].isdigit():
            name = words[-1] if len(words) > 2 else ""
            found.append(Container(int(words[0]), name, words[1]))
    return tuple(found)


def describe_gpus(report: GpuReport) -> str:
    """Return how many GPUs of which kind a machine has, with its driver; or why that is not known."""
    if not report.gpus:
        return f"no GPUs ({report.detail or report.state})"
    kinds: dict[str, int] = {}
    for gpu in report.gpus:
        kinds[gpu.name or "unnamed"] = kinds.get(gpu.name or "unnamed", 0) + 1
    names = ", ".join(f"{count} x {name}" for name, count in kinds.items())
    return f"{names}; driver {report.driver_version or 'unknown'}"


def site_text(machines: Sequence[Machine], when: str) -> str:
    """Return a commented site file for what was found."""
    lines = [
        "# opsctl.yaml: where your servers run. Check it with `opsctl config check`.",
        f"# Made by `opsctl init`, {when}. All keys: `opsctl config example`, `opsctl config schema`.",
        "hosts:",
    ]
    for machine in machines:
        system = f"{machine.host.hostname}, kernel {machine.host.kernel}"
        lines.append(f"  # {system}; {describe_gpus(machine.report)}")
        lines += render_entry(machine.name, machine.entry)
        for name, entry in machine.added.items():
            lines += render_entry(name, entry)
        lines += _other_containers(machine)
    adopted = [one for machine in machines for one in machine.adopted]
    lines += ["", "servers:" if adopted else "servers: {}"]
    for one in adopted:
        lines += render_entry(one.entry.name, one.entry.values, one.entry.comments)
    return "\n".join([*lines, *([] if adopted else _example(machines)), ""])


def _other_containers(machine: Machine) -> list[str]:
    named = {entry.get("pct") for entry in machine.added.values()}
    return [
        f"  # ct{one.vmid}: {flow({'pct': one.vmid, 'via': machine.name})}   # {one.name}, {one.status}"
        for one in machine.containers or ()
        if one.vmid not in named
    ]


def _example(machines: Sequence[Machine]) -> list[str]:
    count = max((len(machine.report.gpus) for machine in machines), default=0)
    values = {
        "host": machines[0].name,
        "port": 30000,
        "python": "/opt/sglang/bin/python",
        "model": "/models/my-model",
        "args": {"tp": max(1, count)},
    }
    rows = render_entry("my-server", values, indent=2)
    if len(rows) == 1:
        rows = [f"  my-server: {flow(values)}"]
    return [
        f"# No SGLang server runs. Once one does: `opsctl adopt --host {machines[0].name}`; or write it:",
        "# servers:",
        *(f"# {row}" for row in rows),
    ]
