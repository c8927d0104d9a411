"""The keys that known_hosts vouches for, matched as OpenSSH matches them (sshd(8), tested with 9.2).

A host may have several lines with keys of one kind, as while its key is being changed: each one counts.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterable, Iterator
from dataclasses import field
from pathlib import Path

from opsctl.records import dataclass

KINDS = frozenset(
    {
        "ssh-ed25519",
        "ssh-rsa",
        "ssh-dss",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
    }
)


@dataclass(frozen=True, slots=True)
class Listed:
    """One key that a line vouches for, in SSH's own bytes, and the file that the line is in."""

    kind: str
    blob: bytes
    file: Path


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """All lines of some files, by how they name their hosts; and the keys that nobody may use any more."""

    named: dict[str, list[Listed]] = field(default_factory=dict)
    hashed: list[tuple[bytes, bytes, Listed]] = field(default_factory=list)  # salt and digest
    patterns: list[tuple[list[str], Listed]] = field(default_factory=list)
    revoked: set[bytes] = field(default_factory=set)

    def listed(self, name: str) -> list[Listed]:
        """Return the keys of a host under exactly this name: ``host``, or ``[host]:port``."""
        name = name.lower()
        raw = name.encode()
        found = list(self.named.get(name, ()))
        found += [
            one
            for salt, digest, one in self.hashed
            if hmac.compare_digest(hmac.digest(salt, raw, "sha1"), digest)
        ]
        return found + [one for words, one in self.patterns if _matches(words, name)]


def read(files: Iterable[Path]) -> KnownHosts:
    """Return what all ``files`` that there are say; damaged lines and kinds of tomorrow say nothing.

    A key that ``@revoked`` names is known to no host; the line's host is not looked at: a stolen key is
    nobody's. Certificates are not understood, so ``@cert-authority`` vouches for nobody.
    """
    made = KnownHosts()
    for file in files:
        lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
        for fields in map(str.split, lines):
            if fields[:1] == ["@revoked"]:
                made.revoked.update(one.blob for one in _keys(fields[2:], file))
            elif fields and not fields[0].startswith(("#", "@")):
                for one in _keys(fields[1:], file):
                    _add(made, fields[0], one)
    return made


def _keys(fields: list[str], file: Path) -> Iterator[Listed]:
    """Yield the key of a line's ``kind base64 comment``, unless it is damaged or of an unknown kind."""
    if len(fields) < 2 or fields[0] not in KINDS:
        return
    kind = fields[0].encode()
    try:
        blob = base64.b64decode(fields[1], validate=True)
    except binascii.Error:
        return
    if blob.startswith(len(kind).to_bytes(4, "big") + kind):
        yield Listed(fields[0], blob, file)


def _add(made: KnownHosts, names: str, one: Listed) -> None:
    if names.startswith("|"):
        try:
            salt, digest = map(base64.b64decode, names.removeprefix("|1|").split("|"))
        except ValueError:  # binascii's is one
            return
        made.hashed.append((salt, digest, one))
    elif re.search(r"[*?!]", names):
        made.patterns.append((names.lower().split(","), one))
    else:
        for name in set(names.lower().split(",")):
            made.named.setdefault(name, []).append(one)


def _matches(words: list[str], name: str) -> bool:
    """Say whether a list of patterns names a host: one with ``!`` that fits excludes it, whatever follows."""
    fitting = [word for word in words if _pattern(word.removeprefix("!")).fullmatch(name)]
    return bool(fitting) and not any(word.startswith("!") for word in fitting)


def _pattern(word: str) -> re.Pattern[str]:
    return re.compile(re.escape(word).replace(r"\*", ".*").replace(r"\?", "."))
