"""How long a stop's proof takes over what the server itself takes to end. Needs the lab with hosts up."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.in_lab import time_opsctl
from benchmarks.measure import Figure
from tests.lab.fixture import Lab
from tests.lab.instance import find_instance
from tests.lab.stopping import serve, titled_of

ROUNDS = 5
# What the incident did instead: kill, wait blindly, count.
ONE_LINER = (
    "ps aux | grep sglang | grep -v grep | awk '{print $2}' | xargs kill -9",
    "sleep 3; nvidia-smi | grep 0MiB | wc -l",
)
# On the GPU host: the kernel's word for the last exit, and NVML asked every millisecond.
ORACLE = """\
import ctypes, json, os, select, sys, time
pids = [int(word) for word in sys.argv[1:]]
nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlInit_v2()
class Memory(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)]
    _fields_ += [(name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")]
handles = []
for index in range(8):
    handle = ctypes.c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    handles.append(handle)
def used():
    total = 0
    for handle in handles:
        memory = Memory(version=0x02000028)
        nvml.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(memory))
        total += memory.used
    return total
poll = select.poll()
held = {}
for pid in pids:
    fd = os.pidfd_open(pid)
    held[fd] = pid
    poll.register(fd, select.POLLIN)
print("watching", flush=True)
last_exit = freed = None
while held or freed is None:
    for fd, _ in poll.poll(1):
        last_exit = time.time()
        poll.unregister(fd)
        del held[fd]
    freed = (freed or time.time()) if used() == 0 else None
print(json.dumps({"last_exit": last_exit, "freed": freed}), flush=True)
"""


def run() -> list[Figure]:
    """Stop a stand-in on the GPU host over ssh several times; the one-liner once, for comparison."""
    instance = find_instance()
    record = instance.ready_record()
    if record is None or record.mode != "hosts":
        return []
    lab = Lab(instance, record)
    stop(lab, "--dry-run")  # compiles what an installation has compiled
    stops = [one_stop(lab) for _ in range(ROUNDS)]
    inside, total, ending = (
        statistics.median(getattr(stop, name) for stop in stops)
        for name in ("inside_ms", "total_ms", "ending_ms")
    )
    note = (
        f"whole process; inside the command {inside:.0f} ms; total {total:.0f} ms, of it the server "
        f"{ending:.0f} ms; the one-liner: total {one_liner(lab):.0f} ms, proves nothing"
    )
    over = statistics.median(stop.total_ms - stop.ending_ms for stop in stops)
    proof = statistics.median(stop.proof_ms for stop in stops)
    return [
        Figure("last exit (kernel) to proven free", proof, None, 60),
        Figure("stop + verify less the server's end", over, None, 400, note=note),
    ]


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop, in milliseconds.

    Attributes:
        ending_ms: from the first TERM to the last exit: the server's own time.
        inside_ms: what the command itself took over that, once Python had loaded it.
        proof_ms: from the last exit, by the kernel, to the proof.
    """

    total_ms: float
    ending_ms: float
    inside_ms: float
    proof_ms: float


def one_stop(lab: Lab) -> Stop:
    """Start a server that looks for SIGTERM as seldom as SGLang does, and stop it."""
    root = serve(lab, "gpu1", 30001, "--lab-mem-mib", "20000", "--lab-term-poll-s", "5")
    pids = [str(pid) for pid in (root, *titled_of(lab, "gpu1", root))]
    with lab.popen(lab.host_argv("gpu1", ["python3", "-c", ORACLE, *pids])) as oracle:
        assert oracle.stdout is not None
        assert oracle.stdout.readline() == b"watching\n"
        total_ms, document = stop(lab, "--yes")
        seconds = document["data"]["seconds"]
        truth = json.loads(oracle.stdout.readline())
    return Stop(
        total_ms=total_ms,
        ending_ms=seconds["ending"] * 1000,
        inside_ms=(seconds["total"] - seconds["ending"]) * 1000,
        proof_ms=(seconds["proven_at"] - max(truth["last_exit"], truth["freed"])) * 1000,
    )


def stop(lab: Lab, *words: str) -> tuple[float, Any]:
    with tempfile.TemporaryDirectory() as state:
        return time_opsctl(lab, "stop", "plain", *words, "--state", state)


def one_liner(lab: Lab) -> float:
    """Run the incident's two commands over ssh, as it did."""
    serve(lab, "gpu1", 30001, "--lab-mem-mib", "20000")
    begun = time.perf_counter()
    for line in ONE_LINER:
        lab.ssh("gpu1", line)
    return (time.perf_counter() - begun) * 1000


def main() -> None:
    for figure in run():
        print(figure.line())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
