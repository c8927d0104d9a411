"""Leftovers on this machine: what is removed is dead, what lives or is unknown is kept."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.site import Server
from opsctl.steps.base import StepOutcome
from opsctl.steps.sweep import Sweep

from .stopping import context, free_port, started, wait_for

# the restart of another worker's test sweeps the same /dev/shm
pytestmark = [pytest.mark.wire, pytest.mark.dead_memory]

SHM = Path("/dev/shm")


@pytest.fixture
def dead_pid() -> int:
    child = subprocess.Popen(["true"])
    child.wait(timeout=10)
    return child.pid


@pytest.fixture
def segments(dead_pid: int) -> Iterator[dict[str, Path]]:
    """One segment of a dead owner, one of a living one, one that a living process has open."""
    mark = f"opsctl{os.getpid()}"
    paths = {
        "dead": SHM / f"sgl_shm_mm_{dead_pid}_{mark}",
        "alive": SHM / f"sgl_shm_mm_{os.getpid()}_{mark}",
        "opened": SHM / f"sgl_shm_mm_{dead_pid}_{mark}x",
        "unrelated": SHM / f"{mark}_{dead_pid}",
    }
    for path in paths.values():
        path.write_bytes(b"x" * 4096)
    holder = f"import time; f=open({str(paths['opened'])!r}); print(1); time.sleep(60)"
    try:
        with started([sys.executable, "-c", holder]) as pid:
            wait_for(
                lambda: any(
                    os.readlink(link) == str(paths["opened"])
                    for link in Path(f"/proc/{pid}/fd").iterdir()
                )
            )
            yield paths
    finally:
        for path in paths.values():
            path.unlink(missing_ok=True)


def test_what_is_no_segment_is_neither_shown_nor_removed(dead_pid: int, tmp_path: Path) -> None:
    """A folder and a link whose names look like a dead server's: somebody made them by hand."""
    folder = SHM / f"sgl_shm_mm_{dead_pid}_folder{os.getpid()}"
    link = SHM / f"sgl_shm_mm_{dead_pid}_link{os.getpid()}"
    folder.mkdir()
    link.symlink_to("/etc/hostname")
    try:
        with context(Server(host="here", port=free_port(), command=["x"]), tmp_path) as ctx:
            swept = Sweep(remove=True).run(ctx)
        assert not {str(folder), str(link)} & {one["path"] for one in swept.data["leftovers"]}
        assert link.is_symlink()
    finally:
        folder.rmdir()
        link.unlink(missing_ok=True)


def test_only_the_dead_owner_s_segment_goes(segments: dict[str, Path], tmp_path: Path) -> None:
    """Owner dead and nobody has it open: removed. Living, opened, unrelated: kept."""
    server = Server(host="here", port=free_port(), command=["x"])
    with context(server, tmp_path) as ctx:
        result = Sweep().run(ctx)

    assert not segments["dead"].exists()
    assert all(segments[name].exists() for name in ("alive", "opened", "unrelated"))
    removed = [item["path"] for item in result.data["leftovers"] if item["removed"]]
    assert str(segments["dead"]) in removed
    assert result.outcome is StepOutcome.DONE


def test_without_the_word_nothing_is_removed(segments: dict[str, Path], tmp_path: Path) -> None:
    """Shown, with the option that would remove it."""
    server = Server(host="here", port=free_port(), command=["x"])
    with context(server, tmp_path) as ctx:
        result = Sweep(remove=False).run(ctx)

    assert all(path.exists() for path in segments.values())
    assert "leftovers" in {finding.code for finding in result.findings}


def test_the_agent_looks_again_before_it_removes(segments: dict[str, Path], tmp_path: Path) -> None:
    """Asked to remove what lives, what is unrelated and what is elsewhere, it keeps all of it."""
    outside = tmp_path / "sgl_shm_mm_1_x"
    outside.write_text("x")
    paths = [str(segments["alive"]), str(segments["opened"]), str(segments["unrelated"])]
    paths += [str(outside), "/dev/shm/../../etc/hostname", "/etc/hostname"]
    server = Server(host="here", port=free_port(), command=["x"])
    with context(server, tmp_path) as ctx:
        reply = ctx.session.agent.call("sweep.remove", {"paths": paths}, timeout_s=20.0)

    assert reply["removed"] == []
    assert [item["path"] for item in reply["kept"]] == paths
    assert outside.exists()
    assert all(segments[name].exists() for name in ("alive", "opened", "unrelated"))


@pytest.fixture(scope="module")
def held_early(locks: Path) -> bool:
    """Say whether the machine was held alone when the fixtures of a module were made."""
    return is_held(locks)


def is_held(locks: Path) -> bool:
    with (locks / "machine").open("a") as another:
        try:
            fcntl.flock(another, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_no_other_wire_test_sweeps_meanwhile(held_early: bool, locks: Path) -> None:
    """A test that leaves dead memory is alone, its module's fixtures too: whoever shares waits for it."""
    assert held_early
    assert is_held(locks)
