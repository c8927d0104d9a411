"""How long a stop's proof takes over what the server itself takes to end. Needs the lab with hosts up.

Twice: real SGLang in container 129, launched and stopped by opsctl over ssh and pct (where it is installed),
and the stand-in on the GPU host over ssh, which looks for SIGTERM only every 5 s, as SGLang on a GPU does.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.in_lab import time_opsctl
from benchmarks.measure import Figure
from tests.lab.fixture import Lab
from tests.lab.instance import find_instance
from tests.lab.stopping import serve, table, titled_of

ROUNDS = 5
REAL_ROUNDS = 5  # each of them starts real SGLang; medians of three scattered by 40 ms
# What the incident did instead: kill, wait blindly, count.
ONE_LINER = (
    "ps aux | grep sglang | grep -v grep | awk '{print $2}' | xargs kill -9",
    "sleep 3; nvidia-smi | grep 0MiB | wc -l",
)
# On the GPU host: the kernel's word for the last exit, and NVML asked every millisecond from the first exit
# on: before it nothing can be free, and asking would take a processor from what is measured.
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
    for fd, _ in poll.poll(1 if len(held) < len(pids) else None):
        last_exit = time.time()
        poll.unregister(fd)
        del held[fd]
    if len(held) < len(pids):
        freed = (freed or time.time()) if used() == 0 else None
print(json.dumps({"last_exit": last_exit, "freed": freed}), flush=True)
"""


def run() -> list[Figure]:
    """Stop real SGLang in the container, and a stand-in on the GPU host, several times."""
    instance = find_instance()
    record = instance.ready_record()
    if record is None or record.mode != "hosts":
        return []
    lab = Lab(instance, record)
    with tempfile.TemporaryDirectory() as folder:
        return [*real_figures(lab, Path(folder)), *figures(lab, Path(folder))]


def figures(lab: Lab, folder: Path) -> list[Figure]:
    """Stop a stand-in on the GPU host over ssh several times; the one-liner once, for comparison."""
    stop(lab, "plain", "--dry-run", state=folder)  # compiles what an installation has compiled
    stops = [one_stop(lab, folder) for _ in range(ROUNDS)]
    note = describe(stops, one_liner(lab, "gpu1"))
    return [
        Figure("last exit (kernel) to proven free", median(stops, "proof_ms"), None, 60),
        Figure(
            "stop + verify less the server's end", median(stops, "over_ms"), None, 400, note=note
        ),
    ]


def real_figures(lab: Lab, folder: Path) -> list[Figure]:
    """Launch and stop real SGLang in container 129 several times; kill it by the one-liner once.

    Once as the lab runs it, and once with its idle scheduler spinning, as SGLang's own default is: on a
    machine of two cores that leaves the other to the host, its container and the client.
    """
    servers = yaml.safe_load(lab.site_file.read_text())["servers"]
    if "real" not in servers:
        return []  # python -m tests.lab.sglang build
    found = []
    for idle in ("asleep", "spinning"):
        words = real_site(lab, servers["real"], idle, folder)
        stop(lab, "real", "--dry-run", *words, state=folder)
        stops = []
        for _ in range(REAL_ROUNDS):
            launch(lab, words, folder)
            stops.append(watched_stop(lab, "real", "pve1", members(lab), *words, state=folder))
        launch(lab, words, folder)
        note = describe(stops, one_liner(lab, "ct129"))
        stop(lab, "real", "--yes", "--sweep", *words, state=folder)
        name = f"real SGLang, {idle} when idle"
        proof, over = median(stops, "proof_ms"), median(stops, "over_ms")
        found += [
            Figure(f"{name}: last exit to proven free", proof, None, 60),
            Figure(f"{name}: stop + verify less its end", over, None, 400, note=note),
        ]
    return found


