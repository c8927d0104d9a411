"""The site as it was validated last, so that a command need not load pydantic for a file it has seen.

Validation stays with ``site.py``: only what passed it is kept, under the hash of the file's bytes and of what
read them. A copy that is absent, damaged, or not this user's alone is passed over, and made anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from opsctl import validated
from opsctl.site_lookup import SiteLookup, find_site_file

if TYPE_CHECKING:
    from opsctl.site import Site

KIND = "site"
READERS = (
    "site.py",
    "site_notify.py",
    "site_proxmox.py",
    "secret.py",
    "yaml_lines.py",
    "site_cache.py",
)


class Stored:
    """One validated entry: the attributes of its model, read only."""

    def __init__(self, values: dict[str, Any], told: frozenset[str]) -> None:
        self.__dict__.update(values, model_fields_set=told)

    def model_copy(self, *, update: Mapping[str, Any]) -> Stored:
        """Return a copy in which these attributes are others, as a model does."""
        values = {**self.__dict__, **update}
        return type(self)(values, values.pop("model_fields_set") | update.keys())

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"'{name}' cannot be changed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"'{name}' cannot be removed")


class StoredSecret(Stored):
    """A reference to a secret; the secret itself is in no copy."""

    def resolve(self) -> str:
        """Return the secret; see ``SecretRef.resolve``."""
        from opsctl.secret import SecretRef

        return SecretRef(env=self.env, file=self.file, command=self.command).resolve()  # type: ignore[attr-defined]


class StoredSite(SiteLookup, Stored):
    """The whole site."""


KINDS: dict[str, type[Stored]] = {"Site": StoredSite, "SecretRef": StoredSecret}


def load_site(explicit: Path | None = None) -> Site:
    """Return the site as ``opsctl.site.load_site`` does, from its validated copy where there is one.

    Raises:
        ConfigError: the file is wrong; every problem has its file and line.
    """
    path = find_site_file(explicit)
    content = _content_of(path)
    copy = None if content is None else _copy_of(path, content)
    stored = None if copy is None else _read(copy)
    if stored is not None:
        stored.__dict__["_path"] = path
        return cast("Site", stored)
    from opsctl import site

    if copy is None or content is None:
        return site.load_site(explicit)
    made = site.this_machine() if path is None else site.site_of(path, content)
    _keep(copy, made)
    return made


def _content_of(path: Path | None) -> bytes | None:
    """Return the bytes of a site file, none without a file; None where they cannot be read."""
    try:
        return b"" if path is None else path.read_bytes()
    except OSError:
        return None


def _copy_of(path: Path | None, content: bytes) -> Path | None:
    """Return the name of the copy of what these bytes describe; None where there is no place for it."""
    return validated.copy_of(KIND, b"no file" if path is None else b"file " + content, READERS)


def _read(copy: Path) -> Stored | None:
    """Return the site of a copy; None where there is none that can be trusted."""
    try:
        site = restore(validated.read(copy))
    except (LookupError, TypeError, AttributeError):
        return None
    return site if isinstance(site, StoredSite) else None


def _keep(copy: Path, site: Site) -> None:
    """Write a copy for the next command, unless the site holds what JSON cannot carry."""
    with contextlib.suppress(TypeError):
        validated.keep(copy, flatten(site))


def flatten(value: Any) -> Any:
    """Return a validated value as JSON can carry it: every array says first what it is.

    Raises:
        TypeError: for what has no such form, as a date in a server's args.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list):
        return ["list", [flatten(one) for one in value]]
    if isinstance(value, dict):
        return ["map", {key: flatten(one) for key, one in value.items()}]
    if isinstance(value, Path):
        return ["Path", str(value)]
    if hasattr(value, "model_fields_set"):
        fields = {name: flatten(one) for name, one in value}
        return [type(value).__name__, fields, sorted(value.model_fields_set)]
    raise TypeError(f"{type(value).__name__} is not kept")


def restore(value: Any) -> Any:
    """Return what ``flatten`` was given, with ``Stored`` in place of models."""
    if not isinstance(value, list):
        return value
    kind, content = value[0], value[1]
    if kind == "list":
        return [restore(one) for one in content]
    if kind == "Path":
        return Path(content)
    fields = {key: restore(one) for key, one in content.items()}
    if kind == "map":
        return fields
    return KINDS.get(kind, Stored)(fields, frozenset(value[2]))
