"""Replacing a container's configuration on its node: whole, kept, refused when it is not ours to change."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opsctl.agent.ops import ctconf


class Named(Exception):
    """What context.Error makes."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(kind)
        self.kind, self.detail = kind, detail


@pytest.fixture
def node(tmp_path: Path) -> dict[str, Any]:
    """A node's folders; the configuration's folder is reached through a link, as in life."""
    (tmp_path / "nodes").mkdir()
    (tmp_path / "lxc").symlink_to(tmp_path / "nodes")
    (tmp_path / "nodes" / "129.conf").write_text("arch: amd64\n")
    return {
        "vmid": 129,
        "folder": str(tmp_path / "lxc"),
        "locks": str(tmp_path / "locks"),
        "backups": str(tmp_path / "kept"),
    }


def context(cancelled: bool = False) -> Any:
    event = threading.Event()
    if cancelled:
        event.set()
    return SimpleNamespace(cancelled=event, Error=Named)


def test_it_is_replaced_whole_and_the_old_one_is_kept(node: dict[str, Any], tmp_path: Path) -> None:
    """The copy has the bytes of before; no temporary file stays."""
    seen = ctconf.read(node, context())

    done = ctconf.replace({**node, "sha256": seen["sha256"], "text": "arch: arm64\n"}, context())

    assert Path(done["backup"]).read_text() == "arch: amd64\n"
    assert (tmp_path / "nodes" / "129.conf").read_text() == "arch: arm64\n"
    assert os.listdir(tmp_path / "nodes") == ["129.conf"]


@pytest.mark.parametrize(
    ("text", "sha256", "kind"),
    [
        ("arch: amd64\nlock: backup\n", None, "container-locked"),
        ("arch: amd64\n", "0" * 64, "changed-meanwhile"),
    ],
)
def test_a_locked_or_changed_one_is_refused(
    node: dict[str, Any], tmp_path: Path, text: str, sha256: str | None, kind: str
) -> None:
    """Nothing is written, and nothing is kept."""
    file = tmp_path / "nodes" / "129.conf"
    file.write_text(text)
    request = {**node, "sha256": sha256 or ctconf.digest(text), "text": "x: y\n"}

    with pytest.raises(Named) as caught:
        ctconf.replace(request, context())

    assert (caught.value.kind, file.read_text()) == (kind, text)
    assert not (tmp_path / "kept").exists()


def test_a_lock_of_a_snapshot_is_no_lock_of_now() -> None:
    """Only the part before the first section counts."""
    assert ctconf.lock_of("arch: x\n\n[snap]\nlock: backup\n") is None
    assert ctconf.lock_of("lock: snapshot-delete\n") == "snapshot-delete"


def test_the_nodes_own_lock_is_respected(node: dict[str, Any], tmp_path: Path) -> None:
    """While pct or the API changes the file, opsctl does not."""
    (tmp_path / "locks").mkdir()
    with (tmp_path / "locks" / "pve-config-129.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        with pytest.raises(Named) as caught:
            ctconf.replace({**node, "sha256": "", "text": ""}, context(cancelled=True))

    assert caught.value.kind == "config-busy"


def test_a_failed_write_leaves_the_old_file(
    node: dict[str, Any], monkeypatch: Any, tmp_path: Path
) -> None:
    """A disk that is full at the worst moment costs nothing."""
    seen = ctconf.read(node, context())

    def full(path: str, target: str) -> None:
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(Named) as caught:
        ctconf.replace({**node, "sha256": seen["sha256"], "text": "x: y\n"}, context())

    assert caught.value.kind == "not-written"
    assert os.listdir(tmp_path / "nodes") == ["129.conf"]
    assert (tmp_path / "nodes" / "129.conf").read_text() == "arch: amd64\n"
