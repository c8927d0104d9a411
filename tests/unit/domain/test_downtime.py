"""The downtime's breakdown: what is the server's, and what is ours."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.domain.downtime import measure_downtime


def test_the_overhead_is_what_neither_server_needed() -> None:
    """(first signal to ready) - (first TERM to last exit) - (exec to the ready line)."""
    found = measure_downtime((10.0, 12.0), 12.5, (500.0, 520.0, 520.5))

    assert found is not None
    assert found.total_s == 23.0
    assert found.overhead_s == pytest.approx(1.0)
    assert found.to_json()["between_s"] == 0.5


@pytest.mark.parametrize(
    ("stopped", "executed", "started"),
    [
        ((None, 1.0), 2.0, (3.0, 4.0, 5.0)),
        ((1.0, 2.0), 3.0, (3.0, None, 5.0)),
        ((5.0, 4.0), 6.0, (3.0, 4.0, 5.0)),
        ((1.0, 2.0), None, (3.0, 4.0, 5.0)),
    ],
)
def test_a_missing_moment_gives_no_figure(stopped: Any, executed: Any, started: Any) -> None:
    """Nothing is made up."""
    assert measure_downtime(stopped, executed, started) is None
