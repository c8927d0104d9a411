"""Private copies of what has been validated, so that a command need not validate the same bytes again.

Only what passed is kept, as JSON, under the hash of the bytes and of the code that read them. A copy that is
absent, damaged, or not this user's alone is passed over, and made anew by whoever validates.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from opsctl import __version__

KEPT = 16  # copies of one kind; the oldest go first


def folder(kind: str) -> Path:
    """Return where the copies of one kind are."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "opsctl" / kind


def copy_of(kind: str, content: bytes, readers: Iterable[str]) -> Path | None:
    """Return the name of the copy of what these bytes describe; None where there is no place for it.

    Args:
        kind: the folder.
        content: what was, or would be, validated.
        readers: the modules that validate it, as files of this package; a changed one makes another name.
    """
    key = hashlib.sha256(content)
    package = Path(__file__).parent
    try:
        for name in (*readers, "validated.py"):
            about = os.stat(package / name)
            key.update(f" {name} {about.st_size} {about.st_mtime_ns}".encode())
        return folder(kind) / f"{__version__}-{key.hexdigest()}.json"
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None


def read(copy: Path) -> Any:
    """Return a copy's content; None unless it is whole, and nobody else can have written it."""
    try:
        with open(os.open(copy, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
            about = os.fstat(file.fileno())
            ours = about.st_uid == os.geteuid() and not about.st_mode & 0o077
            return json.load(file) if ours and stat.S_ISREG(about.st_mode) else None
    except (OSError, ValueError):
        return None


def keep(copy: Path, content: Any) -> None:
    """Write a copy for the next command; a place that cannot take it is no reason to complain."""
    import tempfile

    try:
        text = json.dumps(content)
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=copy.parent, delete=False) as file:  # mode 0600
            try:
                file.write(text)
                file.flush()
                os.replace(file.name, copy)
            except OSError:
                os.unlink(file.name)
        copies = sorted(copy.parent.iterdir(), key=lambda one: one.stat().st_mtime, reverse=True)
        for old in copies[KEPT:]:
            old.unlink(missing_ok=True)
    except (OSError, TypeError, ValueError):
        pass
