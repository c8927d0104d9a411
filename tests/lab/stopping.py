"""What the lab tests of a stop plant on hosts: servers, strangers, and the looks at them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.lab.fixture import Lab
from tests.schemas import read_document

MODEL = "/models/GLM-5-NVFP4"


def wait_for(claim: Callable[[], Any], what: str, timeout_s: float = 30.0) -> Any:
    """Poll until the claim holds, and return its value."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = claim()
        if value:
            return value
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)


def start(lab: Lab, host: str, command: str) -> int:
    """Start a program on a host, detached; returns its pid there."""
    line = f"cd /; setsid {command} >/tmp/started.log 2>&1 </dev/null & echo $!"
    done = lab.on(host, ["sh", "-c", line])
    return int(done.stdout.split()[-1])


def serve(lab: Lab, host: str, port: int, *flags: str, tp: int = 2, model: str = MODEL) -> int:
    """Start the stand-in on a host and wait until its workers have their titles; returns its pid."""
    words = ["/opt/sglang/bin/python", "-m", "sglang.launch_server", "--model-path", model]
    words += ["--port", str(port), "--tp", str(tp), "--lab-startup-s", "0", *flags]
    pid = start(lab, host, " ".join(shlex.quote(word) for word in words))
    wait_for(lambda: len(titled_of(lab, host, pid)) >= tp + 1, "the server's workers")
    return pid


def table(lab: Lab, host: str) -> list[tuple[int, int, int, str, str]]:
    """Return (pid, ppid, session, state, command line) of each process on a host."""
    done = lab.on(host, ["ps", "-eo", "pid=,ppid=,sid=,stat=,args=", "-ww"])
    rows = []
    for line in done.stdout.splitlines():
        pid, ppid, sid, state, args = line.split(None, 4)
        rows.append((int(pid), int(ppid), int(sid), state, args.strip()))
    return rows


def titled_of(lab: Lab, host: str, session: int) -> list[int]:
    return [
        pid
        for pid, _, sid, _, args in table(lab, host)
        if sid == session and args.startswith("sglang::")
    ]


def alive(lab: Lab, host: str, *pids: int) -> bool:
    """Say whether all of the pids run there; a zombie does not."""
    running = {pid for pid, _, _, state, _ in table(lab, host) if not state.startswith("Z")}
    return set(pids) <= running


def opsctl(lab: Lab, state: Path, *words: str, timeout_s: float = 90.0) -> tuple[int, Any]:
    """Run opsctl with --json; returns its exit code and document."""
    done = lab.opsctl([*words, "--json", "--state", str(state)], timeout_s=timeout_s)
    assert done.stdout, done.stderr
    return done.exit_code, read_document(done.stdout)


def outcomes(document: Any, kind: str = "member") -> dict[int, str]:
    rows = document["data"]["processes"]
    return {row["pid"]: row["outcome"] for row in rows if row["class"] == kind}


def codes(document: Any) -> set[str]:
    return {finding["code"] for finding in document["findings"]}


@contextmanager
def cleared(lab: Lab, *hosts: str) -> Iterator[None]:
    """End what a test has started on hosts: everything whose command line has the lab's marks."""
    try:
        yield
    finally:
        for host in hosts:
            for pid, _, _, _, args in table(lab, host):
                marks = ("sglang", "hold.py", "train.py", "jupyter", "lab-stranger")
                if any(mark in args for mark in marks):
                    lab.on(host, ["kill", "-9", str(pid)])
