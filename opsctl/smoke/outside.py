"""What a crash tells from outside, when no log explains it: the client's side and the exits. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Any

from opsctl.domain.crash.signature import make_signature
from opsctl.domain.report import LevelReport, Outcome
from opsctl.sglang.info import ServerInfo


def diagnose_outside(
    level: LevelReport,
    info: ServerInfo,
    threshold: int | None,
    last_good: int | None,
    exits: Sequence[Mapping[str, Any]],
    log: str | None,
) -> dict[str, Any]:
    """Return a diagnosis in the form of one of a log.

    Args:
        level: the level that crashed or hung.
        info: what the server said of itself before.
        threshold: speculation is off above so many requests.
        last_good: the level before it that passed.
        exits: the ends of processes that the watch saw, the first one first.
        log: where the log is that was read and does not explain it; None: none was read.
    """
    first = level.reason
    category, confidence, signature, normalised = _category(level, exits)
    parts = [first, *_wire(level), *_bracket(level, last_good), *_edges(level, info, threshold)]
    where = f"the log {log} was read and does not say why" if log else "no log was read"
    parts.append(f"{where}: this is told from outside alone")
    return {
        "category": category,
        "confidence": confidence,
        "signature": signature,
        "first_record": None,
        "sizes": None,
        "explanation": "; ".join(parts),
        "next": _next(level, exits, log, last_good),
        "severity": "unknown" if category == "unknown" else "fault",
        "normalised": normalised,
        "basis": "outside",
    }


def _category(
    level: LevelReport, exits: Sequence[Mapping[str, Any]]
) -> tuple[str, float, str | None, str | None]:
    if exits:
        words = f"{exits[0]['name']} ended{_how(exits[0])}"
        category = "zombie-service" if (level.sign or {}).get("port_alive") else "child-died"
        signature, normalised = make_signature(category, words, ())
        return category, 0.6, signature, normalised
    if level.outcome is Outcome.HUNG:
        signature, normalised = make_signature("silent-hang", "", ())
        return "silent-hang", 0.8, signature, normalised
    if (level.sign or {}).get("confirmed_by") == "generation":
        signature, normalised = make_signature("zombie-service", "seen from outside", ())
        return "zombie-service", 0.5, signature, normalised
    return "unknown", 0.2, None, None


def _how(entry: Mapping[str, Any]) -> str:
    code = entry.get("exit_code")
    if code is None:
        return ""
    return f" (exit {code})" if code >= 0 else f" (signal {-code})"


def _wire(level: LevelReport) -> list[str]:
    """Say what the client saw of its requests."""
    told = []
    sign = level.sign or {}
    if sign.get("port_alive"):
        told.append("the port still answers")
    if sign.get("in_flight"):
        told.append(
            f"{sign['in_flight']} requests were in flight and {sign['done_before']} had ended, "
            f"{sign['at_s']:.1f} s into the level"
        )
    if level.errors:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(level.errors.items()))
        told.append(f"requests ended as {kinds}")
    return told


def _bracket(level: LevelReport, last_good: int | None) -> list[str]:
    if level.phase == "warm-up":
        return ["it failed in the warm-up, with one request at a time: not load"]
    if level.concurrency == 1:
        return ["it failed with one request at a time: not load"]
    if last_good is None:
        return []
    return [f"C={last_good} was good, C={level.concurrency} is the first bad level"]


def _edges(level: LevelReport, info: ServerInfo, threshold: int | None) -> list[str]:
    """Say which known limit lies at this level."""
    found = []
    graphs = info.graph_sizes
    if threshold is not None and level.concurrency > threshold:
        found.append(f"speculation is off above {threshold}")
    if graphs and level.concurrency > graphs[-1]:
        found.append(f"the largest captured graph is {graphs[-1]}")
    if info.max_running is not None and level.concurrency > info.max_running:
        found.append(f"at most {info.max_running} requests run at once")
    if info.draft_tokens and level.concurrency > 1:
        rows = level.concurrency * info.draft_tokens
        found.append(f"{level.concurrency} requests x {info.draft_tokens} draft tokens are {rows}")
    return found


def _next(
    level: LevelReport,
    exits: Sequence[Mapping[str, Any]],
    log: str | None,
    last_good: int | None,
) -> list[str]:
    steps = []
    if log is None:
        steps.append(
            "give the server's log: `--log FILE` with --url, or name the server in the site file; "
            f"a log that you have: `opsctl diagnose LOG --level {level.concurrency}`"
        )
    number = -(exits[0].get("exit_code") or 0) if exits else 0
    if number == signal.SIGKILL:
        steps.append(
            "SIGKILL comes from the kernel's OOM killer or from somebody: "
            "`dmesg -T | grep -i 'killed process'` on the server's host"
        )
    elif number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL):
        steps.append(
            f"{signal.Signals(number).name} is a native crash: look for a core dump (coredumpctl) and "
            "an Xid (dmesg), and start once with PYTHONFAULTHANDLER=1"
        )
    if level.outcome is Outcome.HUNG:
        steps.append(
            "dump the scheduler's stacks before anything is killed: py-spy dump --nonblocking --pid PID"
        )
    if level.outcome is Outcome.CRASHED and level.concurrency > (last_good or 0) + 1:
        steps.append("find the exact first bad level: --bisect")
    return steps
