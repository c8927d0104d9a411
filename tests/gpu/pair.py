"""What needs two GPUs: ranks of one server on both, and two servers that have one each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.gpu.session import PORT, Run, show_findings, show_log

PARTS = {"left": 0, "right": 1}
HOLD = """
import time, torch
held = torch.zeros(2 << 30, dtype=torch.uint8, device="cuda:1")
print("held", flush=True)
time.sleep(300)
"""


def over(run: Run, server: str = "plain") -> None:
    """A restart over a running server, in one piece, twice."""
    words = ["--yes", "--no-smoke"]
    for turn in ("first", "over-1", "over-2"):
        done = run.opsctl(f"{turn}-{server}", "restart", server, *words, "--again", "measured")
        if done.get("exit_code") != 0:
            show_findings(done)
            show_log(run, server)
            return
        _times(done)
    stopped = run.opsctl(f"stop-{server}", "stop", server, "--yes")
    _memory(stopped)


def pair(run: Run) -> None:
    """One server with a rank on each GPU: its stop, one dead rank, and a stranger on one of them."""
    _write(run)
    over(run, "pair")
    found = run.opsctl("probe-pair", "gpu", "probe", "pair")
    print(json.dumps(found.get("data"))[:900], flush=True)
    words = ["--yes", "--no-smoke", "--again", "measured"]
    run.opsctl("restart-pair-rank", "restart", "pair", *words)
    show_findings(run.opsctl("verify-pair-busy", "gpu", "verify", "pair", expect=(20,)))
    os.kill(_ranks()[-1], signal.SIGKILL)
    time.sleep(1)
    show_findings(run.opsctl("status-pair-rank", "status", "pair", expect=(0, 20, 30, 60)))
    stopped = run.opsctl("stop-pair-rank", "stop", "pair", "--yes")
    _memory(stopped)
    run.opsctl("restart-pair-stranger", "restart", "pair", *words)
    stranger = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE)
    try:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        refused = run.opsctl("restart-pair-refused", "restart", "pair", *words, expect=(50,))
        show_findings(refused)
        run.say(f"ranks that live after the refusal: {len(_ranks())}")
        stopped = run.opsctl("stop-pair-stranger", "stop", "pair", "--yes", expect=(20,))
        _memory(stopped)
        show_findings(stopped)
        run.say(f"the stranger, pid {stranger.pid}, lives: {stranger.poll() is None}")
    finally:
        stranger.kill()
        stranger.wait()
    _memory(run.opsctl("verify-pair-free", "gpu", "verify", "pair"))


def neighbours(run: Run) -> None:
    """Two servers with one GPU each: stopping one proves its own card, and the other goes on answering."""
    _write(run)
    words = ["--yes", "--no-smoke", "--again", "measured"]
    for name in PARTS:
        if run.opsctl(f"restart-{name}", "restart", name, *words).get("exit_code") != 0:
            show_log(run, name)
            return
    show_findings(run.opsctl("plan-left", "stop", "left", "--dry-run"))
    stopped = run.opsctl("stop-left", "stop", "left", "--yes")
    _memory(stopped)
    show_findings(stopped)
    run.opsctl("verify-left", "gpu", "verify", "left")
    run.opsctl("verify-right-busy", "gpu", "verify", "right", expect=(20,))
    run.opsctl("smoke-right", "smoke", "right", "--levels", "1,2", "--tokens", "64", expect=(0, 75))
    _memory(run.opsctl("kill-right", "kill", "right", "--yes"))


def _write(run: Run) -> None:
    """Add a server over both GPUs, and one for each of them, to the site file."""
    site: dict[str, Any] = json.loads(run.site.read_text())
    plain = site["servers"]["plain"]
    site["servers"]["pair"] = {
        **plain,
        "gpus": {"select": "all", "expect": 2},
        "args": {**plain["args"], "tp": 2, "disable-custom-all-reduce": True},
    }
    for name, index in PARTS.items():
        site["servers"][name] = {
            **plain,
            "gpus": {"select": [index], "expect": 1},
            "port": PORT + 10 * (index + 1),
            "env": {**plain["env"], "CUDA_VISIBLE_DEVICES": str(index)},
        }
    run.site.write_text(json.dumps(site, indent=1))


def _ranks() -> list[int]:
    """Return the scheduler processes, by pid."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cmdline").read_bytes().startswith(b"sglang::scheduler"):
                found.append(int(entry.name))
    return sorted(found)


def _times(document: dict[str, Any]) -> None:
    data = document.get("data", {})
    steps = {one["name"]: one.get("seconds") for one in data.get("steps", [])}
    print("    steps", json.dumps(steps), flush=True)
    print("    downtime", json.dumps(data.get("downtime")), flush=True)


def _memory(document: dict[str, Any]) -> None:
    data = document.get("data", {})
    print("    seconds", json.dumps(data.get("seconds")), flush=True)
    for gpu in data.get("gpus", []):
        print("    gpu", json.dumps(gpu)[:500], flush=True)
