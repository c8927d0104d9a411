"""Comparison, crossover and the proposed threshold."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.smoke.compare import Side, compare, find_crossings, other_way, sentences
from opsctl.smoke.tune import propose

# Measured on an H200 (8B-shaped Llama, EAGLE-3 accept 2.0, static): output tok/s.
LEVELS = (1, 2, 5, 10, 20, 40, 64)
BASELINE = (218, 376, 1043, 1972, 3863, 6999, 9723)
EAGLE = (243, 380, 892, 1706, 2961, 4005, 4901)


def run(values: tuple[float, ...], levels: tuple[int, ...] = LEVELS, noise: float = 0.01) -> Any:
    return {
        "levels": [
            {
                "concurrency": c,
                "outcome": "passed",
                "requests": 200,
                "output_tok_s": float(v),
                "e2e_ms": {
                    "mean": 100.0,
                    "ci95": {"mean": [100 - 100 * noise, 100 + 100 * noise]},
                },
            }
            for c, v in zip(levels, values, strict=True)
        ]
    }


def test_measured_curves_cross_between_two_and_five() -> None:
    """EAGLE-3 wins at 1, is the same at 2 within noise, and loses from 5 on."""
    result = compare([Side("baseline", (run(BASELINE),)), Side("eagle", (run(EAGLE),))])

    crossing = result["against_first"][0]["crossings"]
    assert [(one["from"], one["to"], one["last"], one["first"]) for one in crossing] == [
        ("better", "worse", 1, 5)
    ]
    assert 1 < crossing[0]["estimate"] < 5
    assert "eagle loses to baseline above C=1" in sentences(result)[0]


def test_threshold_is_the_last_level_without_a_loss() -> None:
    """disable_above is 2 for the measured curves: at 2 nothing is lost, at 5 it is."""
    found = propose(Side("baseline", (run(BASELINE),)), Side("eagle", (run(EAGLE),)))

    assert (found.action, found.disable_above) == ("set", 2)


@pytest.mark.parametrize(
    ("speculation", "action"),
    [
        ((561, 981, 2156, 4206, 6394, 8871, 11933), "keep-on"),
        ((200, 300, 900, 1700, 2900, 4000, 4900), "switch-off"),
        ((219, 377, 1040, 1970, 3860, 7000, 9720), "unknown"),
    ],
)
def test_no_threshold_where_none_is_earned(speculation: tuple[float, ...], action: str) -> None:
    """Always better, never better, and always the same."""
    found = propose(Side("baseline", (run(BASELINE),)), Side("spec", (run(speculation),)))

    assert (found.action, found.disable_above) == (action, None)


def test_one_common_level_proposes_nothing() -> None:
    """A threshold from one point would be a guess."""
    one = Side("spec", (run((300,), (1,)),))

    assert propose(Side("baseline", (run(BASELINE),)), one).action == "unknown"


def test_difference_within_the_noise_is_none() -> None:
    """3 % apart with 5 % of noise on both sides is the same; with 0.5 % it is not."""
    faster = tuple(value * 1.03 for value in BASELINE)
    loud = [Side("a", (run(BASELINE, noise=0.05),)), Side("b", (run(faster, noise=0.05),))]
    calm = [
        Side("a", (run(BASELINE), run(BASELINE), run(BASELINE))),
        Side("b", (run(faster), run(faster), run(faster))),
    ]

    assert compare(loud)["against_first"][0]["verdict"] == "same"
    assert compare(calm)["against_first"][0]["verdict"] == "better"


def test_times_count_the_other_way_round() -> None:
    """Less time is better."""
    slow, fast = run(BASELINE), run(BASELINE)
    for one, value in ((slow, 20.0), (fast, 10.0)):
        for level in one["levels"]:
            level["ttft_ms"] = {"p50": value}

    result = compare([Side("slow", (slow,)), Side("fast", (fast,))], "p50_ttft_ms")

    assert result["against_first"][0]["verdict"] == "better"


def test_level_that_failed_is_not_compared() -> None:
    """A crashed level has no throughput that means anything."""
    broken = run(EAGLE)
    broken["levels"][2]["outcome"] = "crashed"

    result = compare([Side("a", (run(BASELINE),)), Side("b", (broken,))])

    assert result["levels"][2]["ratios"][1] is None


def test_levels_within_noise_make_no_crossing() -> None:
    """better, same, better is no crossing; better, same, worse is one."""
    assert find_crossings([(1, 1.2, "better"), (2, 1.0, "same"), (5, 1.1, "better")]) == []
    crossings = find_crossings([(1, 1.2, "better"), (2, 1.0, "same"), (5, 0.8, "worse")])
    assert [(one["last"], one["first"]) for one in crossings] == [(1, 5)]


def test_runs_that_were_sent_in_different_ways_are_told() -> None:
    """Times through a tunnel and times from the server's host are not the same measurement."""
    tunnel, host = ({"load": {"from": way}} for way in ("tunnel", "host"))

    assert other_way([tunnel, tunnel, {}]) is None
    told = other_way([tunnel, host])
    assert told is not None
    assert "host, tunnel" in told
