"""What a command says while it works: nothing at once, a line when silence would be noticed, then sparse."""

from __future__ import annotations

import time

import pytest

from opsctl.cli import talk


def test_a_long_wait_in_a_pipe_is_told_once_and_then_sparsely(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first line comes early, the next ones seldom; a short wait says nothing."""
    monkeypatch.setattr(talk, "FIRST_S", 0.05)
    one = talk.Talk()

    with one.ticking("proving"):
        pass
    assert capsys.readouterr().err == ""
    with one.ticking("proving"):
        time.sleep(0.2)

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("  ... proving: ")


def test_who_shows_progress_of_its_own_is_not_talked_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step knows better what it waits for than that it waits."""
    monkeypatch.setattr(talk, "FIRST_S", 0.05)
    one = talk.Talk()

    with one.ticking("ready"):
        for _ in range(8):
            one.progress("loading weights")
            time.sleep(0.02)

    assert "ready" not in capsys.readouterr().err


def test_a_quiet_one_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --json stderr carries findings alone."""
    monkeypatch.setattr(talk, "FIRST_S", 0.01)

    with talk.Talk(quiet=True).ticking("proving"):
        time.sleep(0.05)

    assert capsys.readouterr().err == ""
