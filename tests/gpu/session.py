"""One session on the GPU machine: runs opsctl as a user would, and keeps what it printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
PORT = 31000


class Run:
    """One session on the GPU machine."""

    def __init__(self, root: Path, out: Path, limit_s: float) -> None:
        self.root = root
        self.out = out
        self.ends = time.monotonic() + limit_s
        self.started = time.monotonic()
        self.site = root / "opsctl.yaml"
        self.failed: list[str] = []
        out.mkdir(parents=True, exist_ok=True)

    def say(self, text: str) -> None:
        """Print one line with the seconds since the start."""
        print(f"[{time.monotonic() - self.started:6.1f}] {text}", flush=True)

    def left(self) -> float:
        """Return the seconds that are left of the limit."""
        return self.ends - time.monotonic()

    def opsctl(
        self, name: str, *words: str, expect: Sequence[int] = (0,), timeout_s: float = 400
    ) -> dict[str, Any]:
        """Run one command with --json, keep it, and return its document (empty when there is none)."""
        began = time.monotonic()
        argv = [sys.executable, "-m", "opsctl", *words, "--json", "--site", str(self.site)]
        argv += ["--state", str(self.root / "state")]
        try:
            done = subprocess.run(
                argv,
                capture_output=True,
                timeout=max(5.0, min(timeout_s, self.left())),
                env=self._environment(),
                cwd=self.root,
                check=False,
            )
        except subprocess.TimeoutExpired:
            self.failed.append(name)
            self.say(f"{name}: TIMED OUT")
            return {}
        (self.out / f"{name}.json").write_bytes(done.stdout)
        (self.out / f"{name}.err").write_bytes(done.stderr)
        good = done.returncode in expect
        if not good:
            self.failed.append(name)
            print(done.stderr.decode(errors="replace")[-2500:], flush=True)
        self.say(
            f"{name}: exit {done.returncode}{'' if good else ' UNEXPECTED'} "
            f"in {time.monotonic() - began:.1f} s"
        )
        try:
            document: dict[str, Any] = json.loads(done.stdout)
            return document
        except ValueError:
            return {}

    def _environment(self) -> dict[str, str]:
        paths = [str(CHECKOUT), str(self.root / "pysite")]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def show_levels(document: dict[str, Any]) -> None:
    """Print the levels of a smoke run, and its diagnosis."""
    for level in document.get("data", {}).get("levels", []):
        ttft = (level.get("ttft_ms") or {}).get("p50")
        print(
            f"    C={level['concurrency']:<3} {level['outcome']:<12} "
            f"{level.get('output_tok_s') or 0:8.0f} tok/s  TTFT p50 {ttft}",
            flush=True,
        )
    diagnosis = document.get("data", {}).get("diagnosis")
    if diagnosis:
        print("    diagnosis:", json.dumps(diagnosis)[:1200], flush=True)
        print("    bracket:", json.dumps(document["data"].get("bracket")), flush=True)


def show_findings(document: dict[str, Any]) -> None:
    """Print a document's findings."""
    for finding in document.get("findings", []):
        print(f"    {document['schema']}: {json.dumps(finding)[:600]}", flush=True)


def show_log(run: Run, server: str) -> None:
    """Print the end of the newest log."""
    logs = sorted((run.root / "logs").glob("**/*.log"), key=lambda path: path.stat().st_mtime)
    if logs:
        print(logs[-1].read_text(errors="replace")[-3500:], flush=True)
