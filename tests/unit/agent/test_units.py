"""What systemd is asked, and where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from opsctl.agent.ops import units


def test_without_systemd_as_process_1_there_is_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its systemctl says `offline` there, which must not be taken for a shutdown."""
    monkeypatch.setattr(units, "BOOTED", str(tmp_path / "none"))
    monkeypatch.setattr(units, "systemctl", lambda *given: pytest.fail("it was asked"))

    assert units.system_state({}, cast(Any, None)) == {"state": None}


def test_systemd_s_own_word_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`stopping` while it goes down."""

    class Done:
        stdout = b"stopping\n"

    monkeypatch.setattr(units, "BOOTED", str(tmp_path))
    monkeypatch.setattr(units, "systemctl", lambda *given: Done())

    assert units.system_state({}, cast(Any, None)) == {"state": "stopping"}
