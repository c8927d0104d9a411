"""The ssh_config and known_hosts files, read once for many hosts.

Reading them for each connection costs more than the connection itself: a config of 100 hosts is looked
through four times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

from opsctl.transport.light_import import fabric, paramiko
from opsctl.transport.ssh_known_hosts import KnownHosts, read

FRESH_S = (
    5.0  # a file that ssh_config includes may change as well: later connections read all again
)
Made = TypeVar("Made")

_lock = threading.Lock()
_kept: dict[Hashable, tuple[float, Any]] = {}


class Looked(paramiko.SSHConfig):
    """An ssh_config that keeps what it answered."""

    def __init__(self) -> None:
        super().__init__()
        self._answers: dict[str, paramiko.SSHConfigDict] = {}

    def lookup(self, hostname: str) -> paramiko.SSHConfigDict:
        """Return a host's settings; what the caller changes in them is its own."""
        if hostname not in self._answers:
            self._answers[hostname] = super().lookup(hostname)
        found = self._answers[hostname]
        return paramiko.SSHConfigDict(
            {
                name: list(value) if isinstance(value, list) else value
                for name, value in found.items()
            }
        )


def config(path: str | None) -> fabric.Config:
    """Return fabric's configuration with the ssh_config at ``path``, or the user's and the system's."""

    def read() -> Looked:
        made = Looked()
        loading = fabric.Config(runtime_ssh_path=path, lazy=True)
        loading._set(base_ssh_config=made)
        loading.load_ssh_config()
        return made

    files = [path] if path else ["~/.ssh/config", "/etc/ssh/ssh_config"]
    stamps = [_stamp(Path(name).expanduser()) for name in files]
    return fabric.Config(ssh_config=_once(("config", path, *stamps), read))


def known_hosts(files: list[Path]) -> KnownHosts:
    """Return what all ``files`` that there are say; not to be changed, it is everybody's."""
    return _once(("known", *files, *map(_stamp, files)), lambda: read(files))


def _stamp(file: Path) -> tuple[int, ...]:
    """Return what changes when a file is written anew, so that a revoked key is not used once more."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _once(what: Hashable, read: Callable[[], Made]) -> Made:
    with _lock:
        until, made = _kept.get(what, (0.0, None))
        if time.monotonic() >= until:
            made = read()
            _kept[what] = (time.monotonic() + FRESH_S, made)
        result: Made = made
        return result
