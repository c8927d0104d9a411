"""The guard of `make demo` and `make test`: whatever is killed, nothing of a run outlives it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.wire
ROOT = Path(__file__).resolve().parents[2]
GUARD = [sys.executable, str(ROOT / ".ci" / "guard.py")]
# a child, and a daemon with a session of its own and an empty environment
WORK = (
    "sleep 300 & echo $! >child; setsid -f env -i sh -c 'echo $$ >daemon; exec sleep 300'; {then}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A working directory; what a failing test left in it ends."""
    yield tmp_path
    for name in ("child", "daemon"):
        if (tmp_path / name).exists() and is_alive(pid_in(tmp_path / name)):
            os.kill(pid_in(tmp_path / name), signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Say whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pid_in(file: Path) -> int:
    return int(file.read_text())


def wait_for(true: Callable[[], bool], what: str) -> None:
    """Wait up to 15 s."""
    deadline = time.monotonic() + 15
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def start(folder: Path, argv: list[str]) -> subprocess.Popen[bytes]:
    """Start ``argv`` in ``folder`` and wait until its child and its daemon run."""
    process = subprocess.Popen(argv, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True)
    files = [folder / "child", folder / "daemon"]
    wait_for(lambda: all(f.exists() and f.read_text().strip() for f in files), "it started")
    return process


def assert_all_end(folder: Path) -> None:
    for name in ("child", "daemon"):
        pid = pid_in(folder / name)
        wait_for(lambda pid=pid: not is_alive(pid), f"{name} {pid} outlived the run")  # type: ignore[misc]


def test_what_the_command_left_running_ends_with_it(folder: Path) -> None:
    """A run that ends by itself leaves no daemon, and its exit code is the guard's."""
    work = WORK.format(then="while [ ! -s daemon ]; do sleep 0.05; done; exit 7")
    done = subprocess.run([*GUARD, "sh", "-c", work], cwd=folder, timeout=60, check=False)

    assert done.returncode == 7
    assert_all_end(folder)


def test_a_killed_guard_leaves_nothing(folder: Path) -> None:
    """kill -9 of the run's head ends children and daemons alike."""
    guard = start(folder, [*GUARD, "sh", "-c", WORK.format(then="wait")])
    guard.kill()
    guard.wait(10)

    assert_all_end(folder)


def test_a_killed_process_group_leaves_nothing(folder: Path) -> None:
    """kill -9 of the whole group spares the keeper, which ends the daemons."""
    guard = start(folder, [*GUARD, "sh", "-c", WORK.format(then="wait")])
    os.killpg(guard.pid, signal.SIGKILL)
    guard.wait(10)

    assert_all_end(folder)


def test_a_killed_command_leaves_nothing(folder: Path) -> None:
    """kill -9 of the command itself ends what it had started; the exit code tells."""
    guard = start(folder, [*GUARD, "sh", "-c", "echo $$ >command;" + WORK.format(then="wait")])
    os.kill(pid_in(folder / "command"), signal.SIGKILL)

    assert guard.wait(20) == 137
    assert_all_end(folder)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_a_killed_make_takes_its_run_along(folder: Path) -> None:
    """kill -9 of make ends the guard, which ends everything else."""
    script = folder / "run.sh"
    script.write_text(WORK.format(then="wait"))
    (folder / "Makefile").write_text(f"all:\n\t@{' '.join(GUARD)} sh {script}\n")
    make = start(folder, ["make"])
    make.kill()
    make.wait(10)

    assert_all_end(folder)


def test_a_killed_keeper_leaves_nothing(folder: Path) -> None:
    """kill -9 of the process between head and command: the head ends everything."""
    guard = start(folder, [*GUARD, "sh", "-c", "echo $PPID >keeper;" + WORK.format(then="wait")])
    os.kill(pid_in(folder / "keeper"), signal.SIGKILL)

    assert guard.wait(20) == 137
    assert_all_end(folder)


def test_what_two_kills_left_ends_with_the_next_run(folder: Path) -> None:
    """Head and keeper both killed: the next run ends what carries their mark."""
    work = "echo $PPID >keeper; sleep 300 & echo $! >child; echo $! >daemon; wait"
    guard = start(folder, [*GUARD, "sh", "-c", work])
    for pid in (guard.pid, pid_in(folder / "keeper")):
        os.kill(pid, signal.SIGSTOP)  # neither may act on the other's death
    for pid in (pid_in(folder / "keeper"), guard.pid):
        os.kill(pid, signal.SIGKILL)
    guard.wait(10)
    assert is_alive(pid_in(folder / "child"))

    subprocess.run([*GUARD, "true"], cwd=folder, timeout=30, check=True)

    assert not is_alive(pid_in(folder / "child"))
