"""How long a stop's proof takes over what the server itself takes to end. Needs the lab with hosts up."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

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
    proofs, overheads, totals = [], [], []
    for _ in range(ROUNDS):
        proof_ms, overhead_ms, total_ms = one_stop(lab)
        proofs.append(proof_ms)
        overheads.append(overhead_ms)
        totals.append(total_ms)
    note = f"total {statistics.median(totals):.0f} ms; the one-liner: {one_liner(lab):.0f} ms, proves nothing"
    return [
        Figure("last exit (kernel) to proven free", statistics.median(proofs), None, 60),
        Figure(
            "stop + verify less the server's end",
            statistics.median(overheads),
            None,
            400,
            note=note,
        ),
    ]


def one_stop(lab: Lab) -> tuple[float, float, float]:
    """Return the proof's delay, the overhead, and the whole process's time, in milliseconds."""
    root = serve(lab, "gpu1", 30001, "--lab-mem-mib", "20000")
    pids = [str(pid) for pid in (root, *titled_of(lab, "gpu1", root))]
    lxc = ["lxc-attach", "-P", str(lab.instance.dir / "lxc"), "-n", "gpu1", "--clear-env", "--"]
    with (
        lab.popen([*lxc, "python3", "-c", ORACLE, *pids]) as oracle,
        tempfile.TemporaryDirectory() as state,
    ):
        assert oracle.stdout is not None
        assert oracle.stdout.readline() == b"watching\n"
        argv = [
            sys.executable,
            "-m",
            "opsctl",
            "stop",
            "plain",
            "--yes",
            "--json",
            "--state",
            state,
        ]
        inner = f"import subprocess,sys,time; t=time.time(); d=subprocess.run({argv!r},capture_output=True); "
        inner += "print(time.time()-t); sys.stdout.buffer.write(d.stdout)"
        done = lab.run([sys.executable, "-c", inner])
        took, _, text = done.stdout.partition("\n")
        seconds = json.loads(text)["data"]["seconds"]
        truth = json.loads(oracle.stdout.readline())
    total_ms = float(took) * 1000
    return (
        (seconds["proven_at"] - max(truth["last_exit"], truth["freed"])) * 1000,
        total_ms - seconds["ending"] * 1000,
        total_ms,
    )


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
