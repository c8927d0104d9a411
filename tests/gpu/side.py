"""Several servers at once on one GPU, asked in turn: the fair way to compare them in little time.

Only one of them computes at any time; the others wait. They are started here and not by opsctl, which
refuses a GPU that another server holds.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

START_LIMIT_S = 240
POOL_TOKENS = 49152  # KV cache of each server: 64 requests of 320 tokens, and room


class Server:
    """One child process with its log and address."""

    def __init__(self, name: str, entry: dict[str, Any], port: int, folder: Path) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"side-{name}.log"
        args = {"max-total-tokens": POOL_TOKENS, **entry["args"], "port": port}
        args["sleep-on-idle"] = (
            True  # else each waiting server spins on a core that another may share
        )
        args["mem-fraction-static"] = (
            0.85  # the pool's size is set above; this only has to admit it
        )
        above = entry.get("speculation", {}).get("disable_above")
        if above is not None:
            args["speculative-disable-batch-threshold"] = above
        argv = [entry["python"], "-m", "sglang.launch_server", "--model-path", entry["model"]]
        for key, value in args.items():
            values = value if isinstance(value, list) else [] if value is True else [value]
            argv += [f"--{key}", *map(str, values)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=entry["env"],
                cwd=entry["cwd"],
                start_new_session=True,
            )

    def is_ready(self) -> bool:
        """Return whether it said so; raise when it ended."""
        text = self.log.read_text(errors="replace")
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended: {text[-3000:]}")
        return "The server is fired up and ready to roll" in text

    def post(self, path: str, body: dict[str, Any], timeout_s: float = 60) -> bytes:
        """Send one request with a JSON body and return the answer's bytes."""
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            answer: bytes = reply.read()
            return answer

    def end(self) -> None:
        """Stop the whole session that this server leads."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(8)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


@contextlib.contextmanager
def servers(
    entries: dict[str, dict[str, Any]], names: Sequence[str], port: int, folder: Path
) -> Iterator[dict[str, Server]]:
    """Start the named servers at once, wait until all are ready, and end them afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    started = {
        name: Server(name, entries[name], port + 100 * index, folder)
        for index, name in enumerate(names)
    }
    try:
        waiting = dict(started)
        while waiting:
            if time.monotonic() - began > START_LIMIT_S:
                raise RuntimeError(f"not ready in {START_LIMIT_S} s: {', '.join(waiting)}")
            for name in [name for name, server in waiting.items() if server.is_ready()]:
                print(f"    {name} ready after {time.monotonic() - began:.1f} s", flush=True)
                del waiting[name]
            time.sleep(0.2)
        yield started
    finally:
        for server in started.values():
            server.end()


@contextlib.contextmanager
def load(server: Server, count: int, tokens: int, delay_s: float = 0.0) -> Iterator[None]:
    """Keep ``count`` requests running inside the block; it ends when they have ended."""
    rng = random.Random(count)

    def one(prompt: list[int]) -> None:
        time.sleep(delay_s)
        sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        server.post("/generate", {"input_ids": prompt, "sampling_params": sampling})

    prompts = [[rng.randrange(10, 30000) for _ in range(64)] for _ in range(count)]
    threads = [threading.Thread(target=one, args=(prompt,), daemon=True) for prompt in prompts]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(60)


def profile(server: Server, folder: Path, steps: int, activities: list[str]) -> Path | None:
    """Record ``steps`` scheduler steps with torch's profiler; return the trace."""
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.rglob("*.gz"))
    body = {"output_dir": str(folder), "num_steps": steps, "activities": activities}
    with contextlib.suppress(urllib.error.URLError):
        server.post("/start_profile", body)
    for _ in range(150):
        new = set(folder.rglob("*.gz")) - before
        if new:
            time.sleep(1.0)
            return new.pop()
        time.sleep(0.2)
    return None
