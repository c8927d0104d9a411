"""Runs side by side: curves, ratios with their noise, and where one overtakes the other. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from opsctl.records import dataclass
from opsctl.smoke.gates import lower_is_better, value_of

NOISE_FLOOR = (
    0.02  # two runs of one server differ by this much at least (measured on an H200: 1-5 %)
)
T95 = {2: 12.7, 3: 4.3, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}  # Student's t by repeats


@dataclass(frozen=True, slots=True)
class Point:
    """One level of one side: its value and the half-width of its 95 % interval, relative."""

    value: float
    noise: float
    repeats: int


@dataclass(frozen=True, slots=True)
class Side:
    """One curve: a run, or repeats of it, under one label."""

    label: str
    runs: tuple[Mapping[str, Any], ...]

    def point(self, concurrency: int, metric: str) -> Point | None:
        """Return the value at one level; None when no run of this side passed it."""
        values: list[float] = []
        inner: list[float] = []
        for run in self.runs:
            for level in run["levels"]:
                if level["concurrency"] != concurrency or level["outcome"] != "passed":
                    continue
                value = best_value(level, metric)
                if value is not None:
                    values.append(value)
                    inner.append(request_noise(level))
        if not values:
            return None
        mean = fmean(values)
        if len(values) == 1 or mean == 0:
            return Point(mean, max(NOISE_FLOOR, inner[0]), len(values))
        deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
        half = T95.get(len(values), 2.0) * deviation / math.sqrt(len(values)) / mean
        return Point(mean, max(NOISE_FLOOR / math.sqrt(len(values)), half), len(values))

    def levels(self) -> set[int]:
        return {level["concurrency"] for run in self.runs for level in run["levels"]}


def other_way(runs: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why the times of these runs do not compare: they were sent from different places."""
    told = [(run.get("load") or {}).get("from") for run in runs]
    ways = sorted({str(way) for way in told if way is not None})
    if len(ways) < 2:
        return None
    return (
        f"these runs were sent in different ways ({', '.join(ways)}): their times hold different "
        "networks"
    )


def best_value(level: Mapping[str, Any], metric: str) -> float | None:
    """Return the metric; throughput of the steady part where there was one, without the ends."""
    if metric == "throughput":
        steady = value_of(level, "steady_tok_s")
        if steady is not None:
            return steady
    return value_of(level, metric)


def request_noise(level: Mapping[str, Any]) -> float:
    """Return the relative half-width of a level's mean request time: what one run knows of its noise."""
    times = level.get("e2e_ms")
    if not isinstance(times, Mapping):
        return NOISE_FLOOR
    interval = (times.get("ci95") or {}).get("mean")
    if not interval or not times.get("mean"):
        return 0.1  # one request: nothing is known
    return float(interval[1] - interval[0]) / 2 / float(times["mean"])


def verdict(ratio: float, noise: float) -> str:
    """Return better, worse or same for a ratio where more than 1 is good."""
    if ratio > 1 + noise:
        return "better"
    if ratio < 1 - noise:
        return "worse"
    return "same"


def compare(sides: Sequence[Side], metric: str = "throughput") -> dict[str, Any]:
    """Return the comparison of every side with the first one."""
    levels = sorted(set().union(*(side.levels() for side in sides)))
    rows: list[dict[str, Any]] = []
    for concurrency in levels:
        points = [side.point(concurrency, metric) for side in sides]
        base = points[0]
        row: dict[str, Any] = {"concurrency": concurrency, "values": [], "ratios": []}
        for point in points:
            row["values"].append(None if point is None else round(point.value, 3))
            row["ratios"].append(_ratio(base, point, metric))
        rows.append(row)
    for row in rows:
        row["outcomes"] = [_outcome(side, row["concurrency"]) for side in sides]
    others = [_curve(side.label, rows, index) for index, side in enumerate(sides) if index > 0]
    return {
        "metric": metric,
        "labels": [side.label for side in sides],
        "levels": rows,
        "against_first": others,
    }


