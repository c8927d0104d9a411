"""Bisection: the exact first failing concurrency, restarts in between, flaky or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opsctl.domain.report import Outcome
from opsctl.smoke.bracket import bisect


class Server:
    """Crashes at ``first_bad`` and above; dead until it is restarted."""

    def __init__(self, fails: Callable[[int, int], bool], outcome: Outcome = Outcome.CRASHED):
        self.fails = fails
        self.outcome = outcome
        self.alive = outcome is Outcome.FAILED
        self.restarts = 0
        self.tried: list[int] = []

    def restart(self, reason: str) -> None:
        assert not self.alive, "a living server was restarted"
        self.alive = True
        self.restarts += 1

    def try_level(self, level: int) -> tuple[Outcome, str]:
        assert self.alive, "a level was tried on a dead server"
        self.tried.append(level)
        if not self.fails(level, len(self.tried)):
            return Outcome.PASSED, ""
        self.alive = self.outcome is Outcome.FAILED
        return self.outcome, "planned"


@pytest.mark.parametrize("first_bad", range(3, 11))
def test_every_threshold_is_found_exactly(first_bad: int) -> None:
    """Whatever lies between 2 and 10 is found in at most three searches, and left alive."""
    server = Server(lambda level, _: level >= first_bad)

    found = bisect(2, 10, Outcome.CRASHED, server.try_level, server.restart)

    assert (found.last_good, found.first_bad) == (first_bad - 1, first_bad)
    assert found.is_exact
    assert found.deterministic is True
    assert len([one for one in found.tries if one["why"] == "search"]) <= 3
    assert server.alive
    assert server.restarts == found.restarts


def test_first_level_that_fails_is_searched_down_to_one() -> None:
    """Without a good level the search begins at 1."""
    server = Server(lambda level, _: level >= 1)

    found = bisect(None, 4, Outcome.CRASHED, server.try_level, server.restart)

    assert (found.last_good, found.first_bad, found.is_exact) == (None, 1, True)


def test_level_that_fails_only_sometimes_is_flaky() -> None:
    """The repeat passes: not deterministic."""
    server = Server(lambda level, attempt: level >= 3 and attempt % 2 == 1)

    found = bisect(2, 4, Outcome.CRASHED, server.try_level, server.restart)

    assert found.deterministic is False


def test_server_that_only_answers_wrong_is_not_restarted() -> None:
    """Wrong answers leave a living server: no restart is needed."""
    server = Server(lambda level, _: level >= 5, Outcome.FAILED)

    found = bisect(2, 10, Outcome.FAILED, server.try_level, server.restart)

    assert (found.first_bad, found.restarts) == (5, 0)


def test_level_that_was_not_measured_ends_the_search() -> None:
    """The client's trouble must not be taken for a pass or a failure."""
    found = bisect(
        2, 10, Outcome.FAILED, lambda level: (Outcome.NOT_MEASURED, "late"), lambda reason: None
    )

    assert (found.last_good, found.first_bad) == (2, 10)
    assert found.stopped is not None
    assert found.deterministic is None


def test_operator_who_stops_is_obeyed() -> None:
    """Nothing is tried and nothing restarted after Ctrl-C."""
    server = Server(lambda level, _: True)

    found = bisect(2, 10, Outcome.CRASHED, server.try_level, server.restart, stopped=lambda: True)

    assert (found.stopped, server.tried, server.restarts) == ("interrupted", [], 0)
