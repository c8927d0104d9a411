"""`up` and `down` of a lab of its own: twice, at once, cut by SIGKILL; nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import cgroups, lifecycle
from tests.lab.fixture import Lab, wait_until
from tests.lab.instance import CHECKOUT, Instance, find_instance

pytestmark = pytest.mark.lab


@pytest.fixture
def instance() -> Iterator[Instance]:
    """A lab that no other test uses, down before and after."""
    if os.geteuid() != 0:
        pytest.skip("a lab with hosts needs root")
    if os.environ.get("OPSCTL_LAB_INSIDE"):
        pytest.skip("a lab inside a lab is not offered")
    instance = find_instance(f"cut-{os.getpid()}")
    yield instance
    lifecycle.down(instance)


def start(instance: Instance, verb: str) -> subprocess.Popen[str]:
    """Start `python -m tests.lab VERB` for the instance."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.lab", verb],
        cwd=CHECKOUT,
        env={**os.environ, "OPSCTL_LAB": instance.name},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def command(instance: Instance, verb: str) -> tuple[int, str]:
    """Run `python -m tests.lab VERB` to its end."""
    with start(instance, verb) as process:
        out, err = process.communicate(timeout=120)
        return process.returncode, out + err


def traces(instance: Instance) -> list[str]:
    """Return what is there of the instance: processes, mounts, cgroups, files."""
    found = [str(path) for path in cgroups.tops(instance.cgroup)]
    mounts = Path("/proc/mounts").read_text().splitlines()
    found += [line for line in mounts if instance.name in line]
    found += processes(instance)
    return found + [str(path) for path in instance.dir.parent.glob(f"{instance.name}*")]


def processes(instance: Instance) -> list[str]:
    """Return the processes whose command line names the instance's folder: keeper, LXC, helpers."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(instance.dir) in process.read_bytes().decode(errors="replace"):
                found.append(str(process))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_up_twice_is_quick_and_down_leaves_nothing(instance: Instance) -> None:
    """The second `up` finds the first one's lab; after `down` nothing of it is there."""
    assert command(instance, "up")[0] == 0
    first = instance.ready_record()
    started = time.monotonic()

    code, text = command(instance, "up")

    assert code == 0, text
    assert time.monotonic() - started < 10
    assert instance.ready_record() == first
    code, text = command(instance, "down")
    assert code == 0, text
    assert traces(instance) == []


def test_a_second_up_at_once_is_refused_in_one_sentence(instance: Instance) -> None:
    """It names the first: its pid and since when."""
    with instance.locked("up"):
        code, text = command(instance, "up")

    assert code == 1
    assert text.startswith(
        f"lab: the lab {instance.name} is busy: pid {os.getpid()} runs `up` since "
    )
    assert text.count("\n") == 1


@pytest.mark.parametrize("delay_s", [0.1, 0.3, 0.6, 0.9, 1.2])
def test_sigkill_in_the_middle_of_up_leaves_nothing_in_the_way(
    instance: Instance, delay_s: float
) -> None:
    """What the cut `up` had built dies with it, and the next one works."""
    with start(instance, "up") as process:
        time.sleep(delay_s)
        process.kill()
        process.wait(10)
    wait_until(lambda: not processes(instance), 5, "every process of the cut lab is gone")

    code, text = command(instance, "up")

    assert code == 0, text
    assert command(instance, "down") == (0, f"lab {instance.name} is down\n")
    assert traces(instance) == []


@pytest.mark.parametrize("delay_s", [0.12, 0.16, 0.2])
def test_sigkill_in_the_middle_of_down_leaves_nothing_in_the_way(
    instance: Instance, delay_s: float
) -> None:
    """The next `up` clears away and works."""
    assert command(instance, "up")[0] == 0
    with start(instance, "down") as process:
        time.sleep(delay_s)
        process.kill()
        process.wait(10)

    code, text = command(instance, "up")

    assert code == 0, text


def test_a_lab_whose_folder_was_removed_is_cleared_away(instance: Instance) -> None:
    """`rm -rf .lab` instead of `down`: the next `up` finds the old one by its cgroups."""
    assert command(instance, "up")[0] == 0
    shutil.rmtree(instance.dir)

    code, text = command(instance, "up")

    assert code == 0, text


def test_up_mends_what_a_cut_test_left(instance: Instance) -> None:
    """A stopped and locked container 129 runs again after a second `up`."""
    assert command(instance, "up")[0] == 0
    record = instance.ready_record()
    assert record is not None
    lab = Lab(instance, record)
    assert lab.pct("stop", "129").exit_code == 0
    lab.on("pve1", ["/usr/bin/sed", "-i", "$ a lock: backup", "/etc/pve/lxc/129.conf"])

    code, text = command(instance, "up")

    assert code == 0, text
    assert lab.pct("status", "129").stdout == "status: running\n"


def test_down_does_not_wait_for_zombies_that_nobody_reaps(instance: Instance) -> None:
    """A program whose starter dies belongs to somebody outside, who may never collect it."""
    assert command(instance, "up")[0] == 0
    record = instance.ready_record()
    assert record is not None
    with subprocess.Popen(
        [sys.executable, "-c", CARELESS, str(record.keeper_pid)],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
    ) as careless:
        try:
            assert careless.stdout is not None
            assert careless.stdout.readline() == b"forked\n"
            started = time.monotonic()

            code, text = command(instance, "down")

            assert code == 0, text
            assert time.monotonic() - started < 20
        finally:
            careless.kill()


CARELESS = """
import os, sys, time
from tests.lab import kernel
kernel.setns(f"/proc/{sys.argv[1]}/ns/pid", kernel.NEWPID)
if os.fork() == 0:
    time.sleep(300)
print("forked", flush=True)
time.sleep(300)
"""


def test_sigkill_of_the_keeper_takes_the_whole_lab(instance: Instance) -> None:
    """One process holds everything; `up` afterwards builds anew."""
    assert command(instance, "up")[0] == 0
    record = instance.ready_record()
    assert record is not None
    assert record.keeper_pid is not None

    os.kill(record.keeper_pid, signal.SIGKILL)

    wait_until(lambda: instance.ready_record() is None, 10, "the lab counts as down")
    assert command(instance, "up")[0] == 0
