"""Far side of the evidence: what the processes of a server are doing right now, and the kernel log's end."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

from opsctl.agent.ops import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

TITLE = b"sglang::"
KERNEL_LINES = 60
SPY_TRIES = 3


def collect(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return state, wait channel, kernel and (with py-spy) Python stack of each process, and the kernel log.

    The request: roots (pids), limit_s. Workers that lost their parent are found by their title.
    """
    end = time.monotonic() + request.get("limit_s", 8.0)
    pids = tree(set(request.get("roots") or []))
    spy = shutil.which("py-spy") or beside(pids)
    found = []
    for pid in pids:
        if context.cancelled.is_set() or time.monotonic() > end:
            break
        found.append(one(pid, spy, end))
    cut = len(found) < len(pids)
    return {"processes": found, "kernel": kernel_log(end), "py_spy": spy, "cut": cut}


def kernel(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return the end of this machine's kernel log; ``lines`` None where it may not be read."""
    return {"lines": kernel_log(time.monotonic() + request.get("limit_s", 2.0))}


def tree(roots: set[int]) -> list[int]:
    """Return the roots, their descendants, and processes with a worker's title; ascending."""
    parents, titled = {}, set()
    for pid in procfs.pids():
        stat = procfs.parse_stat(procfs.read("/proc/%d/stat" % pid) or b"")
        if stat is None:
            continue
        parents[pid] = stat.ppid
        if (procfs.read("/proc/%d/cmdline" % pid) or b"").startswith(TITLE):
            titled.add(pid)
    members = {pid for pid in roots | titled if pid in parents}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in members} - members
        members |= more
        grown = bool(more)
    return sorted(members)


def one(pid: int, spy: str | None, end: float) -> dict[str, Any]:
    """Return what one process is doing; what may not be read is None."""
    base = "/proc/%d/" % pid
    stat = procfs.parse_stat(procfs.read(base + "stat") or b"")
    return {
        "pid": pid,
        "title": procfs.command_line(procfs.parse_argv(procfs.read(base + "cmdline") or b""), 200),
        "state": stat.state if stat else None,
        "wchan": text(base + "wchan"),
        "kernel_stack": text(base + "stack"),
        "python_stack": python_stack(spy, pid, end),
    }


def beside(pids: list[int]) -> str | None:
    """Return the py-spy that was installed with a server (SGLang asks for it), beside its interpreter.

    Only of this mount namespace, and only a file that nobody but root or this user can have written.
    """
    here = procfs.readlink("/proc/self/ns/mnt")
    for pid in pids:
        argv = procfs.parse_argv(procfs.read("/proc/%d/cmdline" % pid) or b"")
        if not argv or not argv[0].startswith("/"):
            continue
        path = os.path.join(os.path.dirname(argv[0]), "py-spy")
        try:
            found = os.stat(path)
        except OSError:
            continue
        ours = found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022
        if ours and os.access(path, os.X_OK) and procfs.readlink("/proc/%d/ns/mnt" % pid) == here:
            return path
    return None


def text(path: str) -> str | None:
    data = procfs.read(path)
    return None if data is None else data.decode(errors="replace").strip()[:4000]


def python_stack(spy: str | None, pid: int, end: float) -> str | None:
    """Ask py-spy, where it is installed, without stopping the process: a frozen one has no other way.

    A frame that changes while it is read makes it fail; the next try sees another.
    """
    for _ in range(SPY_TRIES if spy is not None else 0):
        left = min(3.0, end - time.monotonic())
        if left < 0.5:
            return None
        said = output([str(spy), "dump", "--nonblocking", "--pid", str(pid)], left)
        if said:
            return said
    return None


def kernel_log(end: float) -> list[str] | None:
    """Return the kernel log's last lines; None where it may not be read."""
    left = min(2.0, end - time.monotonic())
    said = output(["dmesg"], left) if left > 0.2 and os.path.exists("/dev/kmsg") else None
    return None if said is None else said.splitlines()[-KERNEL_LINES:]


def output(argv: list[str], timeout_s: float) -> str | None:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace")[:20000] if done.returncode == 0 else None


OPERATIONS = {"collect": collect, "kernel": kernel}
