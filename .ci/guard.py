"""Run one command so that nothing of it outlives it, however this process, make or the command ends.

``python .ci/guard.py COMMAND...``; its exit code is the command's. Two processes hold everything that
the command starts, daemons included, as their descendants (both are subreapers): the head and below it
the keeper. The keeper kills what is left when the command has ended, and when the head has died, by
kill -9 or with make; the head does it when the keeper was killed. What two kills leave carries a mark in
its environment, and the next run ends it. An apt-get is left to finish. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

MARK = "MAKE_GUARDED_BY"  # not OPSCTL_...: opsctl reports those
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SPARED = ("apt-get", "dpkg")  # to kill them in the middle would break the machine's packages
KILL_S = 10.0
Identity = tuple[int, int]  # pid and start time in ticks


def main(argv: list[str]) -> int:
    """Run ``argv`` guarded and return its exit code."""
    starter = os.environ.pop("OPSCTL_MAKE_PPID", None)
    signal.signal(signal.SIGTERM, _end)
    if _name(os.getppid()) in ("make", "gmake"):
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if starter and starter != str(os.getppid()):
        print("guard: make is gone; nothing is started", file=sys.stderr)
        return 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command gets it from the terminal as well
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    kill_stale()
    head = os.getpid()
    keeper = os.fork()
    if keeper == 0:
        _keep(head, argv)
    ended = _reap_until(keeper)
    if ended < 0:
        kill_all(descendants)
    return ended if ended >= 0 else 128 - ended


def _end(number: int, _frame: object) -> None:
    """End at once: the keeper kills what there is, as after a kill -9."""
    os._exit(128 + number)


def _keep(head: int, argv: list[str]) -> None:
    """Be the keeper; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, _end_all)
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != head:
            os._exit(1)
        mark = f"{head}-{_ticks(head)}-{_namespace()}"
        child = subprocess.Popen(argv, env={**os.environ, MARK: mark}, preexec_fn=_prepare)
        os.setsid()  # a kill of the whole process group spares the keeper
        code = child.returncode = _reap_until(child.pid)
        kill_all(descendants)
    except OSError as error:
        print(f"guard: {error}", file=sys.stderr)
    finally:
        os._exit(code if code >= 0 else 128 - code)


def _end_all(number: int, _frame: object) -> None:
    kill_all(descendants)
    os._exit(128 + number)


def _prepare() -> None:
    """Set up the command between fork and exec: a shell that adopts orphans, as a session's does.

    What opsctl's tests orphan would otherwise have a parent that is a Python program.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _reap_until(pid: int) -> int:
    """Collect every child that ends, adopted ones too; return how ``pid`` ended, a signal negative."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def kill_all(find: Callable[[], set[Identity]]) -> None:
    """Kill what ``find()`` returns until it returns nothing; what will not die is named."""
    deadline = time.monotonic() + KILL_S
    while (found := find()) and time.monotonic() < deadline:
        for pid, ticks in found:
            if _ticks(pid) == ticks:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    if found:
        names = ", ".join(f"{pid} ({_name(pid)})" for pid, _ in sorted(found))
        print(f"guard: these would not end: {names}", file=sys.stderr)


def kill_stale() -> None:
    """Kill what a run has left whose guard and watcher were both killed."""

    def stale() -> set[Identity]:
        found = set()
        for pid, ticks, mark in _marks():
            guard, began, namespace = mark.split("-")
            if namespace == _namespace() and str(_ticks(int(guard))) != began:
                found.add((pid, ticks))
        return found

    kill_all(stale)


def descendants() -> set[Identity]:
    """Return everything below this process, without zombies, the spared, and what is below these."""
    children: dict[int, list[Identity]] = {}
    for pid, state, parent, ticks in _processes():
        if state != "Z" and _name(pid) not in SPARED:
            children.setdefault(parent, []).append((pid, ticks))
    found: set[Identity] = set()
    new = [os.getpid()]
    while new:
        below = children.get(new.pop(), [])
        found.update(below)
        new += [pid for pid, _ in below]
    return found


def _marks() -> Iterator[tuple[int, int, str]]:
    wanted = MARK.encode() + b"="
    everything = list(_processes())
    spared = {pid for pid, *_ in everything if _name(pid) in SPARED} | {os.getpid()}
    for _ in range(3):  # what dpkg runs, and what that runs
        spared |= {pid for pid, _, parent, _ in everything if parent in spared - {os.getpid()}}
    for pid, state, _, ticks in everything:
        if state == "Z" or pid in spared:
            continue
        for entry in _read(f"/proc/{pid}/environ").split(b"\0"):
            if entry.startswith(wanted) and entry.count(b"-") == 2:
                yield pid, ticks, entry[len(wanted) :].decode(errors="replace")


def _processes() -> Iterator[tuple[int, str, int, int]]:
    """Return pid, state, parent and start time of every process."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(int(name))):
            yield int(name), fields[0], int(fields[1]), int(fields[19])


def _stat(pid: int) -> list[str]:
    """Return the fields after the name, state first."""
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].decode().split()


def _ticks(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] != "Z" else None


def _name(pid: int) -> str:
    return _read(f"/proc/{pid}/comm").decode(errors="replace").strip()


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid").strip("pid:[]")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, int(value), 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
