"""The doctor's lines: a command that is there to be copied is never broken."""

from __future__ import annotations

import pytest

from opsctl.cli import given
from opsctl.cli.doctor import lines_of, wrapped
from opsctl.domain.doctor import Check, State

UNIT = "opsctl-standin-20261130-081428-6dc6.service"
ORDER = f"opsctl ct exec ct129 -- systemctl reset-failed {UNIT}"


@pytest.mark.parametrize("columns", ["40", "60", "100"])
def test_a_command_stands_on_a_line_of_its_own(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any width: what is copied has to run."""
    monkeypatch.setenv("COLUMNS", columns)
    given.forget()
    check = Check("units", State.WARN, "a launch failed", "clear it", "ct129", command=ORDER)

    lines = lines_of([check], {}, show_all=False)

    assert [line.strip() for line in lines if "reset-failed" in line] == [ORDER]
    assert check.next == f"clear it: {ORDER}"


def test_a_command_within_a_sentence_is_not_broken() -> None:
    """The backticks hold it together; the words around it are wrapped."""
    text = "this is a long sentence that speaks of `opsctl patch status glm5` and goes on"

    lines = wrapped(text, 40, "  ", "  ")

    assert any("`opsctl patch status glm5`" in line for line in lines)
    assert len(lines) == 2
    assert wrapped("opsctl patch status glm5", 10, "", "") == ["opsctl patch status glm5"]
