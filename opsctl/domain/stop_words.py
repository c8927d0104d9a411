"""The plan of a stop in words: what is signalled, what is left alone, and what that means."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.domain.counted import counted
from opsctl.domain.gpu import MIB
from opsctl.domain.process import Judged, shorten
from opsctl.domain.protection import owner_of
from opsctl.domain.stop_plan import Outcome, StopPlan


def plan_lines(plan: StopPlan, *, kills: bool, grace_s: float) -> list[str]:
    """Return the plan as the lines of one screen.

    Args:
        plan: what would be done.
        kills: whether it begins with KILL.
        grace_s: seconds between TERM and KILL.
    """
    lines = [f"server {plan.selection.server.describe()}"]
    if plan.is_empty:
        lines.append("  no process of it runs here: nothing to signal")
    else:
        how = "KILL at once" if kills else f"TERM to the root, KILL after {grace_s:g} s"
        lines.append(f"  to stop: {counted(len(plan.targets), 'process', 'processes')} ({how}):")
        lines += _table(plan.targets)
        if plan.evicted:
            pids = ", ".join(str(judged.pid) for judged in plan.evicted)
            lines.append(f"  not the server's, and stopped because --evict names it: pid {pids}")
    lines += _memory(plan)
    for unit in plan.units:
        lines.append(f"  through systemd: stop {unit}, so that it does not start again")
    if plan.left_alone:
        lines.append("  leaves alone, although they hold the same GPUs:")
        lines += _table(plan.left_alone)
        if any(judged.kind == "foreign" for judged in plan.left_alone):
            lines.append(
                "  their memory stays in use: the GPUs will not be proven free until they are gone"
            )
    for other in plan.selection.other_servers[:5]:
        lines.append(f"  another SGLang server, not touched: {other}")
    return lines


def _memory(plan: StopPlan) -> list[str]:
    """Say how much memory would come free, on how many GPUs; nothing where none is known."""
    holds = [hold for target in plan.targets for hold in target.holds]
    if not holds:
        return []
    cards = len({hold.uuid for hold in holds})
    known = [hold.used_bytes for hold in holds if hold.used_bytes is not None]
    amount = f"{sum(known) // MIB} MiB" if len(known) == len(holds) else "an amount NVML hides"
    return [
        f"  they hold {amount} on {counted(cards, 'GPU')}; each is proven free afterwards, by UUID"
    ]


def result_lines(rows: Sequence[tuple[Judged, Outcome]]) -> list[str]:
    """Return one line per process with how it ended."""
    width = max((len(outcome.value) for _, outcome in rows), default=0)
    return [
        f"  {outcome.value:<{width}}  pid {judged.pid}  {_what(judged)}" for judged, outcome in rows
    ]


def _table(judged: Sequence[Judged]) -> list[str]:
    rows: list[tuple[str, ...]] = [("pid", "in ct", "owner", "age", "GPU MiB", "what", "why")]
    rows += [_row(one) for one in judged]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["    " + "  ".join(_cells(row, widths)).rstrip() for row in rows]


def _cells(row: tuple[str, ...], widths: Sequence[int]) -> list[str]:
    right = (0, 1, 3, 4)
    return [
        cell.rjust(width) if column in right else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def _row(judged: Judged) -> tuple[str, ...]:
    process = judged.process
    if process is None:
        return (str(judged.pid), "", "?", "", _held(judged), "", judged.reason)
    inner = str(process.ns_pids[-1]) if len(process.ns_pids) > 1 else ""
    why = judged.reason
    if judged.kind == "foreign":
        why = f"of server {judged.server}" if judged.server else "foreign"
    return (
        str(judged.pid),
        inner,
        owner_of(process),
        _age(process.age_s),
        _held(judged),
        _what(judged),
        why,
    )


def _what(judged: Judged) -> str:
    if judged.process is None:
        return judged.reason
    if judged.process.is_dead:
        return f"[{judged.process.comm}] zombie"
    return shorten(judged.process.argv, 48) or f"[{judged.process.comm}]"


def _held(judged: Judged) -> str:
    if not judged.holds:
        return ""
    return "?" if judged.held_bytes is None else str(judged.held_bytes // MIB)


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f}s"
    if seconds < 7200:
        return f"{seconds / 60:.0f}m"
    return f"{seconds / 3600:.0f}h" if seconds < 172800 else f"{seconds / 86400:.0f}d"
