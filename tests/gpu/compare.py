"""Servers side by side, asked in turn: who is how fast at which concurrency, and where a step's time goes."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass

from tests.gpu import behaviour, timeline
from tests.gpu.session import PORT, Run, show_findings
from tests.gpu.side import Server, load, profile, servers
from tests.gpu.site import variants

LEVELS = "1,2,5,10,20,40,64"


@dataclass(frozen=True)
class Turn:
    """One climb of one server: the ledger's run, and output tokens per second by concurrency."""

    run: str
    rates: dict[int, float]


def side(run: Run, names: str, repeats: str = "3", profiled: str = "") -> None:
    """Servers side by side, asked in turn: ``side:plain+eagle+dynamic:3`` or ``...:1:profile``."""
    entries = json.loads(run.site.read_text())["servers"]
    wanted = names.split("+")
    for name in wanted:
        if entries[name].get("patches"):
            run.opsctl(f"patch-{name}", "patch", "apply", name, "--yes")
    with servers(entries, wanted, PORT + 1000, run.root / "logs") as up:
        _interleave(run, up, int(repeats), bool(profiled))


def behave(run: Run, repeats: str = "0") -> None:
    """What a plain stretch must not change, and what the draft's cache is worth after one.

    ``attentive`` has a draft that reads its cache, ``control`` the same without the catch-up.
    """
    entries = variants(run)
    run.opsctl("patch-behave", "patch", "apply", "dynamic", "--yes")
    measured = ["plain", "eagle", "dynamic"] if int(repeats) else ["plain", "dynamic"]
    names = [*measured, "tight", "attentive", "control"]
    with servers(entries, names, PORT + 2000, run.root / "logs") as up:
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
    show_findings(compared)
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


def _profile_start(run: Run, name: str, server: Server) -> None:
    """Record the first steps of five requests: what a request waits for before its first token."""
    with load(server, 5, tokens=8, delay_s=1.5):
        found = profile(server, run.out / f"start-{name}", 9, ["CPU", "GPU"])
    if found:
        print(f"    {name}, the first steps of five requests:", flush=True)
        timeline.show_steps(found)


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
