"""Drive opsctl on a machine with a GPU: ``python -m tests.gpu.run STEP...``; see README.md.

Every step runs opsctl as a user would (a child process, the site file of this folder) and keeps its
JSON, its text and the server's log under --out. A step that fails is reported, and the next one runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu import behaviour, timeline
from tests.gpu.side import Server, load, profile
from tests.gpu.side import servers as side_servers

CHECKOUT = Path(__file__).resolve().parents[2]
LEVELS = "1,2,5,10,20,40,64"
PORT = 31000
HOLD = """
import time, torch
held = torch.zeros(2 << 30, dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(300)
"""
GRAPH_SIZES = [1, 2, 4, 5, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64]


@dataclass(frozen=True)
class Turn:
    """One climb of one server: the ledger's run, and output tokens per second by concurrency."""

    run: str
    rates: dict[int, float]


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
    built = os.environ.get("HOME_BUNDLE", "")
    for packed in (bundle, *([built] if built else [])):
        with tarfile.open(packed) as archive:
            archive.extractall(run.root, filter="data")
    for part in ("site", "pysite"):  # else the first start of each process compiles it anew
        argv = [sys.executable, "-m", "compileall", "-q", "-j", "0", str(run.root / part)]
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=False, timeout=120)
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
    kept = {k: v for k in ("PATH", "CUDA_HOME") if (v := os.environ.get(k))}
    home = (
        root / "home"
    )  # what the server builds at its first start stays here, and can be carried on
    home.mkdir(exist_ok=True)
    return {
        **kept,
        "HOME": str(home),
        "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
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


def side(run: Run, names: str, repeats: str = "3", profiled: str = "") -> None:
    """Servers side by side, asked in turn: ``side:plain+eagle+dynamic:3`` or ``...:1:profile``."""
    entries = json.loads(run.site.read_text())["servers"]
    wanted = names.split("+")
    for name in wanted:
        if entries[name].get("patches"):
            run.opsctl(f"patch-{name}", "patch", "apply", name, "--yes")
    with side_servers(entries, wanted, PORT + 1000, run.root / "logs") as up:
        _interleave(run, up, int(repeats), bool(profiled))


def _interleave(run: Run, up: dict[str, Server], repeats: int, profiled: bool = False) -> None:
    """Measure the servers in turn, ``repeats`` times, each time in another order."""
    for name, server in up.items() if repeats else ():
        words = ["--levels", LEVELS, "--tokens", "128", "--requests", "1", "--idle", "0"]
        run.opsctl(f"warm-{name}", "smoke", "--url", server.url, *words, expect=(0, 75))
    if profiled:
        for name, server in up.items():
            _profile_start(run, name, server)
        for level in (10, 64):
            _profile(run, {name: up[name] for name in up if name != "eagle"}, level)
    turns: dict[str, list[Turn]] = {name: [] for name in up}
    for repeat in range(repeats):
        order = [*up][repeat % len(up) :] + [*up][: repeat % len(up)]
        for name in order:
            if run.left() > 40:
                turns[name].append(_rates(run, name, up[name], repeat + 1))
    if repeats:
        _ratios(run, turns)
        _compare(run, turns)


def _rates(run: Run, name: str, server: Server, repeat: int) -> Turn:
    """Measure one server once; wrong tokens are a failure."""
    label = f"{name}-{repeat}"
    words = ["--levels", LEVELS, "--idle", "0", "--tokens", "256", "--drift", "0"]
    words += ["--label", label, "--html", str(run.out / f"side-{label}.html")]
    smoked = run.opsctl(f"side-{label}", "smoke", "--url", server.url, *words, expect=(0, 75))
    levels = smoked.get("data", {}).get("levels", [])
    found = {level["concurrency"]: level.get("output_tok_s") or 0.0 for level in levels}
    print(f"    {name:<8} {repeat}: " + " ".join(f"{v:7.0f}" for v in found.values()), flush=True)
    for level in levels:
        ttft, itl = level.get("ttft_ms") or {}, level.get("itl_ms") or {}
        print(
            f"      C={level['concurrency']:<3} TTFT {ttft.get('p50')} {ttft.get('p99')}, "
            f"ITL {itl.get('mean')} {itl.get('p50')} {itl.get('p99')}",
            flush=True,
        )
    return Turn(smoked.get("run") or "", found)


def _compare(run: Run, turns: dict[str, list[Turn]]) -> None:
    """Curves side by side, and the threshold that the measured runs ask for."""
    ids = {name: [turn.run for turn in found if turn.run] for name, found in turns.items()}
    sides = [f"{name}={','.join(one)}" for name, one in ids.items() if one]
    page = ["--html", str(run.out / "compare.html")]
    compared = run.opsctl("compare", "compare", *sides, *page, expect=(0, 60, 70))
    _say_findings(compared)
    if ids.get("plain") and ids.get("eagle"):
        words = ["--baseline", ",".join(ids["plain"]), "--speculation", ",".join(ids["eagle"])]
        tuned = run.opsctl("tune", "speculation", "tune", *words, expect=(0, 70))
        print(json.dumps(tuned.get("data"))[:1500], flush=True)


def _ratios(run: Run, turns: dict[str, list[Turn]]) -> None:
    """Print the ratio of the patched server to the better of the others: median and range."""
    kept = {name: [turn.rates for turn in found] for name, found in turns.items()}
    (run.out / "rates.json").write_text(json.dumps(kept, indent=1))
    rounds = min(len(one) for one in kept.values())
    if "dynamic" not in kept or len(kept) < 2 or not rounds:
        return
    for level in map(int, LEVELS.split(",")):
        ratios = sorted(
            kept["dynamic"][i].get(level, 0.0)
            / max(one[i].get(level, 1.0) for name, one in kept.items() if name != "dynamic")
            for i in range(rounds)
        )
        print(
            f"    C={level:<3} dynamic / max(others): median {statistics.median(ratios):.3f} "
            f"of {ratios[0]:.3f} to {ratios[-1]:.3f}",
            flush=True,
        )


def _profile(run: Run, up: dict[str, Server], level: int) -> None:
    """Record steps in the middle of answers at one concurrency and print where the time goes."""
    lines = {}
    for name, server in up.items():
        for activities, steps in ((["GPU"], 40), (["CPU", "GPU"], 8)):
            with load(server, level, tokens=500):
                time.sleep(1.2)
                folder = run.out / f"trace-{name}-{level}-{len(activities)}"
                found = profile(server, folder, steps, activities)
            if found is None:
                run.say(f"no trace of {name} at {level}")
            elif len(activities) == 1:
                lines[name] = timeline.read(found, steps)
    for name, line in lines.items():
        print(f"    {name}, C={level}", flush=True)
        timeline.show(line, 12)
        if name != "plain" and "plain" in lines:
            timeline.show_difference(lines["plain"], line)


def behave(run: Run, repeats: str = "0") -> None:
    """What a plain stretch must not change, and what the draft's cache is worth after one.

    ``attentive`` has a draft that reads its cache, ``control`` the same without the catch-up.
    """
    entries = _entries(run)
    run.opsctl("patch-behave", "patch", "apply", "dynamic", "--yes")
    measured = ["plain", "eagle", "dynamic"] if int(repeats) else ["plain", "dynamic"]
    names = [*measured, "tight", "attentive", "control"]
    with side_servers(entries, names, PORT + 2000, run.root / "logs") as up:
        cache = {
            name: [behaviour.acceptance(up[name]) for _ in range(2)]
            for name in ("attentive", "control")
        }
        print(json.dumps(cache, indent=1), flush=True)
        found = behaviour.check(up["plain"], up["dynamic"], up["tight"])
        print(json.dumps(found, indent=1), flush=True)
        _interleave(run, {name: up[name] for name in measured}, int(repeats))
    (run.out / "behaviour.json").write_text(json.dumps({**found, "draft cache": cache}, indent=1))
    if found["bad"]:
        run.failed.append("behave")


def _entries(run: Run) -> dict[str, dict[str, Any]]:
    """Return the site's servers, and variants of the patched one that no site has."""
    entries: dict[str, dict[str, Any]] = json.loads(run.site.read_text())["servers"]
    grammar = {"grammar-backend": "xgrammar"}
    for name in ("plain", "eagle", "dynamic"):
        entries[name]["args"] = {**entries[name]["args"], **grammar, "max-total-tokens": 24576}
    dynamic = entries["dynamic"]
    pressed = {"max-total-tokens": 5000, "schedule-conservativeness": 0.05}
    entries["tight"] = {**dynamic, "args": {**dynamic["args"], **pressed}}
    attentive = {**dynamic["env"], "OPSCTL_LAB_WEIGHTS": "attentive"}
    short = {**dynamic, "model": f"{dynamic['model']}-short"}
    entries["attentive"] = {**short, "env": attentive}
    entries["control"] = {**short, "env": {**attentive, "OPSCTL_GPU_NO_CATCH_UP": "1"}}
    return entries


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
        _say_findings(document)


def _scheduler_and_parent() -> tuple[int, int]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cmdline").read_bytes().startswith(b"sglang::scheduler"):
                after = (entry / "stat").read_text().rpartition(")")[2].split()
                return int(entry.name), int(after[1])
    raise RuntimeError("no scheduler runs")


def _say_findings(document: dict[str, Any]) -> None:
    for finding in document.get("findings", []):
        print(f"    {document['schema']}: {json.dumps(finding)[:600]}", flush=True)


def health(run: Run) -> None:
    """The health gate and doctor on real data."""
    for name, words in (
        ("doctor", ["doctor", "plain"]),
        ("gpu-status", ["gpu", "status", "plain"]),
    ):
        _say_findings(run.opsctl(name, *words, expect=(0, 10, 30, 40, 41)))


def keep(run: Run) -> None:
    """Pack what the servers built at their first start, for the next bare machine."""
    with tarfile.open(run.out.parent / "home.tar.xz", "w:xz", preset=1) as archive:
        archive.add(run.root / "home", "home")
    out = Path(os.environ.get("OUT", run.out))
    shutil.copy(run.out.parent / "home.tar.xz", out)


def _profile_start(run: Run, name: str, server: Server) -> None:
    """Record the first steps of five requests: what a request waits for before its first token."""
    with load(server, 5, tokens=8, delay_s=1.5):
        found = profile(server, run.out / f"start-{name}", 9, ["CPU", "GPU"])
    if found:
        print(f"    {name}, the first steps of five requests:", flush=True)
        timeline.show_steps(found)


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


def updown(run: Run, turns: str = "2") -> None:
    """The patched server up and down over the threshold, with answers checked."""
    words = ["--yes", "--no-smoke", "--again", "up and down"]
    done = run.opsctl("restart-updown", "restart", "dynamic", *words)
    print(json.dumps(done.get("data", {}).get("downtime")), flush=True)
    if done.get("exit_code") != 0:
        _show_log(run, "dynamic")
        return
    for turn in range(int(turns)):
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
    "side": side,
    "behave": behave,
    "probe": probe,
    "neighbour": neighbour,
    "health": health,
    "keep": keep,
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
        try:
            STEPS[name](run, *arguments)
        except Exception:  # noqa: BLE001 - the next step is worth its device time
            run.failed.append(step)
            traceback.print_exc(limit=4)
    options.out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(options.out / "results.tar.gz", "w:gz") as archive:
        archive.add(run.out, "results")
        if (run.root / "logs").is_dir():
            archive.add(run.root / "logs", "logs")
    run.say(f"failed: {', '.join(run.failed) or 'nothing'}")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
