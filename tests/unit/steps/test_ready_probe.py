"""How a starting server is asked: one probe at a time, and never one on top of another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from opsctl.domain.ready import StartProgress
from opsctl.steps import ready


class Asked(ready._Wait):
    """A wait whose questions are answered from a list, on a clock of our own."""

    def __init__(self, *replies: dict[str, Any]) -> None:
        self.ctx = SimpleNamespace(clock=self)  # type: ignore[assignment]
        self.plan = SimpleNamespace(package="sglang")  # type: ignore[assignment]
        self.progress = StartProgress(begun_at=0.0)
        self.progress.feed(["INFO:     Uvicorn running on http://0.0.0.0:30000"], 0.0)
        self.next_try, self.healthy, self.tried_when_ready = 0.0, False, False
        self.replies = list(replies)
        self.sent: list[tuple[float, float]] = []
        self.time_s = 0.0

    def now(self) -> float:
        return self.time_s

    def ask(self, method: str, path: str, body: Any, limit: float) -> dict[str, Any]:
        reply = self.replies.pop(0)
        took = limit if reply["status"] is None else 0.01
        begun, self.time_s = self.time_s, self.time_s + took
        self.sent.append((begun, self.time_s))
        return {"error": None, "json": None, "seconds": self.time_s - begun} | reply


def test_probe_that_timed_out_is_given_time_to_end_over_there() -> None:
    """Each may be a generation: the next one waits longer than the last one's limit, so none pile up."""
    asked = Asked({"status": None}, {"status": None}, {"status": 200})

    while not asked.healthy:
        asked.is_time(asked.time_s)
        asked.time_s += 0.1

    ends = [end for _, end in asked.sent]
    begins = [begin for begin, _ in asked.sent]
    assert len(asked.sent) == 3
    for end, begin in zip(ends, begins[1:], strict=False):
        assert begin - end > ready.HEALTH_TIMEOUT_S


def test_quick_answer_is_asked_again_soon() -> None:
    """503 while it warms up costs it nothing."""
    asked = Asked({"status": 503}, {"status": 200})

    while not asked.healthy:
        asked.is_time(asked.time_s)
        asked.time_s += 0.1

    assert asked.sent[1][0] - asked.sent[0][1] <= ready.TRY_EVERY_S + 0.2
