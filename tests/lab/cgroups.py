"""The lab's cgroups: found in every hierarchy (v1, hybrid, v2), thawed and removed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def tops(name: str) -> list[Path]:
    """Return the folders of the cgroup ``name`` in all hierarchies.

    LXC makes them below the cgroup of process 1, which is the lab's keeper: wherever `up` was called.
    """
    found = []
    for folder, children, _ in os.walk(ROOT):
        if name in children:
            found.append(Path(folder) / name)
            children.remove(name)
    return found


def folders_below(top: Path) -> list[Path]:
    """Return ``top`` and every cgroup below it, deepest first."""
    return [Path(folder) for folder, _, _ in os.walk(top, topdown=False)]


def thaw(name: str) -> None:
    """Thaw what a test froze: a frozen process does not even die of SIGKILL."""
    for top in tops(name):
        for folder in folders_below(top):
            for file, word in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                if (folder / file).exists():
                    (folder / file).write_text(word)


def kill(name: str) -> int:
    """Kill whoever is left in the cgroups ``name``; return how many there were."""
    pids = {
        int(pid)
        for top in tops(name)
        for folder in folders_below(top)
        for pid in (folder / "cgroup.procs").read_text().split()
    }
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return len(pids)


def remove(name: str, timeout_s: float = 5.0) -> list[Path]:
    """Remove the cgroups ``name`` everywhere; return those that are still in use after the wait."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = []
        for top in tops(name):
            for folder in folders_below(top):
                try:
                    folder.rmdir()
                except OSError:
                    left.append(folder)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)
