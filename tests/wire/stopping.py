"""Real processes for the tests of a stop: servers with behaviours, and the context to stop them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opsctl.session import ServerSession, open_hosts
from opsctl.site import Server, Site
from opsctl.steps.base import MonotonicClock, StepContext
from tests.lab import standin

TREE = Path(__file__).parent / "tree.py"


@dataclass
class Quiet:
    """A reporter that keeps what was said."""

    lines: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, text: str) -> None:
        pass


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(claim: Callable[[], Any], timeout_s: float = 20.0) -> Any:
    """Poll until the claim holds, and return its value."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = claim()
        if value:
            return value
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Say whether a process runs; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def family(pid: int) -> list[int]:
    """Return a process and everything below it now."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(word) for word in task.read_text().split()]
    return found


@contextmanager
def started(argv: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[int]:
    """Start a program in a session of its own, and end all of its session afterwards."""
    process = subprocess.Popen(
        list(argv),
        env=dict(env) if env else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    seen: set[int] = {process.pid}
    try:
        yield process.pid
    finally:
        for pid in family(process.pid) if is_alive(process.pid) else ():
            seen.add(pid)
        end(process.pid)  # the leader first: it may be a loop that starts more
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            left = {pid for pid in {*seen, *_session(process.pid)} if is_alive(pid)}
            if not left:
                break
            for pid in left:
                end(pid)
            time.sleep(0.02)
        process.wait(timeout=10)


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _session(sid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == sid:
                found.append(int(entry.name))
    return found


@contextmanager
def standin_server(port: int, *flags: str) -> Iterator[int]:
    """Start the stand-in for SGLang and wait until it serves.

    One whose main process dies before that takes its children with it, whatever was asked.
    """
    argv = standin.argv(port, "--tp", "2", "--lab-startup-s", "0", *flags)
    with started(argv, standin.environment()) as pid:
        wait_for(lambda: listens(port) and len(titles(pid)) >= 3)
        yield pid


def titles(pid: int) -> list[int]:
    return [child for child in _session(pid) if cmdline(child).startswith("sglang::")]


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


@contextmanager
def tree_server(port: int, *behaviours: str) -> Iterator[int]:
    """Start tests/wire/tree.py, a generic server, and wait until it listens."""
    with started(tree_command(port, *behaviours)) as pid:
        wait_for(lambda: listens(port))
        yield pid


def tree_command(port: int, *behaviours: str) -> list[str]:
    return [sys.executable, str(TREE), "--port", str(port), *behaviours]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def standin_entry(port: int, **changes: Any) -> Server:
    """Return the site's entry of a stand-in."""
    values: dict[str, Any] = {"host": "here", "port": port, "python": sys.executable}
    return Server(**{**values, "model": str(standin.SITE), **changes})


@contextmanager
def context(
    server: Server, tmp_path: Path, neighbours: Mapping[str, Server] | None = None
) -> Iterator[StepContext]:
    """Return a step's context on this machine."""
    site = Site(
        hosts={"here": {"local": True}},  # type: ignore[dict-item]
        servers={"s": server, **(neighbours or {})},
    )
    with open_hosts(site) as hosts:
        session = ServerSession(hosts, "s")
        yield StepContext(
            server=session.server,
            server_name="s",
            run_id="test",
            session=session,
            clock=MonotonicClock(),
            reporter=Quiet(),
            state_dir=tmp_path / "state",
        )
