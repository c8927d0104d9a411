"""Facts of one kernel or container."""

from __future__ import annotations

import os
import sys
import time

from opsctl.agent.ops import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context


def read(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return the fields of facts.Host. The request is empty."""
    name = os.uname()
    return {
        "boot_id": procfs.boot_id(),
        "hostname": name.nodename,
        "kernel": name.release,
        "systemd": os.path.isdir("/run/systemd/system"),
        "container": container(),
        "pid_namespace": procfs.readlink("/proc/self/ns/pid"),
        "network_namespace": procfs.readlink("/proc/self/ns/net"),
        "uid": os.geteuid(),
        "python": "%d.%d.%d" % sys.version_info[:3],
        "clock_ticks": procfs.CLOCK_TICKS,
        "clock_s": time.time(),
        "uid_map": uid_map(procfs.read("/proc/self/uid_map") or b""),
    }


def uid_map(data: bytes) -> list[list[int]]:
    """Return the ranges of user_namespaces(7): first uid here, the same outside, how many."""
    return [[int(word) for word in line.split()] for line in data.splitlines()]


def container() -> str | None:
    """Return the kind of container that this is, None on a machine of its own.

    Source: systemd's container interface (/run/systemd/container, container= of pid 1), Docker, Podman.
    """
    marked = procfs.read("/run/systemd/container")
    if marked and marked.strip():
        return procfs.text(marked).strip()
    for entry in (procfs.read("/proc/1/environ") or b"").split(b"\0"):
        if entry.startswith(b"container="):
            return procfs.text(entry[10:]) or "unknown"
    if os.path.exists("/.dockerenv"):
        return "docker"
    if os.path.exists("/run/.containerenv"):
        return "podman"
    return _by_kernel_threads()


def _by_kernel_threads() -> str | None:
    """Without kthreadd as pid 2, this is a pid namespace of its own: some container."""
    stat = procfs.read_stat(2)
    if stat is not None and stat.kernel_thread:
        return None
    links = procfs.readlink("/proc/self/ns/pid")
    return None if links == "pid:[4026531836]" else "unknown"


OPERATIONS = {"read": read}
