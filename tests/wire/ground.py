"""A site of one stand-in server on this machine, with state of its own, for runs of the real command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.lab import standin
from tests.schemas import read_document

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Ground:
    """One folder with a site file, a ledger, the host's state and logs; one port."""

    folder: Path
    port: int
    server: dict[str, Any] = field(default_factory=dict)
    name: str = "one"

    @property
    def site(self) -> Path:
        return self.folder / "opsctl.yaml"

    @property
    def host_state(self) -> Path:
        return self.folder / "host"

    def write_site(
        self,
        faults: str = "",
        path: Path | None = None,
        top: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> None:
        """Write the site file; ``faults`` are the stand-in's, ``top`` the site's, the rest the server's."""
        env = {"PYTHONPATH": str(standin.SITE), "PYTHONDONTWRITEBYTECODE": "1"}
        if faults:
            env["LAB_FAULTS"] = faults
        server: dict[str, Any] = {
            "host": "here",
            "port": self.port,
            "python": sys.executable,
            "model": str(self.folder / "model"),
            "args": {"tp": 2, "disable-cuda-graph": True},
            "env": env,
            "log_dir": str(self.folder / "logs"),
            "state_dir": str(self.host_state),
            "nofile": 4096,
            "stop": {"grace_s": 5},
            "smoke": {"levels": [1, 2], "requests": 2, "tokens": 4},
            "ready": {"timeout_s": 30, "stall_s": 15, "generation_s": 10},
        }
        server.update(changes)
        body = {
            "hosts": {"here": {"local": True}},
            "servers": {self.name: server},
            **(top or {}),
        }
        (path or self.site).write_text(yaml.safe_dump(body))

    def command(self, *words: str, state: str = "state") -> list[str]:
        rest = ["--site", str(self.site), "--state", str(self.folder / state)]
        return [sys.executable, "-m", "opsctl", *words, *rest]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}

    def opsctl(
        self, *words: str, state: str = "state", timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            self.command(*words, state=state),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def json(self, *words: str, state: str = "state", timeout_s: float = 60.0) -> dict[str, Any]:
        """Run one command with --json and return its document."""
        done = self.opsctl(*words, "--json", state=state, timeout_s=timeout_s)
        assert done.stdout.startswith("{"), done.stdout + done.stderr
        document: dict[str, Any] = read_document(done.stdout)
        assert document["exit_code"] == done.returncode
        return document

    def mains(self) -> list[int]:
        """Return the pids of living main processes of the stand-in on our port.

        A child that was forked a moment ago has its parent's command line until it takes its title.
        """
        wanted = ["--port", str(self.port)]
        found: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            except OSError:
                continue
            is_ours = any(argv[i : i + 2] == wanted for i in range(len(argv)))
            if is_ours and "sglang.launch_server" in argv and state != "Z":
                found[int(entry.name)] = int(parent)
        return [pid for pid, parent in found.items() if parent not in found]

    def members(self) -> set[int]:
        """Return the pids of all that lives in the sessions of servers that were launched here."""
        sessions = {
            json.loads(path.read_text())["pid"] for path in self.host_state.glob("runs/*/run.json")
        }
        found = set()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) in sessions and fields[0] != "Z":
                found.add(int(entry.name))
        return found

    def end_everything(self) -> None:
        """Kill what this ground has launched: first the commands on its folder, which may launch more."""
        deadline = time.monotonic() + 20.0
        while time.monotonic() < deadline:
            alive = {*self.commands(), *self.mains(), *self.members()}
            if not alive:
                return
            for pid in alive:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
        raise AssertionError(f"still there: {sorted(alive)}")

    def commands(self) -> list[int]:
        """Return the pids of processes that name this folder in their arguments."""
        wanted = os.fsencode(self.folder) + b"/"
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if wanted in (entry / "cmdline").read_bytes() and state not in "ZX":
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def make_ground(folder: Path, name: str = "one") -> Iterator[Ground]:
    """Make a ground in ``folder`` and leave nothing running behind it."""
    (folder / "model").mkdir(parents=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (folder / "model" / "config.json").write_text(json.dumps(config))
    ground = Ground(folder, free_port(), name=name)
    ground.write_site()
    try:
        yield ground
    finally:
        ground.end_everything()


def wait_for(claim: Callable[[], object], timeout_s: float = 15.0) -> None:
    """Wait until ``claim`` is true; fail when it is not in time."""
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.05)
