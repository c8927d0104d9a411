"""What `opsctl diagnose` says of earlier runs with the same signature."""

from __future__ import annotations

from typing import Any

from opsctl.cli.diagnose import _seen_words


def told(run: str) -> dict[str, Any]:
    row = {"run": run, "server": "glm5", "playbook": "restart", "started_s": 0.0, "patches": {}}
    return {**row, "passed": None}


def test_the_run_that_is_diagnosed_was_not_seen_before() -> None:
    """A first crash must not read as a second one."""
    first = _seen_words([told("run-1")], "run-1")
    second = _seen_words([told("run-2"), told("run-1")], "run-2")

    assert "no: this run is the first" in first[0]
    assert [row for row in second if "seen before" in row] == [
        "  seen before   run-1 (glm5, restart, 1970-01-01 00:00, no patches)"
    ]
    assert "run-1" in _seen_words([told("run-1")], None)[0]
