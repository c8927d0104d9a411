"""What one decode step's time on the GPU is made of: ``python -m tests.gpu.timeline TRACE STEPS``.

Reads a trace of torch's profiler and prints, per step, busy and idle time of the GPU and each kernel's time.
 With two traces (``TRACE STEPS TRACE STEPS``) it prints what the second has more.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("kernel", "gpu_memcpy", "gpu_memset")
GAP_US = 4.0  # shorter ones lie between any two kernels


@dataclass
class Timeline:
    """Times per step, in microseconds; ``gaps`` by (kernel before, kernel after)."""

    period: float
    busy: float
    time: Counter[str]
    count: Counter[str]
    gaps: Counter[tuple[str, str]]


def read(path: Path, steps: int) -> Timeline:
    """Return what a trace of ``steps`` steps holds."""
    with gzip.open(path) as stream:
        events = json.load(stream)["traceEvents"]
    work = sorted((e for e in events if e.get("cat") in KINDS), key=lambda e: float(e["ts"]))
    return _measured(work, steps)


def _measured(work: list[dict[str, Any]], steps: int) -> Timeline:
    time: Counter[str] = Counter()
    count: Counter[str] = Counter()
    gaps: Counter[tuple[str, str]] = Counter()
    busy, end, before = 0.0, float(work[0]["ts"]), ""
    for event in work:
        start, length, name = float(event["ts"]), float(event["dur"]), event["name"][:70]
        time[name] += length  # type: ignore[assignment]
        count[name] += 1
        if start - end > GAP_US:
            gaps[before[:40], name[:40]] += start - end  # type: ignore[assignment]
        busy += max(0.0, start + length - max(start, end))
        end, before = max(end, start + length), name
    period = (end - float(work[0]["ts"])) / steps
    for counter in (time, count, gaps):
        for key in counter:
            counter[key] /= steps  # type: ignore[index,assignment]
    return Timeline(period, busy / steps, time, count, gaps)


def show(line: Timeline, rows: int = 25) -> None:
    """Print one timeline."""
    print(
        f"per step: {line.period:.0f} us, GPU busy {line.busy:.0f}, idle {line.period - line.busy:.0f}"
    )
    for name, spent in line.time.most_common(rows):
        print(f"  {spent:8.1f} us  {line.count[name]:7.2f} x  {name}")
    _show_gaps(line)


def show_steps(path: Path) -> None:
    """Print the model's forward passes: when each began on the CPU, and how long that took."""
    with gzip.open(path) as stream:
        events = json.load(stream)["traceEvents"]
    spans = [e for e in events if e.get("cat") == "user_annotation" and "step" in e["name"]]
    kernels = sorted((e for e in events if e.get("cat") in KINDS), key=lambda e: float(e["ts"]))
    if not spans or not kernels:
        return
    zero = min(float(e["ts"]) for e in spans)
    for span in sorted(spans, key=lambda e: float(e["ts"])):
        start = float(span["ts"])
        print(
            f"  {(start - zero) / 1000:8.2f} ms  {float(span['dur']) / 1000:6.2f} ms  {span['name'][:60]}"
        )
    print(
        f"  last kernel ends at {(float(kernels[-1]['ts']) + float(kernels[-1]['dur']) - zero) / 1000:.2f} ms"
    )


def _show_gaps(line: Timeline, rows: int = 8) -> None:
    for (before, after), spent in line.gaps.most_common(rows):
        print(f"  gap {spent:7.1f} us  {before} -> {after}")


def show_difference(first: Timeline, second: Timeline, rows: int = 45) -> None:
    """Print what the second timeline has more (or less) than the first."""
    idle = [line.period - line.busy for line in (first, second)]
    print(
        f"per step: {first.period:.0f} -> {second.period:.0f} us, "
        f"busy {first.busy:.0f} -> {second.busy:.0f}, idle {idle[0]:.0f} -> {idle[1]:.0f}"
    )
    names = set(first.time) | set(second.time)
    changes = {name: second.time[name] - first.time[name] for name in names}
    for name in sorted(names, key=lambda name: -abs(changes[name]))[:rows]:
        print(
            f"  {changes[name]:+8.1f} us  {first.count[name]:6.2f} -> {second.count[name]:6.2f} x  {name}"
        )
    for line in (first, second):
        _show_gaps(line)


def main() -> int:
    """Print one timeline, or the difference of two."""
    words = sys.argv[1:]
    lines = [read(Path(words[i]), int(words[i + 1])) for i in range(0, len(words), 2)]
    if len(lines) == 2:
        show_difference(*lines)
    else:
        show(lines[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
