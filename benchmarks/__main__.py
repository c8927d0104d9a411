"""Run the benchmarks named on the command line, or all; exit 1 when a figure is over its limit."""

from __future__ import annotations

import importlib
import signal
import sys

from benchmarks.measure import Figure

NAMES = (
    "start_up",
    "agent_echo",
    "scan",
    "status",
    "stop",
    "patch",
    "history",
    "fleet",
    "smoke_load",
)


def main(names: list[str]) -> int:
    """Print one line per figure as it is measured, and return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started ends, too
    figures: list[Figure] = []
    for name in names or NAMES:
        for figure in importlib.import_module(f"benchmarks.{name}").run():
            print(figure.line(), flush=True)
            figures.append(figure)
    over = [figure for figure in figures if not figure.holds]
    print(f"{len(figures) - len(over)} of {len(figures)} figures hold")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
