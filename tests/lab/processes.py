"""Processes of a lab, seen from the machine: who is alive, and the end of a whole process namespace."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.lab import kernel
from tests.lab.errors import LabError


def is_alive(pid: int, ticks: int | None) -> bool:
    """Say whether process ``pid`` still is the one that started at ``ticks``, and is not on its way out.

    A process that exits gives its namespaces up before anything else, also while it waits for others.
    """
    if kernel.start_ticks(pid) != ticks:
        return False
    try:
        os.readlink(f"/proc/{pid}/ns/net")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return True


def kill_namespace(pid: int, ticks: int | None, timeout_s: float = 30.0) -> None:
    """Kill process 1 of a process namespace, and wait until everything in it is dead.

    The kernel kills the rest. It also waits until all are reaped, which can take long: a program that
    was started from outside belongs to the machine's process 1 when its starter has died, and that
    may reap late. A zombie holds nothing any more, so it counts as dead here.

    Raises:
        LabError: a process does not die; it is in D state.
    """
    if kernel.start_ticks(pid) != ticks:
        return
    members = _members(pid)
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if kernel.start_ticks(pid) != ticks:
            return  # the pid belongs to somebody else by now
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)
    deadline = time.monotonic() + timeout_s
    while True:
        left = [member for member in members if not _is_dead(*member)]
        if not left and not is_alive(pid, ticks):
            return
        if time.monotonic() > deadline:
            named = ", ".join(str(member) for member, _ in left[:5]) or str(pid)
            raise LabError(f"of the lab's processes {named} do not die; are they in D state?")
        time.sleep(0.01)


def _members(init: int) -> list[tuple[int, int]]:
    """Return (pid, start ticks) of all in the namespace of ``init`` and in those below it."""
    found: dict[int, tuple[int, int]] = {}
    parents: dict[int, int] = {}
    namespaces: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        try:
            stat = (entry / "stat").read_text()
            namespaces[pid] = os.readlink(entry / "ns/pid")
        except OSError:
            continue
        fields = stat[stat.rindex(")") + 2 :].split()
        parents[pid] = int(fields[1])
        found[pid] = (pid, int(fields[19]))
    inside = {pid for pid, name in namespaces.items() if name == namespaces.get(init)}
    grew = True
    while grew:
        below = {pid for pid, parent in parents.items() if parent in inside} - inside
        inside |= below
        grew = bool(below)
    return [found[pid] for pid in inside if pid != init]


def _is_dead(pid: int, ticks: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    fields = stat[stat.rindex(")") + 2 :].split()
    return int(fields[19]) != ticks or fields[0] in ("Z", "X")
