"""Where the time without a server went: what the server needed itself, and what we added; pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from opsctl.records import dataclass


@dataclass(frozen=True, slots=True)
class Downtime:
    """The stretches between the first signal and the proof, in seconds.

    ``overhead_s`` is ours: everything but the old server's own end and the new one's own start.
    """

    stop_s: float  # first signal to the last exit
    between_s: float  # last exit to exec: memory proof, sweep, patches
    start_s: float  # exec to the server's own ready line
    proof_s: float  # ready line to our proof
    total_s: float

    @property
    def overhead_s(self) -> float:
        return self.total_s - self.stop_s - self.start_s

    def to_json(self) -> dict[str, Any]:
        numbers = {**asdict(self), "overhead_s": self.overhead_s}
        return {name: round(value, 3) for name, value in numbers.items()}

    def describe(self) -> str:
        """Return the breakdown as the line that a person reads."""
        parts = f"stop {self.stop_s:.2f}, between {self.between_s:.2f}, start {self.start_s:.2f}"
        parts += f", proof {self.proof_s:.2f}"
        return f"without a server for {self.total_s:.2f} s: {parts}; our overhead {self.overhead_s:.2f} s"


def measure_downtime(
    stopped: tuple[float | None, float | None],
    executed_s: float | None,
    started: tuple[float | None, float | None, float | None],
) -> Downtime | None:
    """Return the breakdown, or None when one of the moments is not known or they are out of order.

    Args:
        stopped: first signal and last exit, on the wall clock of the server's host.
        executed_s: the exec of the new server, on the same clock.
        started: exec, ready line and proof, on our own monotonic clock.
    """
    host, ours = [*stopped, executed_s], [*started]
    there = [moment for moment in host if moment is not None]
    here = [moment for moment in ours if moment is not None]
    if len(there) != 3 or len(here) != 3 or there != sorted(there) or here != sorted(here):
        return None
    signal, gone, executed = there
    exec_at, line, ready = here
    total = (executed - signal) + (ready - exec_at)
    return Downtime(gone - signal, executed - gone, line - exec_at, ready - line, total)
