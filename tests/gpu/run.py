"""Drive opsctl on a machine with a GPU: ``python -m tests.gpu.run STEP...``; see README.md.

Every step runs opsctl as a user would (a child process, the site file of this folder) and keeps its
JSON, its text and the server's log under --out. A step that fails is reported, and the next one runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
LEVELS = "1,2,5,10,20,40,64"
PORT = 31000
GRAPH_SIZES = [1, 2, 4, 5, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64]


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


def setup(run: Run) -> None:
    """Unpack the bundle, write models and site file, print what the machine has."""
    bundle = os.environ["BUNDLE"]
    with tarfile.open(bundle) as archive:
        archive.extractall(run.root, filter="data")
    for stub in ("flashinfer", "IPython", "soundfile.py"):
        source = Path(__file__).parent / "stubs" / stub
        target = run.root / "stubs" / stub
        target.parent.mkdir(exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    sys.path.insert(0, str(CHECKOUT))
    from tests.gpu import models

    target_model, draft = models.write(run.root / "models")
    run.site.write_text(json.dumps(site(run.root, target_model, draft), indent=1))
    for argv in (["nvidia-smi", "-L"], ["nvcc", "--version"], ["nproc"]):
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
        print(done.stdout.strip()[-300:], flush=True)


def site(root: Path, target: Path, draft: Path) -> dict[str, Any]:
    """Return the site: the plain server, static EAGLE-3, the patched one, the incident's patch."""
    plain = {
        "load-format": "dummy",
        "attention-backend": "triton",
        "sampling-backend": "pytorch",
        "grammar-backend": "none",
        "mem-fraction-static": 0.6,
        "max-running-requests": 64,
        "disable-piecewise-cuda-graph": True,
        "cuda-graph-bs": GRAPH_SIZES,
        "host": "127.0.0.1",
        "enable-metrics": True,
        "context-length": 4096,
        "watchdog-timeout": 60,
    }
    eagle = {
        **plain,
        "speculative-algorithm": "EAGLE3",
        "speculative-draft-model-path": str(draft),
        "speculative-num-steps": 7,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": 8,
    }
    incident = {
        **eagle,
        "speculative-num-steps": 3,
        "speculative-eagle-topk": 4,
        "speculative-num-draft-tokens": 16,
        "speculative-disable-batch-threshold": 5,
    }
    server: dict[str, Any] = {
        "host": "here",
        "gpus": {"select": "all", "expect": 1},
        "port": PORT,
        "python": sys.executable,
        "model": str(target),
        "env": _server_environment(root),
        "log_dir": str(root / "logs"),
        "cwd": str(root),
        "smoke": {"tokens": 256},
    }
    threshold = int(os.environ.get("THRESHOLD", "2"))
    return {
        "hosts": {"here": {"local": True}},
        "servers": {
            "plain": {**server, "args": plain},
            "eagle": {**server, "args": eagle},
            "dynamic": {
                **server,
                "args": eagle,
                "patches": ["spec-disable-v2"],
                "speculation": {"disable_above": threshold},
            },
            "incident": {
                **server,
                "args": incident,
                "patches": ["spec-disable-v1"],
                "env": {**server["env"], "SGLANG_ENABLE_SPEC_V2": "0"},
            },
        },
    }


def _server_environment(root: Path) -> dict[str, str]:
    import nvidia

    libraries = [
        str(Path(base) / name)
        for base in nvidia.__path__
        for name in ("cu13/lib", "cuda_nvrtc/lib", "cublas/lib", "cuda_runtime/lib")
        if (Path(base) / name).is_dir()
    ]
    shim = Path(__file__).parent / "shim"
    paths = [shim, root / "stubs", root / "site", root / "pysite"]
    old = os.environ.get("LD_LIBRARY_PATH")
    kept = {k: v for k in ("PATH", "CUDA_HOME", "HOME") if (v := os.environ.get(k))}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths),
        "LD_LIBRARY_PATH": os.pathsep.join([*libraries, *([old] if old else [])]),
        "SGLANG_IS_FLASHINFER_AVAILABLE": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OPSCTL_LAB_WEIGHTS": "known",
    }


def facts(run: Run) -> None:
    """Status, and the GPU when idle."""
    run.opsctl("status-idle", "status")
    idle = run.opsctl("verify-idle", "gpu", "verify", "plain")
    print(json.dumps(idle.get("data"), indent=1)[:1500], flush=True)


