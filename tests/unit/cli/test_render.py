"""Columns and words of the plain output."""

from __future__ import annotations

import pytest

from opsctl.cli.render import columns, duration, mib
from opsctl.cli.status import grouped


def test_numbers_are_aligned_right_and_words_left() -> None:
    """A column of numbers lines up at its end, also with a header."""
    lines = columns([("1", "ab"), ("100", "c")], ("pid", "who"))

    assert lines == ["  pid  who", "    1  ab", "  100  c"]


def test_a_long_last_column_is_cut_at_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line never wraps."""
    monkeypatch.setenv("COLUMNS", "70")

    (line,) = columns([("1", "x" * 200)])

    assert len(line) == 70
    assert line.endswith("…")


def test_unknown_stays_unknown() -> None:
    """None is never shown as zero."""
    assert mib(None) == "unknown"
    assert mib(0) == "0 MiB"
    assert duration(None) == "unknown"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "5 s"), (300, "5 min"), (18720, "5 h 12 min"), (273600, "3 d 4 h")],
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    """One unit, or two where one hides too much."""
    assert duration(seconds) == text


def test_equal_neighbours_are_folded() -> None:
    """Eight idle GPUs are one row; a busy one stands out."""
    rows = [("0", "free"), ("1", "free"), ("2", "busy"), ("3", "free")]

    assert grouped(rows) == [("0-1", "free"), ("2", "busy"), ("3", "free")]
