"""The command line's start: everything heavy is imported on use."""

from __future__ import annotations

import sys

from benchmarks.measure import Figure, in_turns, process


def run() -> list[Figure]:
    """Measure ``opsctl --help`` against ``import click``."""
    ours = process([sys.executable, "-m", "opsctl", "--help"])
    peer = process([sys.executable, "-c", "import click"])
    return [Figure("opsctl --help / python -c 'import click'", *in_turns(ours, peer, 15), 1.5)]
