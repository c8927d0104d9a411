"""Where speculation stops to pay: a threshold proposed from measured runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opsctl.records import dataclass
from opsctl.smoke.compare import Side, compare


@dataclass(frozen=True, slots=True)
class Proposal:
    """What to write into the site file; ``disable_above`` None: leave it out, or speculation off."""

    action: str  # set, keep-on, switch-off, unknown
    disable_above: int | None
    reason: str
    comparison: dict[str, Any]


def propose(baseline: Side, speculation: Side) -> Proposal:
    """Return the threshold that the crossover asks for.

    The threshold is the highest level up to which speculation never loses beyond the noise, so it
    is only ever switched off where that was measured to be better.
    """
    result = compare([baseline, speculation])
    told: Sequence[tuple[int, dict[str, Any]]] = [
        (row["concurrency"], row["ratios"][1]) for row in result["levels"] if row["ratios"][1]
    ]
    if len(told) < 2:
        return Proposal(
            "unknown", None, "fewer than two levels were measured with both servers", result
        )
    losing = [c for c, ratio in told if ratio["verdict"] == "worse"]
    winning = [c for c, ratio in told if ratio["verdict"] == "better"]
    if not losing:
        if not winning:
            return Proposal(
                "unknown",
                None,
                "both are the same within the noise at every level: measure longer levels",
                result,
            )
        return Proposal(
            "keep-on",
            None,
            f"speculation never loses up to C={told[-1][0]}: leave disable_above out",
            result,
        )
    first = losing[0]
    before = [c for c, _ in told if c < first]
    if not before or not any(c in winning for c in before):
        return Proposal(
            "switch-off",
            None,
            f"speculation loses from C={first} on and wins nowhere below it: switch it off",
            result,
        )
    later_wins = [c for c in winning if c > first]
    note = f"; it wins again at C={later_wins[0]}, so measure that again" if later_wins else ""
    return Proposal(
        "set",
        before[-1],
        f"speculation loses from C={first} on: set disable_above: {before[-1]}{note}",
        result,
    )
