"""A small installed package on disk, with a RECORD, and requests against it, for the tests of patching."""

from __future__ import annotations

import base64
import hashlib
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opsctl.agent.ops import patch, patch_record

FILES = {
    "__init__.py": b"from demo.core import answer\n",
    "core.py": b"def answer():\n    return 1\n\n\ndef other():\n    return 2\n",
    "args.py": b"FLAGS = [\n    'a',\n    'b',\n]\n",
    "deep/__init__.py": b"",
}


class Refused(Exception):
    """What the agent's context raises for a named failure."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


@dataclass
class Context:
    """The agent's context, as far as operations use it."""

    events: list[dict[str, Any]] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    Error = Refused

    def emit(self, event: dict[str, Any]) -> None:
        self.events.append(event)


def sha(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


def record_digest(content: bytes) -> str:
    """Return a hash as a wheel's RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def install(site: Path, version: str = "1.0") -> Path:
    """Install the package as pip would, and return its folder."""
    root = site / "demo"
    record = []
    for name, content in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        record.append(f"demo/{name},sha256={record_digest(content)},{len(content)}")
    info = site / f"demo-{version}.dist-info"
    info.mkdir(exist_ok=True)
    about = f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n".encode()
    (info / "METADATA").write_bytes(about)
    record.append(f"{info.name}/METADATA,sha256={record_digest(about)},{len(about)}")
    record.append("../../../bin/demo,sha256=rewritten,1")
    (info / "RECORD").write_text("\n".join([*record, f"demo-{version}.dist-info/RECORD,,"]) + "\n")
    return root


def change(path: str, before: bytes | None, after: bytes | None) -> dict[str, Any]:
    """Return one entry of an apply request."""
    content = None if after is None else patch_record.pack(after)
    return {"path": path, "before": sha(before), "after": sha(after), "content": content}


def request(root: Path, state: Path, files: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return an apply request."""
    made = {"root": str(root), "state_dir": str(state), "action": "apply", "patches": ["one"]}
    return {**made, "version": "1.0", "files": files, "proof": None, **more}


def proof(root: Path, *imports: str) -> dict[str, Any]:
    """Return a proof by this interpreter with the package's site first."""
    env = {"PYTHONPATH": str(root.parent)}
    return {
        "interpreter": sys.executable,
        "cwd": "/",
        "env": env,
        "imports": list(imports),
        "timeout_s": 20.0,
    }


def snapshot(root: Path) -> dict[str, tuple[bytes, int]]:
    """Return bytes and mode of every file below ``root``, hidden ones too, bytecode aside."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mode & 0o7777)
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def two_changes() -> list[dict[str, Any]]:
    """Return a change of two files and one new file in a new folder."""
    return [
        change("new/ours.py", None, b"OURS = 1\n"),
        change(
            "core.py",
            FILES["core.py"],
            FILES["core.py"].replace(
                b"return 1", b"from demo.new.ours import OURS\n    return OURS"
            ),
        ),
        change("args.py", FILES["args.py"], FILES["args.py"].replace(b"'b'", b"'c'")),
    ]


def back() -> list[dict[str, Any]]:
    """Return the reverse of ``two_changes``."""
    forward = {one["path"]: one for one in two_changes()}
    reverse = []
    for path in ("core.py", "args.py", "new/ours.py"):
        original = FILES.get(path)
        entry = {"path": path, "before": forward[path]["after"], "after": sha(original)}
        reverse.append(
            {**entry, "content": None if original is None else patch_record.pack(original)}
        )
    return reverse


__all__ = ["Context", "Refused", "back", "change", "install", "patch", "proof", "request", "sha"]
