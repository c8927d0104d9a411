"""What is slow to read, or needs rights, of a few processes: descriptors, sockets, environment markers."""

from __future__ import annotations

import os

from opsctl.agent.ops import procfs, sockets

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

MARKER = b"OPSCTL_"  # the only environment entries that ever leave the host


def detail(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return the fields of facts.ProcessDetail, and ``start_ticks``, for each living one of ``pids``.

    Request: ``pids``; ``devices``: prefix of the device files, "/dev/nvidia" by default.
    """
    prefix = request.get("devices", "/dev/nvidia")
    tables = sockets.Tables()
    found = []
    for pid in request["pids"]:
        stat = procfs.read_stat(pid)
        if stat is None:
            continue
        start_ticks = stat.start_ticks
        base, _ = procfs.living_face(pid, stat)
        links = descriptors(base)
        found.append(
            {
                "pid": pid,
                "start_ticks": start_ticks,
                "gpu_devices": devices(base, links, prefix),
                "listening_ports": tables.listening(pid, links),
                "network_namespace": procfs.readlink("/proc/%d/ns/net" % pid),
                "environment_markers": markers(base),
                "unit": procfs.unit_of(
                    procfs.parse_cgroup(procfs.read("/proc/%d/cgroup" % pid) or b"")
                ),
            }
        )
    return {"boot_id": procfs.boot_id(), "details": found}


def device_holders(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return every process that holds or maps a device file; the only operation that reads all descriptors.

    Request: ``devices``: prefix of the device files, "/dev/nvidia" by default.

    Returns:
        ``holders``: objects with ``pid``, ``start_ticks``, ``devices``; ``unreadable``: pids not permitted.
        The agent's own process that asks NVML is left out.
    """
    prefix = request.get("devices", "/dev/nvidia")
    holders, unreadable = [], []
    own = context.held["nvml"].pid if "nvml" in context.held else None
    for pid in procfs.pids():
        if pid == own:
            continue
        if context.cancelled.is_set():
            raise context.Error("cancelled", "the scan was withdrawn")
        stat = procfs.read_stat(pid)
        if stat is None or stat.kernel_thread:
            continue
        base, _ = procfs.living_face(pid, stat)
        links = descriptors(base)
        if links is None:
            if procfs.start_ticks(pid) is not None:
                unreadable.append(pid)
            continue
        held = devices(base, links, prefix)
        if held:
            holders.append({"pid": pid, "start_ticks": stat.start_ticks, "devices": held})
    return {"boot_id": procfs.boot_id(), "holders": holders, "unreadable": unreadable}


def descriptors(base: str) -> list[str] | None:
    """Return what each open descriptor points to, None when that is not ours to see."""
    folder = base + "fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return None
    links = (procfs.readlink(folder + "/" + number) for number in numbers)
    return [link for link in links if link is not None]


def devices(base: str, links: list[str] | None, prefix: str) -> list[str] | None:
    """Return the device files held open or mapped, None when that is not ours to see."""
    if links is None:
        return None
    found = {link for link in links if link.startswith(prefix)}
    wanted = prefix.encode()
    maps = procfs.read(base + "maps") or b""
    if wanted in maps:
        for line in maps.splitlines():
            at = line.find(b" " + wanted)
            if at >= 0:
                found.add(procfs.text(line[at + 1 :]))
    return sorted(found)


def markers(base: str) -> dict[str, str] | None:
    """Return the environment entries that opsctl itself set, None when they are not ours to see."""
    data = procfs.read(base + "environ")
    if data is None:
        return None
    entries = [entry for entry in data.split(b"\0") if entry.startswith(MARKER) and b"=" in entry]
    pairs = (procfs.text(entry).partition("=") for entry in entries)
    return {name: value for name, _, value in pairs}


OPERATIONS = {"detail": detail, "device_holders": device_holders}
