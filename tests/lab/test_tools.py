"""The lab's tools for bad days: D state, a reused pid, a slow line; and its other two modes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

from tests.lab import dstate, gpus, lifecycle, rootless
from tests.lab.delay import far
from tests.lab.enter import run_inside
from tests.lab.fixture import Lab, wait_until
from tests.lab.instance import CHECKOUT, find_instance

pytestmark = pytest.mark.lab


def state_of(lab: Lab, host: str, pid: int) -> str:
    """Return the letter in /proc/PID/stat, "" when there is no such process."""
    stat = lab.on(host, ["/usr/bin/cat", f"/proc/{pid}/stat"]).stdout
    return stat.rpartition(") ")[2][:1]


@pytest.mark.skipif(not dstate.can_freeze(), reason="needs a cgroup v1 freezer for D state")
def test_a_process_in_d_state_survives_sigkill_and_keeps_its_memory(clean_lab: Lab) -> None:
    """It dies, and its memory is free, once it is let go."""
    with clean_lab.holding("ct129", 5, 64) as pid:
        with dstate.uninterruptible(clean_lab, "ct129", pid):
            clean_lab.on("ct129", ["/usr/bin/kill", "-9", str(pid)])

            assert state_of(clean_lab, "ct129", pid) == "D"
            used = clean_lab.on("pve1", ["/usr/bin/nvidia-smi"]).stdout
            assert " 64MiB" in used
        wait_until(lambda: state_of(clean_lab, "ct129", pid) == "", 15, "it is gone")


@pytest.mark.parametrize("host", ["gpu1", "ct129"])
def test_a_pid_can_be_given_to_another_program(lab: Lab, host: str) -> None:
    """The number comes back, as by chance on a busy host."""
    first = lab.popen(lab.host_argv(host, ["/bin/sh", "-c", "echo $$; exec sleep 600"]))
    with first:
        assert first.stdout is not None
        pid = int(first.stdout.readline())
        lab.on(host, ["/usr/bin/kill", "-9", str(pid)])
        first.wait(10)

    with lab.start_as(host, pid, ["/usr/bin/sleep", "601"]):
        line = lab.on(host, ["/usr/bin/cat", f"/proc/{pid}/cmdline"]).stdout

        assert line.split("\0")[:2] == ["/usr/bin/sleep", "601"]


def connect_ms(address: str) -> float:
    """Return how long a TCP connection takes: one round trip."""
    started = time.monotonic()
    with socket.create_connection((address, 22), 5):
        return (time.monotonic() - started) * 1000


def test_the_far_way_in_is_slow_and_the_near_one_is_not(lab: Lab) -> None:
    """20 ms round trip on pve1-far; ssh works through it, and it goes when the block ends."""
    with far(lab, "pve1", 20) as address:
        slow = sorted(connect_ms(address) for _ in range(5))
        quick = sorted(connect_ms("10.77.1.1") for _ in range(5))

        assert slow[0] >= 20
        assert slow[2] < 40
        assert quick[2] < 15
        assert lab.ssh("pve1-far", "hostname").stdout == "pve1\n"
    with pytest.raises(OSError, match=r"unreachable|timed out|refused"):
        connect_ms(address)


def test_a_fleet_is_up_in_seconds_and_its_hosts_are_apart() -> None:
    """Ten hosts: own name, boot id, GPUs and files; one command line on each."""
    if os.geteuid() != 0:
        pytest.skip("a fleet needs root (network namespaces)")
    if os.environ.get("OPSCTL_LAB_INSIDE"):
        pytest.skip("a lab inside a lab is not offered")
    instance = find_instance(f"fleet-{os.getpid()}")
    try:
        record = lifecycle.up(instance, fleet=10)
        said = set()
        for number in (1, 2, 10):
            script = (
                "hostname; cat /proc/sys/kernel/random/boot_id; nvidia-smi -L | head -1; ls /root"
            )
            argv = ["ssh", "-F", str(instance.ssh_config), f"h{number}", f"{script}; touch /root/x"]
            done = run_inside(instance, record, argv, timeout_s=20)
            lines = done.stdout.decode().splitlines()
            assert lines[0] == f"h{number}", done.stderr
            assert len(lines) == 3
            said |= set(lines)

        assert len(said) == 9
        assert record.seconds is not None
        assert record.seconds < 30
    finally:
        lifecycle.down(instance)


def test_the_mode_without_root_has_gpus_and_says_what_it_lacks() -> None:
    """nvidia-smi and holders work; a fault shows; `down` ends its sshd."""
    instance = find_instance(f"rootless-{os.getpid()}")
    try:
        record = rootless.up(instance)
        folder = instance.gpu_dirs / "here"
        hold = [sys.executable, "-m", "tests.lab", "run", "--", sys.executable]
        environment = {**os.environ, "OPSCTL_LAB": instance.name}
        holder = subprocess.Popen(
            [*hold, str(CHECKOUT / "tests/lab/hold.py"), "--gpu", "1", "--mib", "77"],
            stdout=subprocess.PIPE,
            cwd=CHECKOUT,
            env=environment,
        )
        with holder:
            assert holder.stdout is not None
            assert holder.stdout.readline().startswith(b"holding")
            smi = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
            shown = run_inside(instance, record, smi, timeout_s=20).stdout.decode()
            assert shown == f"{holder.pid}, 77 MiB\n"
            holder.kill()
        gpus.set_fault(folder, "driver-not-loaded")
        assert run_inside(instance, record, ["nvidia-smi"], timeout_s=20).returncode == 9
        assert any(text.startswith("containers:") for text in record.missing)
        if record.sshd_port is not None:
            ssh = ["ssh", "-F", str(instance.ssh_config), "me", "echo $NVML_LAB_DIR"]
            assert run_inside(instance, record, ssh, timeout_s=20).stdout.decode().strip() == str(
                folder
            )
    finally:
        lifecycle.down(instance)
    if record.sshd_port is not None:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", record.sshd_port), 1)
