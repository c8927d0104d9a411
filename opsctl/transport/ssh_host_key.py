"""Whether a host's key is the one that known_hosts vouches for: refused otherwise, with what to do."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any

from opsctl.errors import TransportError
from opsctl.records import dataclass
from opsctl.transport.light_import import paramiko
from opsctl.transport.ssh_known_hosts import KnownHosts, Listed


class HostKeyChanged(Exception):
    """A host shows another key than those that are known under its name."""

    def __init__(self, name: str, key: paramiko.PKey, listed: list[Listed]) -> None:
        super().__init__(f"the host key of {name} has changed")
        self.name = name
        self.key = key
        self.listed = listed

    @property
    def text(self) -> str:
        known = " or ".join(dict.fromkeys(fingerprint(one.blob) for one in self.listed))
        return (
            f"the host key has CHANGED: got {self.key.get_name()} {fingerprint(self.key.asbytes())}, "
            f"known is {known}; somebody may be in between"
        )

    @property
    def next_step(self) -> str:
        files = list(dict.fromkeys(str(one.file) for one in self.listed))
        away = " && ".join(f"ssh-keygen -R '{self.name}' -f {file}" for file in files)
        return (
            f"only if the host was reinstalled ({_show_fingerprint(self.key)} agrees): "
            f"{away} && {_add_key(self.name, self.key, files[0])}"
        )


@dataclass(frozen=True, slots=True)
class Vouched:
    """What known_hosts says of one host, and the name under which a key of it would be added."""

    known: KnownHosts
    name: str  # [host]:port, for port 22 the host alone; ssh_config's HostKeyAlias where it has one
    plain: str | None  # the host alone, which counts where nothing is known under ``name``

    @staticmethod
    def of(known: KnownHosts, host: str, port: int, alias: str | None) -> Vouched:
        if alias:
            return Vouched(known, alias, None)
        host = host.lower()
        return (
            Vouched(known, host, None) if port == 22 else Vouched(known, f"[{host}]:{port}", host)
        )

    def listed(self) -> list[Listed]:
        """Return the keys under the host's name."""
        return self.known.listed(self.name)

    def acceptable(self) -> list[Listed]:
        """Return the keys that the host may show: any one of them will do."""
        found = self.listed()
        if not found and self.plain is not None:
            found = self.known.listed(self.plain)
        return [one for one in found if one.blob not in self.known.revoked]


class RefuseUnknownKey(paramiko.MissingHostKeyPolicy):
    """Accept a key that known_hosts vouches for; refuse any other, and say how to vouch for it.

    paramiko asks this for every key, as it is given no known hosts of its own: it compares with the first
    line of a kind only.
    """

    def __init__(self, vouched: Vouched, known_hosts: str) -> None:
        self._vouched = vouched
        self._file = known_hosts

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        name, blob = self._vouched.name, key.asbytes()
        if blob in self._vouched.known.revoked:
            raise TransportError(
                f"the host key of {name} was revoked: {key.get_name()} {fingerprint(blob)}",
                next_step="known_hosts says @revoked for it: somebody else may have it; give the host a "
                "new key",
                code="host-key-revoked",
                subject=name,
            )
        if any(one.blob == blob for one in self._vouched.acceptable()):
            return
        listed = self._vouched.listed()
        if listed:
            raise HostKeyChanged(name, key, listed)
        raise TransportError(
            f"the host key of {name} is not known: {key.get_name()} {fingerprint(blob)}",
            next_step="compare the fingerprint with the host's own "
            f"({_show_fingerprint(key)}), then: {_add_key(name, key, self._file)}",
            code="host-key-unknown",
            subject=name,
        )


def asking_for(vouched: Vouched) -> Callable[..., paramiko.Transport]:
    """Return what makes a transport that asks the host for a key of a known kind first, as ssh(1) does."""

    def make(sock: Any, **options: Any) -> paramiko.Transport:
        made = paramiko.Transport(sock, **options)
        kinds = {one.kind for one in vouched.acceptable()}
        offers = made.get_security_options()
        offers.key_types = tuple(sorted(offers.key_types, key=lambda one: _kind(one) not in kinds))
        return made

    return make


def _kind(algorithm: str) -> str:
    """Return the kind of key that a signature algorithm goes with."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def fingerprint(blob: bytes) -> str:
    """Return a key's fingerprint as ssh-keygen prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _show_fingerprint(key: paramiko.PKey) -> str:
    kind = {"ssh-rsa": "rsa", "ssh-ed25519": "ed25519"}.get(key.get_name(), "ecdsa")
    return f"`ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub` there"


def _add_key(name: str, key: paramiko.PKey, known_hosts: str) -> str:
    return f"echo '{name} {key.get_name()} {key.get_base64()}' >> {known_hosts}"
