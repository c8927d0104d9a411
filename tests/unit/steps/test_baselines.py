"""Idle baselines: kept by UUID, whole or not at all."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from opsctl.domain.gpu import Baseline
from opsctl.errors import ConfigError
from opsctl.steps import baselines
from opsctl.steps.baselines import FILE_NAME, load_baselines, save_baselines


def test_baselines_come_back_as_they_were_saved(tmp_path: Path) -> None:
    """Two hosts, one file; an empty folder knows nothing."""
    assert load_baselines(tmp_path) == {}
    save_baselines(tmp_path, "a", {"GPU-1": Baseline(5, 2)})
    save_baselines(tmp_path, "b", {"GPU-2": Baseline(7, 1)})

    assert load_baselines(tmp_path) == {"GPU-1": Baseline(5, 2), "GPU-2": Baseline(7, 1)}
    assert set(json.loads((tmp_path / FILE_NAME).read_text())) == {"a", "b"}


def test_a_card_that_moved_has_one_baseline(tmp_path: Path) -> None:
    """The newest host counts."""
    save_baselines(tmp_path, "a", {"GPU-1": Baseline(5, 2)})
    save_baselines(tmp_path, "b", {"GPU-1": Baseline(9, 2)})
    assert load_baselines(tmp_path) == {"GPU-1": Baseline(9, 2)}
    assert json.loads((tmp_path / FILE_NAME).read_text())["a"] == {}


def test_nothing_learned_writes_nothing(tmp_path: Path) -> None:
    """A look leaves no file behind."""
    save_baselines(tmp_path / "state", "a", {})
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"a": 3}',
        b'{"a": {"GPU-1": {}}}',
        b'{"a": {"GPU-1": {"used_bytes": "x", "memory_version": 2}}}',
        b'{"a": {"GPU-1": {"used_bytes": 1e400, "memory_version": 2}}}',
        b'{"a": {"GPU-1": {"used_bytes": -5, "memory_version": 2}}}',
    ],
)
def test_a_damaged_file_is_told_and_not_guessed_over(tmp_path: Path, content: bytes) -> None:
    """Starting from nothing would call a busy card's neighbour wrong."""
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(ConfigError, match="damaged"):
        load_baselines(tmp_path)
    with pytest.raises(ConfigError, match="damaged"):
        save_baselines(tmp_path, "a", {"GPU-2": Baseline(5, 2)})


def test_a_baseline_that_cannot_be_kept_is_told_and_no_failure(tmp_path: Path) -> None:
    """The cards are proven free all the same; a full disk or a read-only folder ends no stop."""
    (tmp_path / "file").write_text("")

    (finding,) = save_baselines(tmp_path / "file", "a", {"GPU-1": Baseline(5, 2)})

    assert finding.code == "baseline-not-kept"
    assert "of 1 GPU were not kept" in finding.text


def test_a_writer_that_stands_still_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An opsctl that was frozen holds the guard; the next one goes on."""
    monkeypatch.setattr(baselines, "GUARD_S", 0.05)
    with open(tmp_path / (FILE_NAME + ".lock"), "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        (finding,) = save_baselines(tmp_path, "a", {"GPU-1": Baseline(5, 2)})

    assert finding.code == "baseline-not-kept"
    assert load_baselines(tmp_path) == {}