def real_site(lab: Lab, server: dict[str, Any], idle: str, folder: Path) -> tuple[str, str]:
    """Write a site with this server alone; return the words that name it."""
    site = yaml.safe_load(lab.site_file.read_text())
    args = {**server["args"], "sleep-on-idle": idle == "asleep"}
    mine = {**server, "args": args, "gpus": {"host": "pve1", "expect": 8}}
    path = folder / f"{idle}.yaml"
    path.write_text(yaml.safe_dump({**site, "servers": {"real": mine}}))
    return "--site", str(path)


def median(stops: Sequence[Stop], name: str) -> float:
    return statistics.median(getattr(stop, name) for stop in stops)


def describe(stops: Sequence[Stop], one_liner_ms: float) -> str:
    """Return the totals that stand behind a difference."""
    inside, total, ending = (median(stops, f"{name}_ms") for name in ("inside", "total", "ending"))
    worst = max(stop.over_ms for stop in stops)
    return (
        f"whole process, median of {len(stops)}, worst {worst:.0f} ms; inside the command {inside:.0f} ms; "
        f"total {total:.0f} ms, of it first TERM to last exit {ending:.0f} ms; "
        f"the one-liner: total {one_liner_ms:.0f} ms, proves nothing"
    )


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

    @property
    def over_ms(self) -> float:
        return self.total_ms - self.ending_ms


def one_stop(lab: Lab, state: Path) -> Stop:
    """Start a server that looks for SIGTERM as seldom as SGLang does, and stop it."""
    root = serve(lab, "gpu1", 30001, "--lab-mem-mib", "20000", "--lab-term-poll-s", "5")
    pids = [root, *titled_of(lab, "gpu1", root)]
    return watched_stop(lab, "plain", "gpu1", pids, state=state)


def watched_stop(
    lab: Lab, server: str, host: str, pids: Sequence[int], *words: str, state: Path
) -> Stop:
    """Stop a server under the eyes of the oracle, which runs where its GPUs are and knows ``pids`` there."""
    argv = ["python3", "-c", ORACLE, *map(str, pids)]
    with lab.popen(lab.host_argv(host, argv)) as oracle:
        assert oracle.stdout is not None
        assert oracle.stdout.readline() == b"watching\n"
        total_ms, document = stop(lab, server, "--yes", *words, state=state)
        seconds = document["data"]["seconds"]
        truth = json.loads(oracle.stdout.readline())
    ending = truth["last_exit"] - (seconds["last_exit_at"] - seconds["ending"])
    return Stop(
        total_ms=total_ms,
        ending_ms=ending * 1000,
        inside_ms=(seconds["total"] - ending) * 1000,
        proof_ms=(seconds["proven_at"] - max(truth["last_exit"], truth["freed"])) * 1000,
    )


def stop(lab: Lab, server: str, *words: str, state: Path) -> tuple[float, Any]:
    return time_opsctl(lab, "stop", server, *words, "--state", str(state))


def launch(lab: Lab, words: Sequence[str], state: Path) -> None:
    done = lab.opsctl(
        ["launch", "real", "--yes", "--no-smoke", "--state", str(state), *words], timeout_s=300
    )
    if done.exit_code:
        raise RuntimeError(f"real SGLang did not start: {done.stderr[-500:]}")


def members(lab: Lab) -> list[int]:
    """Return the node's pids of everything in the container's unit of the server."""
    rows = table(lab, "pve1")
    roots = {pid for pid, _, _, _, args in rows if "-m sglang.launch_server" in args}
    found = {pid for pid, ppid, _, _, _ in rows if pid in roots or ppid in roots}
    assert roots, rows
    return sorted(found)


def one_liner(lab: Lab, host: str) -> float:
    """Run the incident's two commands as it did, over ssh; in the container by pct exec."""
    node = "pve1" if host == "ct129" else host
    if host != "ct129":
        serve(lab, host, 30001, "--lab-mem-mib", "20000")
    begun = time.perf_counter()
    for line in ONE_LINER:
        lab.ssh(node, f"pct exec 129 -- sh -c {shlex.quote(line)}" if host == "ct129" else line)
    return (time.perf_counter() - begun) * 1000


def main() -> None:
    for figure in run():
        print(figure.line())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
