"""What opsctl does to one server at a time on a real GPU."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.gpu.compare import LEVELS
from tests.gpu.session import Run, show_findings, show_levels, show_log

HOLD = """
import time, torch
held = torch.zeros(2 << 30, dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(300)
"""


def facts(run: Run) -> None:
    """Status, and the GPU when idle."""
    run.opsctl("status-idle", "status")
    idle = run.opsctl("verify-idle", "gpu", "verify", "plain")
    print(json.dumps(idle.get("data"), indent=1)[:1500], flush=True)


def measure(run: Run, servers: str, repeats: str) -> None:
    """Interleave servers over repeats: ``measure:plain+eagle+dynamic:1+2+3``."""
    for repeat in repeats.split("+"):
        for server in servers.split("+"):
            if run.left() < 100:
                run.say(f"no time left for {server}-{repeat}")
                return
            _measure(run, server, repeat)


def _measure(run: Run, server: str, repeat: str) -> None:
    """Restart one server, smoke it over the levels, and stop it by proof."""
    name = f"{server}-{repeat}"
    expect = (0, 75)
    known = ["--again", "measured once more"]
    restarted = run.opsctl(
        f"restart-{name}", "restart", server, "--yes", "--no-smoke", *known, timeout_s=300
    )
    if restarted.get("exit_code") != 0:
        show_log(run, server)
        return
    print(json.dumps(restarted["data"].get("downtime"), indent=None), flush=True)
    run.opsctl(f"verify-busy-{name}", "gpu", "verify", server, expect=(20,))
    words = ["--levels", LEVELS, "--tokens", "256", "--prompt-tokens", "64", "--label", name]
    smoked = run.opsctl(f"smoke-{name}", "smoke", server, *words, expect=expect, timeout_s=240)
    show_levels(smoked)
    stopped = run.opsctl(f"stop-{name}", "stop", server, "--yes", "--sweep")
    print(json.dumps(stopped.get("data", {}).get("gpus", ""))[:400], flush=True)


def incident(run: Run) -> None:
    """The incident's patch: the crash must be found, bracketed and explained."""
    refused = run.opsctl("patch-refused", "patch", "apply", "incident", "--yes", expect=(50,))
    print("   ", refused.get("findings", [{}])[0].get("text", ""), flush=True)
    run.opsctl("patch-revert", "patch", "revert", "dynamic", "--yes")
    run.opsctl("patch-incident", "patch", "apply", "incident", "--allow-known-bad", "--yes")
    words = ["--yes", "--no-smoke", "--no-patch", "--allow-known-bad"]
    words += ["--again", "reproduce the crash"]
    done = run.opsctl("restart-incident", "restart", "incident", *words, timeout_s=300)
    if done.get("exit_code") != 0:
        show_log(run, "incident")
        return
    levels = ["--levels", "1,2,5,6,10", "--tokens", "64", "--label", "incident"]
    show_levels(run.opsctl("smoke-incident", "smoke", "incident", *levels, expect=(60,)))
    run.opsctl("stop-incident", "stop", "incident", "--yes", "--sweep")


def updown(run: Run, turns: str = "2") -> None:
    """The patched server up and down over the threshold, with answers checked."""
    words = ["--yes", "--no-smoke", "--again", "up and down"]
    done = run.opsctl("restart-updown", "restart", "dynamic", *words)
    print(json.dumps(done.get("data", {}).get("downtime")), flush=True)
    if done.get("exit_code") != 0:
        show_log(run, "dynamic")
        return
    for turn in range(int(turns)):
        words = ["--levels", "1,2,3,5,10,40", "--down", "--tokens", "128", "--drift", "0"]
        show_levels(run.opsctl(f"updown-{turn}", "smoke", "dynamic", *words, expect=(0, 75)))
    run.opsctl("logs-updown", "logs", "dynamic", "-n", "400")
    run.opsctl("stop-updown", "stop", "dynamic", "--yes")


def killed(run: Run) -> None:
    """kill instead of stop: how long the GPU's memory takes to be free after KILL."""
    run.opsctl("restart-killed", "restart", "plain", "--yes", "--no-smoke", "--again", "kill test")
    run.opsctl("kill", "kill", "plain", "--yes")
    run.opsctl("verify-killed", "gpu", "verify", "plain")


def probe(run: Run) -> None:
    """Does every GPU compute, asked of the server's own torch."""
    found = run.opsctl("gpu-probe", "gpu", "probe", "plain")
    print(json.dumps(found.get("data"))[:1500], flush=True)


def neighbour(run: Run) -> None:
    """A stranger on the same GPU, and a server whose scheduler died while its parent is frozen.

    verify names the stranger, stop ends the whole server, leaves the stranger alone and does not say free.
    """
    words = ["--yes", "--no-smoke", "--again", "neighbour"]
    restarted = run.opsctl("restart-neighbour", "restart", "plain", *words)
    print(json.dumps(restarted.get("data", {}).get("downtime")), flush=True)
    found = [run.opsctl("verify-busy", "gpu", "verify", "plain", expect=(20,))]
    stranger = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE)
    try:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        found.append(run.opsctl("verify-neighbour", "gpu", "verify", "plain", expect=(20,)))
        scheduler, parent = _scheduler_and_parent()
        os.kill(parent, signal.SIGSTOP)
        os.kill(scheduler, signal.SIGKILL)
        time.sleep(1)
        found.append(run.opsctl("status-half-dead", "status", "plain", expect=(0, 20, 30, 60)))
        found.append(run.opsctl("verify-half-dead", "gpu", "verify", "plain", expect=(20,)))
        found.append(run.opsctl("stop-neighbour", "stop", "plain", "--yes", expect=(20,)))
        run.say(f"the stranger, pid {stranger.pid}, lives: {stranger.poll() is None}")
        run.say(f"the server's parent, pid {parent}, lives: {Path(f'/proc/{parent}').exists()}")
    finally:
        stranger.kill()
        stranger.wait()
    found.append(run.opsctl("verify-alone", "gpu", "verify", "plain"))
    for document in found:
        show_findings(document)


def _scheduler_and_parent() -> tuple[int, int]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cmdline").read_bytes().startswith(b"sglang::scheduler"):
                after = (entry / "stat").read_text().rpartition(")")[2].split()
                return int(entry.name), int(after[1])
    raise RuntimeError("no scheduler runs")


def health(run: Run) -> None:
    """The health gate and doctor on real data."""
    for name, words in (
        ("doctor", ["doctor", "plain"]),  # 20: the stand-ins of stubs/ are no packages
        ("gpu-status", ["gpu", "status", "plain"]),
    ):
        show_findings(run.opsctl(name, *words, expect=(0, 10, 20, 30, 40, 41)))
