"""Where opsctl finds its data."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errors import ConfigError
from opsctl.resources import folder


def test_folder_finds_the_checkout() -> None:
    """Run from a checkout, the playbooks are those of the checkout."""
    root = Path(__file__).resolve().parents[2]

    assert folder("playbooks") == root / "playbooks"


def test_folder_prefers_what_the_wheel_installed(tmp_path: Path) -> None:
    """In site-packages only opsctl_data is ours."""
    (tmp_path / "opsctl_data" / "playbooks").mkdir(parents=True)
    (tmp_path / "playbooks").mkdir()

    found = folder("playbooks", tmp_path / "opsctl")

    assert found == tmp_path / "opsctl_data" / "playbooks"


def test_folder_takes_no_stranger_for_its_own(tmp_path: Path) -> None:
    """A folder `playbooks` in site-packages, without a checkout around it, belongs to someone else."""
    (tmp_path / "playbooks").mkdir()

    with pytest.raises(ConfigError, match="without its folder playbooks"):
        folder("playbooks", tmp_path / "opsctl")
