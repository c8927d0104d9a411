"""The ssh_config and known_hosts files, read once for many hosts.

Reading them for each connection costs more than the connection itself: a config of 100 hosts, looked
through four times, and a known_hosts in which paramiko compares each line with all before it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

from opsctl.records import dataclass
from opsctl.transport.light_import import fabric, paramiko

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


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """The keys that are vouched for; and those that nobody may use any more, in base64."""

    keys: paramiko.HostKeys
    revoked: frozenset[str]


def known_hosts(files: list[Path]) -> KnownHosts:
    """Return the keys of all ``files`` that there are; not to be changed, it is everybody's.

    A key that ``@revoked`` names is known to no host (sshd(8)); the line's host is not looked at: a stolen
    key is nobody's. Certificates are not understood, so ``@cert-authority`` vouches for nobody.
    """

    def read() -> KnownHosts:
        keys = paramiko.HostKeys()
        revoked: set[str] = set()
        for file in files:
            lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
            fields = [line.split() for line in lines]
            revoked.update(one[3] for one in fields if one[:1] == ["@revoked"] and len(one) > 3)
            plain = [line.strip() for line in lines if not line.lstrip().startswith(("#", "@"))]
            keys._entries += [entry for line in plain if line and (entry := _entry(line))]  # type: ignore[attr-defined]
        keys._entries = [  # type: ignore[attr-defined]
            entry
            for entry in keys._entries  # type: ignore[attr-defined]
            if entry.key.get_base64() not in revoked
        ]
        return KnownHosts(keys, frozenset(revoked))

    return _once(("known", *files, *map(_stamp, files)), read)


def _entry(line: str) -> Any:
    """Return one line as paramiko knows it, None for one that is damaged or of an unknown kind."""
    try:
        return paramiko.hostkeys.HostKeyEntry.from_line(line)
    except (paramiko.SSHException, paramiko.hostkeys.InvalidHostKey, ValueError):
        return None


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
