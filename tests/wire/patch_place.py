"""A site with one server, an installed package, and a library of patches for it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from opsctl.cli import run
from tests.wire.patch_site import install


class Place:
    """A site with one server, an installed package, and a library of patches."""

    def __init__(
        self, folder: Path, root: Path | None = None, python: str = sys.executable
    ) -> None:
        self.folder = folder
        self.python = python
        self.root = root or install(folder / "site")
        self.env = {"PYTHONPATH": str(self.root.parent)}
        self.cwd = "/"
        self.library = folder / "patches"
        self.library.mkdir()
        self.pristine = install(folder / "pristine")

    def write_site(self, *patches: str) -> None:
        server = {
            "host": "here",
            "port": 31999,
            "python": self.python,
            "model": "/none",
            "env": self.env,
            "cwd": self.cwd,
            "state_dir": str(self.folder / "state"),
            "patches": list(patches),
        }
        site = {
            "hosts": {"here": {"local": True}},
            "servers": {"demo-server": server},
            "patches_dir": self.library.name,
        }
        (self.folder / "opsctl.yaml").write_text(yaml.safe_dump(site))

    def make_patch(self, one: str, old: bytes, new: bytes, **more: Any) -> None:
        """Make a patch of core.py with one added file, through `opsctl patch new`."""
        changed = self.folder / f"new-{one}"
        shutil.copytree(self.pristine, changed)
        core = self.pristine / "core.py"
        (changed / "core.py").write_bytes(core.read_bytes().replace(old, new))
        name = one.replace("-", "_")
        (changed / f"{name}.py").write_text(f"NAME = {one!r}\n")
        argv = ["patch", "new", one, "--version", "1.0", "--package", "demo"]
        folders = ["--old", str(self.pristine), "--new", str(changed)]
        assert run([*argv, *folders, "--into", str(self.library)]) == 0
        file = self.library / one / "patch.yaml"
        data = {**yaml.safe_load(file.read_text()), **more}
        data["variants"][0]["proof"] = {"imports": ["demo.core", f"demo.{name}"]}
        file.write_text(yaml.safe_dump(data, sort_keys=False))
