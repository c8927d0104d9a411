"""Plain columns for people: no colour, no box, fits a narrow terminal, reads well in a log."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

MIB = 1 << 20


def columns(
    rows: Sequence[Sequence[str]],
    header: Sequence[str] | None = None,
    *,
    indent: int = 2,
    whole: bool = False,
) -> list[str]:
    """Return rows as aligned lines; the last column is cut where the terminal ends, no other ever.

    Without a terminal (a pipe, a file) nothing is cut; with ``whole`` nowhere: the terminal folds the line.
    A column whose cells are all numbers (with an optional unit) is aligned to the right.
    """
    table = [list(header)] if header else []
    table += [list(row) for row in rows]
    if not table:
        return []
    count = max(len(row) for row in table)
    table = [row + [""] * (count - len(row)) for row in table]
    widths = [max(len(row[index]) for row in table) for index in range(count)]
    body = table[1:] if header else table
    right = [
        all(row[index][:1].isdigit() or row[index] in ("", "-") for row in body)
        and any(row[index] for row in body)
        for index in range(count)
    ]
    limit = None if whole else width_of_terminal()
    begin = indent + sum(widths[:-1]) + 2 * (count - 1)  # of the last column
    lines = []
    for row in table:
        cells = [
            cell.rjust(widths[i]) if right[i] else cell.ljust(widths[i])
            for i, cell in enumerate(row)
        ]
        line = " " * indent + "  ".join(cells).rstrip()
        if limit is not None and len(line) > limit:
            line = line[: max(limit - 1, begin)].rstrip() + "…"
        lines.append(line)
    return lines


def width_of_terminal() -> int | None:
    """Return the width of the terminal that stdout is; None where it is none and COLUMNS is not set."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return None
    return shutil.get_terminal_size((120, 40)).columns


def mib(number_bytes: int | None) -> str:
    """Return bytes as MiB for people; unknown stays unknown."""
    return "unknown" if number_bytes is None else f"{number_bytes // MIB} MiB"


def duration(seconds: float | None) -> str:
    """Return seconds as people say them: 42 s, 3 min, 5 h 12 min, 3 d 4 h."""
    if seconds is None:
        return "unknown"
    whole = int(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 120:
        return f"{minutes} min"
    if hours < 48:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"
