"""From a bracket to the exact first failing concurrency, and whether it fails every time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Protocol

from opsctl.domain.report import Outcome
from opsctl.records import dataclass

REPEATS = 2


class Restart(Protocol):
    """Brings the server back after a crash, ready to generate.

    Supplied by whoever knows how: the restart playbook for a server of the site, or a command of
    the user's. Raises an OpsctlError when the server does not come back.
    """

    def __call__(self, reason: str) -> None: ...


@dataclass(slots=True)
class Bisection:
    """What the search found; ``deterministic`` None: it was not repeated, or could not be told."""

    last_good: int | None
    first_bad: int
    tries: list[dict[str, Any]] = field(default_factory=list)
    restarts: int = 0
    deterministic: bool | None = None
    stopped: str | None = None  # why it ended early

    @property
    def is_exact(self) -> bool:
        return self.first_bad - (self.last_good or 0) == 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "last_good": self.last_good,
            "first_bad": self.first_bad,
            "exact": self.is_exact,
            "deterministic": self.deterministic,
            "restarts": self.restarts,
            "tries": self.tries,
            "stopped": self.stopped,
        }


def bisect(
    last_good: int | None,
    first_bad: int,
    outcome: Outcome,
    try_level: Callable[[int], tuple[Outcome, str]],
    restart: Restart,
    *,
    repeats: int = REPEATS,
    stopped: Callable[[], bool] = lambda: False,
) -> Bisection:
    """Halve the bracket until it is exact, then repeat both of its ends.

    Args:
        last_good: highest level known to pass; None when the first one failed.
        first_bad: lowest level known to fail.
        outcome: how it failed; the server is brought back first when it crashed or hung.
        try_level: runs one level on a living server.
        restart: brings the server back.
        repeats: how often the first bad level is run again, and the last good one as well.
        stopped: True once the operator wants to stop.
    """
    found = Bisection(last_good, first_bad)
    dead = outcome in (Outcome.CRASHED, Outcome.HUNG)

    def attempt(level: int, why: str) -> Outcome | None:
        nonlocal dead
        if stopped():
            found.stopped = "interrupted"
            return None
        if dead:
            restart(f"bisect: level {level} needs a living server")
            found.restarts += 1
        got, reason = try_level(level)
        dead = got in (Outcome.CRASHED, Outcome.HUNG)
        found.tries.append(
            {"concurrency": level, "outcome": got.value, "reason": reason, "why": why}
        )
        if got is Outcome.NOT_MEASURED:
            found.stopped = f"level {level} was not measured: {reason}"
            return None
        return got

    while not found.is_exact:
        middle = ((found.last_good or 0) + found.first_bad) // 2
        got = attempt(middle, "search")
        if got is None:
            return found
        if got.is_bad:
            found.first_bad = middle
        else:
            found.last_good = middle
    _repeat(found, attempt, repeats)
    if dead:
        restart("bisect: leave a living server behind")
        found.restarts += 1
    return found


def _repeat(found: Bisection, attempt: Callable[[int, str], Outcome | None], repeats: int) -> None:
    """Run both ends again; the same every time is deterministic, anything else is flaky."""
    bad: list[bool] = []
    good: list[bool] = []
    for _ in range(repeats):
        got = attempt(found.first_bad, "repeat")
        if got is None:
            return
        bad.append(got.is_bad)
    for _ in range(repeats if found.last_good else 0):
        got = attempt(found.last_good or 0, "repeat")
        if got is None:
            return
        good.append(not got.is_bad)
    if bad:
        found.deterministic = all(bad) and all(good)
