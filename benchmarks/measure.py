"""Measuring ours and the peer's in turns, so that what else the machine does hits both alike."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

TIMEOUT_S = 180  # a slow peer on a busy machine


@dataclass(frozen=True, slots=True)
class Figure:
    """One promise: ours, the peer's (None: the limit is absolute), and the limit.

    ``limit`` is a ratio where there is a peer, else the same unit as ``ours``.
    """

    name: str
    ours: float
    peer: float | None
    limit: float
    unit: str = "ms"
    note: str = ""

    @property
    def value(self) -> float:
        return self.ours if self.peer is None else self.ours / self.peer

    @property
    def holds(self) -> bool:
        return self.value <= self.limit

    def line(self) -> str:
        """Return the figure as one line of the table."""
        peer = f"{self.peer:10.3f}" if self.peer is not None else " " * 10
        factor = "x" if self.peer is not None else self.unit
        verdict = "holds" if self.holds else "OVER"
        return (
            f"{self.name:<46}{self.ours:10.3f}{peer} {self.unit:<3}{self.value:8.2f} {factor:<3}"
            f"limit {self.limit:<6g}{factor:<3}{verdict}  {self.note}"
        )


def seconds(act: Callable[[], object]) -> float:
    """Return how long one call takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def in_turns(
    ours: Callable[[], object], peer: Callable[[], object], rounds: int
) -> tuple[float, float]:
    """Return both medians in milliseconds, measured alternately."""
    ours(), peer()
    pairs = [(seconds(ours), seconds(peer)) for _ in range(rounds)]
    return (
        statistics.median(pair[0] for pair in pairs) * 1000,
        statistics.median(pair[1] for pair in pairs) * 1000,
    )


def as_installed() -> dict[str, str]:
    """Return an environment in which modules are compiled once, as pip does when it installs."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**env, "PYTHONPYCACHEPREFIX": os.path.join(tempfile.gettempdir(), "opsctl-bench-pyc")}


def process(argv: Sequence[str], allowed: Sequence[int] = (0,)) -> Callable[[], None]:
    """Return a call that runs a whole process and insists on its exit code."""

    def run() -> None:
        done = subprocess.run(
            list(argv), env=as_installed(), capture_output=True, timeout=TIMEOUT_S
        )
        if done.returncode not in allowed:
            raise RuntimeError(f"{argv[0]} ended with {done.returncode}: {done.stderr[-300:]!r}")

    return run