def _measure(run: Run, server: str, repeat: str) -> None:
    """Restart one server, smoke it over the levels, and stop it by proof."""
    name = f"{server}-{repeat}"
    expect = (0, 75)
    known = ["--again", "measured once more"]
    restarted = run.opsctl(
        f"restart-{name}", "restart", server, "--yes", "--no-smoke", *known, timeout_s=300
    )
    if restarted.get("exit_code") != 0:
        _show_log(run, server)
        return
    print(json.dumps(restarted["data"].get("downtime"), indent=None), flush=True)
    run.opsctl(f"verify-busy-{name}", "gpu", "verify", server, expect=(20,))
    words = ["--levels", LEVELS, "--tokens", "256", "--prompt-tokens", "64", "--label", name]
    smoked = run.opsctl(f"smoke-{name}", "smoke", server, *words, expect=expect, timeout_s=240)
    _table(smoked)
    stopped = run.opsctl(f"stop-{name}", "stop", server, "--yes", "--sweep")
    print(json.dumps(stopped.get("data", {}).get("gpus", ""))[:400], flush=True)


def _table(document: dict[str, Any]) -> None:
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


def _show_log(run: Run, server: str) -> None:
    logs = sorted((run.root / "logs").glob("**/*.log"), key=lambda path: path.stat().st_mtime)
    if logs:
        print(logs[-1].read_text(errors="replace")[-3500:], flush=True)


def measure(run: Run, servers: str, repeats: str) -> None:
    """Interleave servers over repeats: ``measure:plain+eagle+dynamic:1+2+3``."""
    for repeat in repeats.split("+"):
        for server in servers.split("+"):
            if run.left() < 100:
                run.say(f"no time left for {server}-{repeat}")
                return
            _measure(run, server, repeat)


def incident(run: Run) -> None:
    """The incident's patch: the crash must be found, bracketed and explained."""
    refused = run.opsctl("patch-refused", "patch", "apply", "incident", "--yes", expect=(50,))
    print("   ", refused.get("findings", [{}])[0].get("text", ""), flush=True)
    run.opsctl("patch-revert", "patch", "revert", "dynamic", "--yes")
    run.opsctl("patch-incident", "patch", "apply", "incident", "--allow-known-bad", "--yes")
    words = ["--yes", "--no-smoke", "--no-patch", "--again", "reproduce the crash"]
    done = run.opsctl("restart-incident", "restart", "incident", *words, timeout_s=300)
    if done.get("exit_code") != 0:
        _show_log(run, "incident")
        return
    levels = ["--levels", "1,2,5,6,10", "--tokens", "64", "--label", "incident"]
    _table(run.opsctl("smoke-incident", "smoke", "incident", *levels, expect=(60,)))
    run.opsctl("stop-incident", "stop", "incident", "--yes", "--sweep")


def updown(run: Run) -> None:
    """The patched server up and down over the threshold, twice, with answers checked."""
    done = run.opsctl(
        "restart-updown", "restart", "dynamic", "--yes", "--no-smoke", "--again", "up and down"
    )
    if done.get("exit_code") != 0:
        _show_log(run, "dynamic")
        return
    for turn in ("1", "2"):
        words = ["--levels", "1,2,3,5,10,40", "--down", "--tokens", "128", "--drift", "0"]
        _table(run.opsctl(f"updown-{turn}", "smoke", "dynamic", *words, expect=(0, 75)))
    run.opsctl("logs-updown", "logs", "dynamic", "-n", "400")
    run.opsctl("stop-updown", "stop", "dynamic", "--yes")


def killed(run: Run) -> None:
    """kill instead of stop: how long the GPU's memory takes to be free after KILL."""
    run.opsctl("restart-killed", "restart", "plain", "--yes", "--no-smoke", "--again", "kill test")
    run.opsctl("kill", "kill", "plain", "--yes")
    run.opsctl("verify-killed", "gpu", "verify", "plain")


STEPS: dict[str, Callable[..., None]] = {
    "setup": setup,
    "facts": facts,
    "measure": measure,
    "incident": incident,
    "updown": updown,
    "killed": killed,
}


def main() -> int:
    """Run the named steps; ``NAME:ARG:ARG`` passes arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="+", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--root", type=Path, default=Path("/tmp/opsctl-gpu"))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "gpu-out")))
    parser.add_argument("--limit", type=float, default=560, help="seconds for all steps")
    options = parser.parse_args()
    if shutil.which("nvidia-smi") is None:
        print("skipped: there is no nvidia-smi, so no GPU to run on")
        return 0
    options.root.mkdir(parents=True, exist_ok=True)
    run = Run(options.root, options.root / "out", options.limit)
    for step in options.steps:
        name, *arguments = step.split(":")
        run.say(f"== {step}")
        STEPS[name](run, *arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(options.out / "results.tar.gz", "w:gz") as archive:
        archive.add(run.out, "results")
        if (run.root / "logs").is_dir():
            archive.add(run.root / "logs", "logs")
    run.say(f"failed: {', '.join(run.failed) or 'nothing'}")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
