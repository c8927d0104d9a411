"""A scan of 5,000 processes by the agent, against ``fuser`` on the devices of the same host."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.measure import Figure, in_turns
from opsctl.agent.client import connect
from opsctl.agent.read import read_processes
from opsctl.transport.local import LocalTransport

COUNT = int(os.environ.get("OPSCTL_BENCH_PROCESSES", "5000"))
START_S = 60


@contextmanager
def crowd(count: int) -> Iterator[None]:
    """Have this many more processes; they do nothing, and end with the pipe that this process holds."""
    wait, hold = os.pipe()
    leader = os.fork()
    if leader == 0:
        os.close(hold)
        for _ in range(count - 1):
            if os.fork() == 0:
                break
        os.read(wait, 1)
        os._exit(0)
    os.close(wait)
    try:
        deadline = time.monotonic() + START_S
        while len([name for name in os.listdir("/proc") if name.isdigit()]) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{count} processes did not start within {START_S} s")
            time.sleep(0.1)
        yield
    finally:
        os.close(hold)
        os.waitpid(leader, 0)


def fuser() -> None:
    subprocess.run(["fuser", "/dev/full"], capture_output=True, timeout=60)


def run() -> list[Figure]:
    """Measure over the local transport: the scan itself counts, read into facts."""
    if shutil.which("fuser") is None:
        print("scan: skipped, there is no fuser here (Debian package psmisc)")
        return []
    with crowd(COUNT), connect(LocalTransport()) as agent:
        ours, peer = in_turns(lambda: read_processes(agent, timeout_s=60), fuser, 5)
    return [Figure(f"scan of {COUNT} processes / fuser", ours, peer, 0.7)]
