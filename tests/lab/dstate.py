"""Put a process of a lab host into D state: not even SIGKILL ends it until it is let go.

Needs a cgroup v1 freezer (v2's lets SIGKILL through); `can_freeze()` says whether there is one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.lab.fixture import Lab

FREEZER = Path("/sys/fs/cgroup/freezer")


def can_freeze() -> bool:
    """Return whether this machine can do it."""
    return (FREEZER / "cgroup.procs").exists()


@contextmanager
def uninterruptible(lab: Lab, host: str, pid: int) -> Iterator[None]:
    """Hold process ``pid`` (its number on ``host``) in D state for the time of the block.

    The cgroup lies below the process's own, so the path that the node sees keeps its prefix, and
    `down` finds, thaws and removes it whatever happens to the test.
    """
    outer = lab.outer_pid(host, pid)
    own = next(
        line.split(":", 2)[2].lstrip("/")
        for line in Path(f"/proc/{outer}/cgroup").read_text().splitlines()
        if line.split(":")[1] == "freezer"
    )
    stuck = FREEZER / own / f"stuck-{outer}"
    stuck.mkdir()
    try:
        (stuck / "cgroup.procs").write_text(str(outer))
        (stuck / "freezer.state").write_text("FROZEN")
        yield
    finally:
        (stuck / "freezer.state").write_text("THAWED")
        for line in (stuck / "cgroup.procs").read_text().split():
            _move(line, FREEZER / own)
        _remove(stuck)


def _move(pid: str, cgroup: Path) -> None:
    try:
        (cgroup / "cgroup.procs").write_text(pid)
    except ProcessLookupError:
        pass  # it died as soon as it was thawed


def _remove(cgroup: Path) -> None:
    deadline = time.monotonic() + 5
    while True:
        try:
            cgroup.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
