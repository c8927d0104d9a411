"""``opsctl status`` of 100 hosts, whole process, against fabric, clush and pyinfra on the same hosts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.fleet_peer import FACTS
from benchmarks.measure import Figure, in_turns, process

HOSTS = int(os.environ.get("OPSCTL_BENCH_HOSTS", "100"))
LAB = os.environ.get("OPSCTL_LAB", "opsctl-lab") + "-fleet"


def run() -> list[Figure]:
    """Bring a fleet up in a lab of its own, measure inside its network, and take it down."""
    if os.geteuid() != 0:
        print("fleet: skipped, the lab's hosts need root")
        return []
    env = {**os.environ, "OPSCTL_LAB": LAB}
    lab = [sys.executable, "-m", "tests.lab"]
    inside = [*lab, "run", "--", sys.executable, "-m", "benchmarks.fleet", str(HOSTS)]
    quiet = {"env": env, "check": True, "stdout": subprocess.PIPE, "timeout": 900}
    try:
        subprocess.run([*lab, "up", "--fleet", str(HOSTS)], **quiet)
        measured = subprocess.run(inside, **quiet).stdout
    finally:
        subprocess.run([*lab, "down"], **quiet)
    return [Figure(**json.loads(line)) for line in measured.splitlines()]


def measure(count: int) -> Iterator[Figure]:
    """Measure every tool as a whole process over the same hosts."""
    names = [f"h{number}" for number in range(1, count + 1)]
    ours = process([sys.executable, "-m", "opsctl", "status", "--json"])
    with tempfile.TemporaryDirectory() as folder:
        for title, argv, limit in peers(names, Path(folder)):
            mine, theirs = in_turns(ours, process(argv), 3)
            yield Figure(f"status of {count} hosts / {title}", mine, theirs, limit)


def peers(names: list[str], folder: Path) -> list[tuple[str, list[str], float]]:
    """Return the tools that are installed, each with the same shell script on all hosts at once."""
    found = [("fabric group", [sys.executable, "-m", "benchmarks.fleet_peer", *names], 1.0)]
    many = str(len(names))
    if clush := which("clush"):
        ssh = f"-F {Path.home() / '.ssh/config'}"
        found.append(("clush", [clush, "-o", ssh, "-f", many, "-w", ",".join(names), FACTS], 1.0))
    if pyinfra := which("pyinfra"):
        inventory = folder / "hosts.py"  # as an argument, a hundred names are too long for a path
        inventory.write_text(f"hosts = {names!r}\n")
        options = ["-y", "--parallel", many, str(inventory), "exec", "--"]
        found.append(("pyinfra", [pyinfra, *options, FACTS], 1.0))
    return found


def which(name: str) -> str | None:
    """Find a peer on PATH, or in the environment that `make bench` makes for the peers."""
    peers_bin = Path(__file__).resolve().parent.parent / ".venv-peers/bin"
    return shutil.which(name, path=f"{peers_bin}:{os.environ['PATH']}")


if __name__ == "__main__":
    for figure in measure(int(sys.argv[1])):
        print(json.dumps(asdict(figure)), flush=True)
