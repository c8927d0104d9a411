"""Idle baselines: kept by UUID, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.domain.gpu import Baseline
from opsctl.errors import ConfigError
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


def test_a_damaged_file_is_told_and_not_guessed_over(tmp_path: Path) -> None:
    """Starting from nothing would call a busy card's neighbour wrong."""
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        load_baselines(tmp_path)
