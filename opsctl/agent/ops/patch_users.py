"""Which processes run the files of an installed package, as they were when they started.

Many environments share one interpreter file, so the file that a process executes proves nothing: it
has to have been started from the environment's own folder, or to have libraries of that environment
mapped, and to name the module.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

Data = Dict[str, Any]


def running(interpreter: Optional[str], module: Optional[str], root: str) -> List[Data]:
    """Return pid and start of each process that runs the package at ``root``, and of those below it."""
    if not interpreter or not module:
        return []
    executed = os.path.realpath(interpreter)
    same = [pid for pid in _pids() if _link(pid, "exe") == executed and pid != os.getpid()]
    found = {pid for pid in same if _is_user(pid, interpreter, module, root)}
    parents = {pid: _parent(pid) for pid in same}
    for _ in range(len(same)):  # a worker that bears another title runs what its parent runs
        below = {pid for pid in same if pid not in found and parents[pid] in found}
        if not below:
            break
        found |= below
    return [one for one in (_started(pid) for pid in sorted(found)) if one]


def names_module(argv: List[str], module: str) -> bool:
    """Say whether one of the words is the module, one inside it, its script, or a title of its workers.

    >>> names_module(["python", "-m", "sglang.launch_server"], "sglang")
    True
    >>> names_module(["python", "train.py", "--name", "my-sglang-notes"], "sglang")
    False
    """
    starts = (module + ".", module + "::")
    return any(
        word == module or word.startswith(starts) or os.path.basename(word) == module
        for word in argv
    )


def _is_user(pid: int, interpreter: str, module: str, root: str) -> bool:
    argv = _argv(pid)
    if not names_module(argv, module):
        return False
    folder = os.path.dirname(os.path.abspath(interpreter))
    if os.path.isabs(argv[0]) and os.path.dirname(argv[0]) == folder:
        return True
    return _maps(pid, os.path.dirname(root))


def _pids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _argv(pid: int) -> List[str]:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            words = file.read().rstrip(b"\0").split(b"\0")
    except OSError:
        return []
    return [os.fsdecode(word) for word in words]


def _link(pid: int, name: str) -> Optional[str]:
    try:
        return os.readlink("/proc/%d/%s" % (pid, name))
    except OSError:
        return None


def _maps(pid: int, folder: str) -> bool:
    inside = os.fsencode(folder.rstrip("/") + "/")
    try:
        with open("/proc/%d/maps" % pid, "rb") as file:
            return any(inside in line for line in file)
    except OSError:
        return False


def _parent(pid: int) -> Optional[int]:
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _started(pid: int) -> Optional[Data]:
    try:
        return {"pid": pid, "started": os.stat("/proc/%d" % pid).st_mtime}
    except OSError:
        return None
