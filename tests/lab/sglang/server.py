"""A running real SGLang server, for tests on this machine (not in the lab's containers)."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.sglang.launch import Launch

READY = "The server is fired up and ready to roll!"
READY_TIMEOUT_S = 150.0  # 13 s on a calm machine


@dataclass(frozen=True, slots=True)
class Server:
    """One server, started by ``running``."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def text(self) -> str:
        """Return what it has logged so far."""
        return self.log.read_text(errors="replace")

    def wait_for(self, line: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait for a line of the log; a server that ends first is an error with its last lines."""
        deadline = time.monotonic() + timeout_s
        while line not in self.text():
            code = self.process.poll()
            if code is not None or time.monotonic() > deadline:
                raise AssertionError(f"no {line!r}; exit code {code}; log: {self.text()[-3000:]}")
            time.sleep(0.1)

    def post(self, path: str, body: object, timeout_s: float = 60.0) -> Any:
        """Send one request and return the answer's object."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        with contextlib.closing(connection):
            headers = {"content-type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status == 200, (answer.status, content[:500])
            return json.loads(content)

    def generate(self, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
        """Return the greedy answer to token ids."""
        sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        found: dict[str, Any] = self.post(
            "/generate", {"input_ids": list(prompt), "sampling_params": sampling}
        )
        return found

    def generate_many(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[dict[str, Any]]:
        """Return the answers to prompts that are all in flight at once."""
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.generate(prompt, tokens), prompts))

    def titles(self) -> dict[str, int]:
        """Return the children's command lines and pids."""
        found = {}
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for pid in map(int, task.read_text().split()):
            with contextlib.suppress(OSError):
                raw = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
                found[raw.replace(b"\0", b" ").decode()] = pid
        return found


def free_port() -> int:
    """Return a port that nobody listens on; SGLang 0.5.12 wants port + 10000 to be one, too."""
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def running(launch: Launch, log: Path, *, ready: bool = True, **env: str) -> Iterator[Server]:
    """Start a server in a session of its own, and leave nothing of it behind."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.open("wb") as sink:
        process = subprocess.Popen(
            launch.argv,
            env={**clean, **launch.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    server = Server(process, launch.port, log)
    try:
        if ready:
            server.wait_for(READY)
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
