"""Read what decides about GPUs in a container, on its node and inside it; a shell is all that it needs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from opsctl.domain.passthrough import (
    CtConfig,
    DeviceNode,
    InsideFacts,
    Judged,
    NodeFacts,
    judge_passthrough,
    parse_config,
)
from opsctl.errors import CouldNotTell
from opsctl.records import dataclass
from opsctl.transport.base import Transport

if TYPE_CHECKING:
    from opsctl.containers import Place
    from opsctl.proxmox_container import Container
    from opsctl.session import Hosts

_DEVICES = (
    'for f in /dev/nvidia*; do [ -e "$f" ] && stat -L -c "%n|%F|%t|%T|%a" "$f"; done; echo ==; '
)
NODE_SCRIPT = (
    _DEVICES + "cat /proc/devices; echo ==; cat /proc/driver/nvidia/version 2>/dev/null; echo =="
)
INSIDE_SCRIPT = (
    _DEVICES
    + "for f in $(ldconfig -p 2>/dev/null | sed -n 's/.*=> *//p' | grep -E 'lib(nvidia-ml|cuda)[.]so[.]1$') "
    "/usr/lib/*-linux-gnu/libnvidia-ml.so.1 /usr/lib64/libnvidia-ml.so.1 /usr/lib/libnvidia-ml.so.1 "
    '/usr/local/nvidia/lib64/libnvidia-ml.so.1; do [ -e "$f" ] && readlink -f "$f"; done; echo ==; '
    "stat -f -c '%S %b' /dev/shm 2>/dev/null; echo ==; cat /proc/self/uid_map; echo =="
)
_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_LIBRARY = re.compile(r"lib(?:nvidia-ml|cuda)\.so\.(\d+(?:\.\d+)+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Examined:
    """One container's passthrough in its three views, and the verdict; ``inside`` None: it does not run."""

    status: str
    config: CtConfig
    node: NodeFacts
    inside: InsideFacts | None
    judged: Judged


def examine(hosts: Hosts, place: Place, container: Container) -> Examined:
    """Look at node, configuration and inside, and judge.

    Raises:
        PveError, TransportError, CouldNotTell: one of the views could not be had.
    """
    from opsctl.containers import container_transport

    status = str(container.status().get("status"))
    config = parse_config(container.config())
    node = read_node(hosts.transport(place.node_host))
    inside = read_inside(container_transport(hosts, place)) if status == "running" else None
    judged = judge_passthrough(place.vmid, node, config, inside)
    return Examined(status, config, node, inside, judged)


def read_node(transport: Transport) -> NodeFacts:
    """Read the node's side. Raises TransportError, CouldNotTell."""
    return parse_node(_ask(transport, NODE_SCRIPT))


def read_inside(transport: Transport) -> InsideFacts:
    """Read the container's side. Raises TransportError (also where it does not run), CouldNotTell."""
    return parse_inside(_ask(transport, INSIDE_SCRIPT))


def _ask(transport: Transport, script: str) -> str:
    done = transport.run(["sh", "-c", script], timeout_s=30.0)
    text = done.stdout.decode(errors="replace")
    if not text.rstrip().endswith("=="):
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise CouldNotTell(
            f"{transport.name}: its devices could not be read ({said[-1] if said else 'no answer'})",
            code="not-read",
            subject=transport.name,
        )
    return text


def parse_node(text: str) -> NodeFacts:
    """Read the answer to NODE_SCRIPT."""
    devices, majors, version = _sections(text, 3)
    module = _MODULE.search(version)
    return NodeFacts(parse_majors(majors), parse_devices(devices), module and module[1])


def parse_inside(text: str) -> InsideFacts:
    """Read the answer to INSIDE_SCRIPT."""
    devices, libraries, shm, id_map = _sections(text, 4)
    library = _LIBRARY.search(libraries)
    words = shm.split()
    rows = [line.split() for line in id_map.splitlines() if line.strip()]
    return InsideFacts(
        devices=parse_devices(devices),
        library_version=library and library[1],
        shm_bytes=int(words[0]) * int(words[1]) if len(words) == 2 else None,
        id_map=tuple((int(row[0]), int(row[1]), int(row[2])) for row in rows if len(row) == 3),
    )


def parse_majors(text: str) -> dict[str, int]:
    """Return the majors of character devices by driver, from /proc/devices."""
    found: dict[str, int] = {}
    characters = text.split("Block devices:")[0]
    for line in characters.splitlines():
        words = line.split()
        if len(words) == 2 and words[0].isdigit():
            found.setdefault(words[1], int(words[0]))
    return found


def parse_devices(text: str) -> tuple[DeviceNode, ...]:
    """Return the files below /dev from lines of ``stat -c %n|%F|%t|%T|%a``; folders are left out."""
    found = []
    for line in text.splitlines():
        parts = line.strip().rsplit("|", 4)
        if len(parts) != 5 or parts[1] == "directory":
            continue
        path, kind, major, minor, mode = parts
        number = (int(major, 16), int(minor, 16)) if kind == "character special file" else None
        found.append(DeviceNode(path, number, int(mode, 8)))
    return tuple(found)


def _sections(text: str, count: int) -> list[str]:
    parts = re.split(r"^==$\n?", text, flags=re.MULTILINE)
    if len(parts) < count:
        raise CouldNotTell("the answer about devices was cut", code="not-read")
    return parts[:count]
