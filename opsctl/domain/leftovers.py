"""What a dead server left behind: what may be removed, and what is kept and why."""

from __future__ import annotations

from collections.abc import Iterable

from opsctl.facts import Leftover
from opsctl.records import dataclass

# Only these may a sweep remove. A port or a unit is shown; a JIT lock too: a build may be under way.
REMOVABLE_KINDS = ("shm", "lock-file")


@dataclass(frozen=True, slots=True)
class LeftoverVerdict:
    """One leftover, whether a sweep removes it, and why."""

    leftover: Leftover
    removes: bool
    reason: str


def judge_leftovers(leftovers: Iterable[Leftover]) -> list[LeftoverVerdict]:
    """Decide for each leftover; what is not proven dead is kept."""
    return [_judge(leftover) for leftover in leftovers]


def _judge(leftover: Leftover) -> LeftoverVerdict:
    owner = f"pid {leftover.owner_pid}" if leftover.owner_pid is not None else "its owner"
    if leftover.kind not in REMOVABLE_KINDS:
        return LeftoverVerdict(leftover, False, leftover.detail or f"held by {owner}")
    if leftover.owner_alive is None:
        return LeftoverVerdict(leftover, False, "kept: whether it is still used is not known")
    if leftover.owner_alive:
        return LeftoverVerdict(leftover, False, f"kept: {owner} lives")
    return LeftoverVerdict(leftover, True, f"{owner} is dead, and nothing has it open")
