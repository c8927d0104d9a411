"""Gates for CI: conditions, ratios, limits."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.errors import UsageError
from opsctl.smoke.gates import judge_gates, judge_ratio, parse_gate, parse_slo, value_of


def level(concurrency: int = 1, **values: Any) -> dict[str, Any]:
    return {"concurrency": concurrency, "requests": 10, "failed": 0, **values}


@pytest.mark.parametrize(
    ("text", "metric", "concurrency", "sign", "limit"),
    [
        ("p99_ttft_ms > 800", "p99_ttft_ms", None, ">", 800.0),
        ("throughput@10<95.5", "throughput", 10, "<", 95.5),
        ("failed_share >= 0", "failed_share", None, ">=", 0.0),
    ],
)
def test_condition_is_read(
    text: str, metric: str, concurrency: int | None, sign: str, limit: float
) -> None:
    """METRIC, optionally @C, an operator, a number; blanks do not matter."""
    gate = parse_gate(text)

    assert (gate.metric, gate.concurrency, gate.sign, gate.limit) == (
        metric,
        concurrency,
        sign,
        limit,
    )


@pytest.mark.parametrize("text", ["", "p99_ttft_ms", "p99_ttft_ms > x", "ttft > 1 and 2"])
def test_no_condition_is_a_usage_error(text: str) -> None:
    """What is no condition is refused before the run, not after it."""
    with pytest.raises(UsageError):
        parse_gate(text)


def test_unknown_metric_names_the_nearest() -> None:
    """A typing error is answered by the name that was meant."""
    with pytest.raises(UsageError) as caught:
        parse_gate("p99_tttf_ms > 1")

    assert "p99_ttft_ms" in str(caught.value.next_step)


def test_condition_that_holds_fails_the_run() -> None:
    """Each level that holds it is a finding; exit 70."""
    levels = [level(1, ttft_ms={"p99": 100.0}), level(10, ttft_ms={"p99": 900.0})]

    result = judge_gates([parse_gate("p99_ttft_ms > 800")], levels)

    assert result.exit_code == 70
    assert [finding.subject for finding in result.findings] == ["level 10"]


def test_condition_at_one_level_looks_at_that_level_alone() -> None:
    """@10 does not judge level 1."""
    levels = [level(1, output_tok_s=10.0), level(10, output_tok_s=100.0)]

    assert judge_gates([parse_gate("throughput@10 < 50")], levels).exit_code == 0
    assert judge_gates([parse_gate("throughput < 50")], levels).exit_code == 70


def test_number_that_was_not_measured_is_no_pass() -> None:
    """A gate on a number that no level has ends with 75, never with 0."""
    assert judge_gates([parse_gate("accept_length < 2")], [level(1)]).exit_code == 75


def test_ratio_against_another_run() -> None:
    """Throughput: new / old. Times: old / new. Levels that only one run has do not count."""
    new = [level(1, output_tok_s=94.0, ttft_ms={"p50": 20.0}), level(64, output_tok_s=1.0)]
    old = [level(1, output_tok_s=100.0, ttft_ms={"p50": 10.0})]

    assert judge_ratio("throughput", 0.95, new, old).exit_code == 70
    assert judge_ratio("throughput", 0.93, new, old).exit_code == 0
    assert judge_ratio("p50_ttft_ms", 0.95, new, old).exit_code == 70
    assert judge_ratio("p50_ttft_ms", 0.5, new, old).exit_code == 0
    assert judge_ratio("goodput", 0.5, new, old).exit_code == 75


def test_ratio_to_a_dead_run_fails() -> None:
    """Nothing delivered is not 'nothing to compare'."""
    new, old = [level(1, output_tok_s=0.0)], [level(1, output_tok_s=100.0)]

    assert judge_ratio("throughput", 0.95, new, old).exit_code == 70


def test_computed_values() -> None:
    """Shares are computed from counts; without requests there is none."""
    assert value_of(level(failed=5), "failed_share") == 0.5
    assert value_of({"concurrency": 1, "requests": 0}, "failed_share") is None
    assert value_of(level(answers={"exact": 3, "compared": 4}), "exact_share") == 0.75
    assert value_of(level(ttft_ms=None), "p50_ttft_ms") is None


def test_limits_of_the_slo() -> None:
    """NAME=MS, several at once; anything else is refused."""
    assert parse_slo(["ttft_ms=500,tpot_ms=20"]) == {"ttft_ms": 500.0, "tpot_ms": 20.0}
    for wrong in ("ttft_ms", "ttft_ms=x", "p99=1", "ttft_ms=0"):
        with pytest.raises(UsageError):
            parse_slo([wrong])