def _outcome(side: Side, concurrency: int) -> str | None:
    """Return the worst outcome of a side's runs at one level; None when none ran it."""
    found = [
        str(level["outcome"])
        for run in side.runs
        for level in run["levels"]
        if level["concurrency"] == concurrency
    ]
    return next((outcome for outcome in found if outcome != "passed"), found[0] if found else None)


def _ratio(base: Point | None, point: Point | None, metric: str) -> dict[str, Any] | None:
    if base is None or point is None or not base.value or not point.value:
        return None
    ratio = point.value / base.value
    if lower_is_better(metric):
        ratio = 1 / ratio
    noise = math.hypot(base.noise, point.noise)
    return {"ratio": round(ratio, 4), "noise": round(noise, 4), "verdict": verdict(ratio, noise)}


def _curve(label: str, rows: Sequence[Mapping[str, Any]], index: int) -> dict[str, Any]:
    told = [
        (row["concurrency"], row["ratios"][index])
        for row in rows
        if row["ratios"][index] is not None
    ]
    crossings = find_crossings([(c, r["ratio"], r["verdict"]) for c, r in told])
    verdicts = [r["verdict"] for _, r in told]
    overall = "not comparable"
    if verdicts:
        overall = verdicts[0] if len(set(verdicts)) == 1 else "mixed"
        if set(verdicts) == {"same", "better"}:
            overall = "better or the same"
        elif set(verdicts) == {"same", "worse"}:
            overall = "worse or the same"
    return {"label": label, "verdict": overall, "crossings": crossings}


def find_crossings(points: Sequence[tuple[int, float, str]]) -> list[dict[str, Any]]:
    """Return where a curve crosses its base beyond the noise, with the crossing point estimated.

    Args:
        points: (concurrency, ratio, verdict), ascending. Levels that are the same within noise take
            no side, so they never make a crossing by themselves.
    """
    found: list[dict[str, Any]] = []
    previous: tuple[int, float, str] | None = None
    for point in points:
        if point[2] == "same":
            continue
        if previous is not None and previous[2] != point[2]:
            found.append(
                {
                    "from": previous[2],
                    "to": point[2],
                    "last": previous[0],
                    "first": point[0],
                    "estimate": round(_estimate(previous, point), 1),
                }
            )
        previous = point
    return found


def _estimate(left: tuple[int, float, str], right: tuple[int, float, str]) -> float:
    """Return where the ratio passes 1, linear in the logarithm of the concurrency."""
    a, b = math.log(left[0]), math.log(right[0])
    share = (left[1] - 1) / (left[1] - right[1])
    return math.exp(a + (b - a) * min(1.0, max(0.0, share)))


def sentences(result: Mapping[str, Any]) -> list[str]:
    """Return the comparison as sentences that name the crossover and what to do about it."""
    base = result["labels"][0]
    lines: list[str] = []
    for row in result["levels"]:
        for label, outcome in zip(result["labels"], row["outcomes"], strict=True):
            if outcome not in (None, "passed"):
                lines.append(f"{label} {outcome} at C={row['concurrency']}: not compared there")
    for other in result["against_first"]:
        label = other["label"]
        if not other["crossings"]:
            where = "at every level that both passed"
            lines.append(f"{label} against {base}: {other['verdict']} {where}")
            continue
        for crossing in other["crossings"]:
            if crossing["to"] == "worse":
                lines.append(
                    f"{label} loses to {base} above C={crossing['last']} (wins up to "
                    f"C={crossing['last']}, loses from C={crossing['first']}, "
                    f"crossing near {crossing['estimate']:g})"
                )
            else:
                lines.append(
                    f"{label} wins over {base} from C={crossing['first']} "
                    f"(crossing near {crossing['estimate']:g})"
                )
    return lines
