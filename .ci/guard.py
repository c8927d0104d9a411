"""Run one command so that nothing of it outlives it, however this process, make or the command ends.

``python .ci/guard.py COMMAND...``; its exit code is the command's. Everything that the command starts,
daemons included, stays a descendant of this process (a subreaper) and is killed when the command has
ended, and when make has died (but for an apt-get, which is left to finish). When this process itself is killed, a watcher does it: it knows the
descendants of a second ago, and recognises the others by a variable in their environment. What two
kills leave is ended by the next run. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

MARK = "MAKE_GUARDED_BY"  # not OPSCTL_...: opsctl reports those
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SPARED = ("apt-get", "dpkg")  # to kill them in the middle would break the machine's packages
LOOK_S = 1.0
KILL_S = 10.0
Identity = tuple[int, int]  # pid and start time in ticks


def main(argv: list[str]) -> int:
    """Run ``argv`` guarded and return its exit code."""
    starter = os.environ.get("OPSCTL_MAKE_PPID")
    if _name(os.getppid()) in ("make", "gmake"):
        signal.signal(signal.SIGTERM, _end)
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if starter and starter != str(os.getppid()):
        print("guard: make is gone; nothing is started", file=sys.stderr)
        return 1
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    kill_stale()
    mark = f"{os.getpid()}-{_ticks(os.getpid())}-{_namespace()}"
    done = _start_watcher(mark)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command gets it from the terminal as well
    signal.signal(signal.SIGTERM, _end)
    child = subprocess.Popen(
        argv,
        env={**os.environ, MARK: mark},
        preexec_fn=lambda: (
            signal.signal(signal.SIGINT, signal.SIG_DFL),
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        ),
    )
    code = _reap_until(child.pid)
    child.returncode = code
    kill_all(lambda: descendants(os.getpid(), but=done.pid))
    done.tell()
    return code


def _end(number: int, _frame: object) -> None:
    """End at once; the watcher kills what is left, as after a kill -9."""
    os._exit(128 + number)


def _reap_until(pid: int) -> int:
    """Collect every child that ends, adopted ones too, and return the exit code of ``pid``."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


class Watcher:
    """The process that acts when this one is killed."""

    def __init__(self, pid: int, line: int) -> None:
        self.pid, self._line = pid, line

    def tell(self) -> None:
        """Say that everything ended as it should."""
        with contextlib.suppress(BrokenPipeError, ChildProcessError):
            os.write(self._line, b"done")
            os.waitpid(self.pid, 0)


def _start_watcher(mark: str) -> Watcher:
    read_end, write_end = os.pipe()  # not inherited by what is executed
    guard = os.getpid()
    pid = os.fork()
    if pid:
        os.close(read_end)
        return Watcher(pid, write_end)
    try:
        os.close(write_end)
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _watch(read_end, guard, mark)
    finally:
        os._exit(0)


def _watch(line: int, guard: int, mark: str) -> None:
    known: set[Identity] = set()
    while not select.select([line], [], [], LOOK_S)[0]:
        known = descendants(guard, but=os.getpid())
    if os.read(line, 16):
        return

    def left() -> set[Identity]:
        alive = {one for one in known if _ticks(one[0]) == one[1]}
        marked = set(_marked(mark))
        below = (descendants(pid) for pid, _ in alive | marked)
        return alive.union(marked, *below) - {(os.getpid(), _ticks(os.getpid()))}

    kill_all(left)


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


def descendants(root: int, but: int = 0) -> set[Identity]:
    """Return everything below ``root``, without zombies, the spared, ``but``, and what is below these."""
    children: dict[int, list[Identity]] = {}
    for pid, state, parent, ticks in _processes():
        if state != "Z" and pid != but and _name(pid) not in SPARED:
            children.setdefault(parent, []).append((pid, ticks))
    found: set[Identity] = set()
    new = [root]
    while new:
        below = children.get(new.pop(), [])
        found.update(below)
        new += [pid for pid, _ in below]
    return found


def _marked(mark: str) -> Iterator[Identity]:
    return ((pid, ticks) for pid, ticks, found in _marks() if found == mark)


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
