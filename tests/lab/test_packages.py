"""The lab installs Debian packages and leaves root's home as it was; apt-get is a fake here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lab import packages
from tests.lab.errors import LabError


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without .ssh, and an apt-get whose package makes it, as systemd's does."""
    keys = tmp_path / "home" / ".ssh"
    keys.parent.mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, does in (("apt-get", 'mkdir -p "$KEYS"; eval "$THEN"'), ("dpkg", ":")):
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("KEYS", str(keys))
    monkeypatch.setenv("THEN", f"touch {tmp_path}/installed")
    monkeypatch.setattr(packages, "KEYS", keys)
    monkeypatch.setattr(packages, "COMPILER", {})
    return keys


def test_an_empty_folder_for_keys_does_not_stay(keys: Path, tmp_path: Path) -> None:
    """systemd's package makes it in root's home, also where the installation then fails."""
    packages.install({"systemd": str(tmp_path / "installed")})
    assert not keys.exists()

    with pytest.raises(LabError, match="could not install other"):
        packages.install({"other": str(tmp_path / "missing")})
    assert not keys.exists()


def test_what_was_there_and_what_is_in_it_stays(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator's own folder, be it empty; and a key that came in the meantime."""
    keys.mkdir()
    packages.install({"systemd": str(tmp_path / "installed")})
    assert keys.exists()

    keys.rmdir()
    monkeypatch.setenv("THEN", f"touch {keys}/id_ed25519 {tmp_path}/second")
    packages.install({"systemd": str(tmp_path / "second")})
    assert (keys / "id_ed25519").exists()
