"""Gates for CI: ``--fail-if 'p99_ttft_ms@10 > 800'``, ``--min-ratio throughput 0.95``, SLO limits. Pure."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opsctl.errors import UsageError
from opsctl.output import Finding
from opsctl.records import dataclass

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
SPREADS = ("ttft_ms", "itl_ms", "chunk_gap_ms", "tpot_ms", "e2e_ms")
SPREAD_PARTS = ("mean", "p50", "p90", "p99", "min", "max")
PLAIN = {
    "throughput": "output_tok_s",
    "output_tok_s": "output_tok_s",
    "steady_tok_s": "steady_tok_s",
    "requests_s": "requests_s",
    "failed": "failed",
    "goodput": "goodput",
    "accept_length": "accept_length",
    "accept_ratio": "accept_ratio",
    "cached_share": "cached_share",
}
COMPUTED = ("failed_share", "agreement", "exact_share")
SLO_NAMES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
_GATE = re.compile(r"\s*([a-z0-9_]+)\s*(?:@\s*(\d+))?\s*(>=|<=|==|!=|>|<)\s*(-?\d+(?:\.\d+)?)\s*$")

Level = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Gate:
    """One condition under which a run fails."""

    text: str
    metric: str
    concurrency: int | None
    sign: str
    limit: float


def metric_names() -> list[str]:
    """Return every name that a gate may use."""
    spreads = [f"{part}_{name}" for name in SPREADS for part in SPREAD_PARTS]
    return [*spreads, *PLAIN, *COMPUTED]


def parse_gate(text: str) -> Gate:
    """Return the gate of ``METRIC[@C] OP NUMBER``.

    Raises:
        UsageError: with the nearest metric's name when the name is unknown.
    """
    match = _GATE.match(text)
    if match is None:
        raise UsageError(
            f"'{text}' is no condition", next_step="write it as 'p99_ttft_ms > 800', or with @10"
        )
    metric, concurrency, sign, limit = match.groups()
    check_metric(metric)
    return Gate(text.strip(), metric, int(concurrency) if concurrency else None, sign, float(limit))


def check_metric(metric: str) -> None:
    """Raise UsageError unless a level has such a number."""
    if metric in metric_names():
        return
    import difflib

    near = difflib.get_close_matches(metric, metric_names(), 1)
    step = f"did you mean {near[0]}?" if near else f"one of {', '.join(PLAIN)}, p99_ttft_ms, ..."
    raise UsageError(f"there is no metric '{metric}'", next_step=step)


def parse_slo(words: Sequence[str]) -> dict[str, float]:
    """Return the limits of ``ttft_ms=500`` words.

    Raises:
        UsageError: an unknown name, no number, or no positive one.
    """
    limits: dict[str, float] = {}
    for word in (part for given in words for part in given.split(",")):
        name, sign, value = word.partition("=")
        try:
            limits[name.strip()] = float(value)
        except ValueError:
            sign = ""
        if not sign or name.strip() not in SLO_NAMES or not 0 < limits[name.strip()] < float("inf"):
            raise UsageError(
                f"'{word}' is no limit",
                next_step=f"write NAME=MS with one of {', '.join(SLO_NAMES)}",
            )
    return limits


def value_of(level: Level, metric: str) -> float | None:
    """Return a metric of one level as data; None when it was not measured."""
    if metric in PLAIN:
        return _number(level.get(PLAIN[metric]))
    if metric == "failed_share":
        requests = level.get("requests") or 0
        return (level.get("failed") or 0) / requests if requests else None
    if metric in ("agreement", "exact_share"):
        answers = level.get("answers") or {}
        if metric == "agreement":
            return _number(answers.get("agreement"))
        return answers["exact"] / answers["compared"] if answers.get("compared") else None
    part, _, name = metric.partition("_")
    values = level.get(name)
    return _number(values.get(part)) if isinstance(values, Mapping) else None


def lower_is_better(metric: str) -> bool:
    """Say whether less of a metric is good: times and failures."""
    return metric.endswith("_ms") or metric.startswith("failed")


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the gates came to: findings, and the exit code they ask for (0, 70 or 75)."""

    findings: tuple[Finding, ...] = ()
    exit_code: int = 0


def judge_gates(gates: Sequence[Gate], levels: Sequence[Level]) -> GateResult:
    """Hold the measured levels against the gates; a number that is missing is not a pass."""
    findings: list[Finding] = []
    codes = {0}
    for gate in gates:
        chosen = [
            level
            for level in levels
            if gate.concurrency is None or level["concurrency"] == gate.concurrency
        ]
        told = 0
        for level in chosen:
            value = value_of(level, gate.metric)
            if value is None:
                continue
            told += 1
            if OPERATORS[gate.sign](value, gate.limit):
                codes.add(70)
                findings.append(
                    Finding(
                        "gate-failed",
                        f"level {level['concurrency']}",
                        f"{gate.metric} is {value:g}: '{gate.text}' holds",
                    )
                )
        if not told:
            codes.add(75)
            findings.append(
                Finding("gate-not-measured", gate.text, "no level measured this number")
            )
    return GateResult(tuple(findings), 70 if 70 in codes else max(codes))


def judge_ratio(
    metric: str, ratio: float, levels: Sequence[Level], against: Sequence[Level]
) -> GateResult:
    """Hold each level against the same level of another run: new / old, or old / new for times."""
    old = {level["concurrency"]: value_of(level, metric) for level in against}
    findings: list[Finding] = []
    compared = 0
    for level in levels:
        new_value = value_of(level, metric)
        old_value = old.get(level["concurrency"])
        if new_value is None or old_value is None:
            continue
        compared += 1
        good, bad = (old_value, new_value) if lower_is_better(metric) else (new_value, old_value)
        got = good / bad if bad else (1.0 if not good else float("inf"))
        if got < ratio:
            findings.append(
                Finding(
                    "ratio-failed",
                    f"level {level['concurrency']}",
                    f"{metric} is {new_value:g} against {old_value:g}: {got:.3f} of it, "
                    f"at least {ratio:g} is asked for",
                )
            )
    if findings:
        return GateResult(tuple(findings), 70)
    if not compared:
        words = f"no level has {metric} in both runs"
        return GateResult((Finding("ratio-not-measured", metric, words),), 75)
    return GateResult()


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)
