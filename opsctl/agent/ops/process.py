"""The table of all processes, quickly: descriptors, maps and environment are for candidates (``detail``)."""

from __future__ import annotations

import os
import time

from opsctl.agent.ops import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

FIELDS = (
    "pid",
    "ppid",
    "state",
    "start_ticks",
    "session",
    "uid",
    "comm",
    "argv",
    "cgroup",
    "ns_pids",
    "pid_namespace",
    "exe",
)


def scan(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return every process: ``fields`` names the columns of ``rows``; ``users`` maps uid to name.

    The request is empty. Long strings that repeat (cgroup, exe, pid namespace) are numbers into ``strings``.
    """
    strings = Strings()
    rows = []
    for pid in procfs.pids():
        if context.cancelled.is_set():
            raise context.Error("cancelled", "the scan was withdrawn")
        row = read_row(pid, strings)
        if row is not None:
            rows.append(row)
    return {
        "boot_id": procfs.boot_id(),
        "clock_ticks": procfs.CLOCK_TICKS,
        "uptime_s": uptime_s(),
        "fields": FIELDS,
        "rows": rows,
        "strings": list(strings.known),
        "users": users({row[5] for row in rows}),
        "self_pid": os.getpid(),
    }


class Strings:
    """Numbers for strings that repeat; None stays None."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def number(self, value: str | None) -> int | None:
        if value is None:
            return None
        return self.known.setdefault(value, len(self.known))


def read_row(pid: int, strings: Strings) -> list[Any] | None:
    """Return one process as a row of FIELDS, None when it vanished meanwhile."""
    stat = procfs.read_stat(pid)
    if stat is None:
        return None
    head = [pid, stat.ppid, stat.state, stat.start_ticks, stat.session]
    if stat.kernel_thread:  # it has none of the rest
        return [*head, 0, stat.comm, [], strings.number(""), [pid], None, None]
    status = procfs.read_record("/proc/%d/status" % pid)
    if status is None:
        return None
    base, head[2] = procfs.living_face(pid, stat)
    uid, ns_pids = procfs.parse_status(status)
    argv = procfs.parse_argv(procfs.read_record(base + "cmdline") or b"")
    cgroup = procfs.parse_cgroup(procfs.read_record(base + "cgroup") or b"")
    namespace = procfs.readlink(base + "ns/pid")
    exe = procfs.readlink(base + "exe")
    numbers = [strings.number(value) for value in (cgroup, namespace, exe)]
    return [*head, uid, stat.comm, argv, numbers[0], ns_pids or (pid,), numbers[1], numbers[2]]


def uptime_s() -> float:
    """Return seconds since boot on the clock that start ticks use (it goes on during suspend)."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def users(uids: set[int]) -> dict[str, str]:
    """Return the names of the local password file by uid; others have none.

    The file is read rather than asked through NSS: a hung directory service must not hang a scan.
    """
    names: dict[str, str] = {}
    for line in procfs.text(procfs.read("/etc/passwd") or b"").splitlines():
        parts = line.split(":")
        if len(parts) > 2 and parts[2].isdigit() and int(parts[2]) in uids:
            names.setdefault(parts[2], parts[0])
    return names


OPERATIONS = {"scan": scan}
