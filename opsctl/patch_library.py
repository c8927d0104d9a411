"""The library of patches: folders ``patches/<id>/`` with a ``patch.yaml``, read and checked as a whole.

A ``patch.yaml`` that has been checked once is taken from its validated copy, which needs no pydantic. What it
pins is compared every time: diffs are parsed, and every file of a patch is hashed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsctl import validated
from opsctl.domain.hunks import DiffError, Hunk, parse_diff
from opsctl.domain.patch import (
    FilePatch,
    Patch,
    PatchStatus,
    Proof,
    Superseded,
    Variant,
    digest,
)
from opsctl.errors import ConfigError, UsageError
from opsctl.resources import folder

if TYPE_CHECKING:
    from opsctl.site_lookup import SiteLookup

KIND = "patches"
READERS = ("patch_model.py", "secret.py", "yaml_lines.py", "patch_library.py", "domain/patch.py")

Location = tuple[str | int, ...]


class Unsound(Exception):
    """A patch's files are not what its ``patch.yaml`` says; ``where`` is the place in that file."""

    def __init__(self, where: Location, text: str) -> None:
        super().__init__(text)
        self.where = where


def library_folders(extra: Path | None = None) -> list[Path]:
    """Return the folders that hold patches: the caller's first, then the one that ships with opsctl."""
    return [*([extra] if extra else []), folder("patches")]


def load_library(extra: Path | None = None, *, anew: bool = False) -> dict[str, Patch]:
    """Read every patch; one in ``extra`` hides the shipped one of its name.

    Args:
        extra: a folder of patches that goes before the shipped one.
        anew: check each ``patch.yaml`` again, also one that has been checked before.

    Raises:
        ConfigError: exit 10, with the file, when any of them is not sound.
    """
    library: dict[str, Patch] = {}
    for place in library_folders(extra):
        if not place.is_dir():
            raise ConfigError(f"{place}: no such folder of patches", subject=str(place))
        for patch in _patches_in(place, anew):
            library.setdefault(patch.id, patch)
    _check_references(library)
    return library


def _patches_in(place: Path, anew: bool) -> list[Patch]:
    """Return the patches of one folder, each ``patch.yaml`` from its validated copy where there is one."""
    files = sorted(place.glob("*/patch.yaml"))
    copy = _copy_of(files)
    if copy is not None and not anew:
        try:
            stored = validated.read(copy)
            return [_patch_of(file.parent, stored[file.parent.name]) for file in files]
        except (Unsound, ConfigError, LookupError, TypeError, ValueError):
            pass  # no copy, or something to be told with its line
    checked = {file: _checked(file) for file in files}
    if copy is not None and copy == _copy_of(files):  # nobody has edited one meanwhile
        validated.keep(copy, {file.parent.name: data for file, (data, _) in checked.items()})
    return [patch for _, patch in checked.values()]


def _copy_of(files: Sequence[Path]) -> Path | None:
    """Return the name of the validated copy of these files; None when one of them cannot be read."""
    try:
        content = {file.parent.name: file.read_bytes() for file in files}
    except OSError:
        return None
    return validated.copy_of(KIND, repr(content).encode(), READERS)


def find_patch(library: dict[str, Patch], one: str) -> Patch:
    """Return a patch by id. Raises UsageError, with the nearest and the known ids, when there is none."""
    if one not in library:
        raise UsageError(f"no patch is called {one}", next_step=_known(library, one), subject=one)
    return library[one]


def _known(library: Mapping[str, Patch], one: str) -> str:
    import difflib

    near = difflib.get_close_matches(one, library, 1)
    begin = f"did you mean {near[0]}? " if near else ""
    return f"{begin}known: {', '.join(sorted(library)) or 'none'}"


def unknown_patches(site: SiteLookup, servers: Iterable[str]) -> list[ConfigError]:
    """Return what is wrong with the patches that these servers' entries name, by the files of this machine.

    Raises:
        ConfigError: a patch of the library itself is not sound.
    """
    named = {name: site.servers[name].patches for name in servers if site.servers[name].patches}
    library = load_library(site.patch_folder) if named else {}
    return [
        ConfigError(
            f"servers.{name}.patches: no patch is called {one}",
            next_step=_known(library, one),
            subject=name,
            code="unknown-patch",
        )
        for name, ids in named.items()
        for one in ids
        if one not in library
    ]


def load_patch(place: Path) -> Patch:
    """Read and check one patch folder. Raises ConfigError."""
    return _checked(place / "patch.yaml")[1]


def _checked(file: Path) -> tuple[dict[str, Any], Patch]:
    """Check one ``patch.yaml`` and what it pins; return its plain data, and the patch."""
    from opsctl.patch_model import read_model

    data, located = read_model(file)
    try:
        return data, _patch_of(file.parent, data)
    except Unsound as error:
        text = f"{located.path}:{located.line_of(error.where)}: {error}"
        raise ConfigError(text, subject=located.path) from error


def _patch_of(place: Path, data: Mapping[str, Any]) -> Patch:
    """Return the patch of checked data, with the files that it pins. Raises Unsound, ConfigError."""
    if data["id"] != place.name:
        raise Unsound(("id",), f"the id is {data['id']}, the folder {place.name}")
    variants = (_variant(place, number, one) for number, one in enumerate(data["variants"]))
    return Patch(
        id=data["id"],
        title=data["title"],
        status=PatchStatus(data["status"]),
        package=data["package"]["distribution"],
        module=data["package"]["module"],
        variants=tuple(variants),
        reason=data["reason"],
        needs=tuple(data["needs"]),
        conflicts=tuple(data["conflicts"]),
        superseded=tuple(Superseded(one["versions"], one["by"]) for one in data["superseded"]),
        why=data["why"].strip(),
        symptom=data["symptom"].strip(),
        upstream=tuple(data["upstream"]),
    )


def _variant(place: Path, number: int, data: Mapping[str, Any]) -> Variant:
    where = ("variants", number)
    hunks = _hunks(place, (*where, "diff"), data["diff"]) if data["diff"] else {}
    if set(hunks) != set(data["files"]):
        odd = ", ".join(sorted(set(hunks) ^ set(data["files"])))
        raise Unsound((*where, "files"), f"diff and files differ about {odd}")
    files = [
        FilePatch(path, pinned["before"], pinned["after"], hunks[path])
        for path, pinned in data["files"].items()
    ]
    for path, added in data["added"].items():
        content = _read(place, (*where, "added", path), added["source"])
        if digest(content) != added["sha256"]:
            text = f"{added['source']} has sha256 {digest(content)}, not the pinned one"
            raise Unsound((*where, "added", path), text)
        files.append(FilePatch(path, None, added["sha256"], content=content))
    return Variant(data["versions"], tuple(files), _proof(data["proof"]))


def _hunks(place: Path, where: Location, name: str) -> dict[str, tuple[Hunk, ...]]:
    try:
        return parse_diff(_read(place, where, name))
    except DiffError as error:
        raise ConfigError(
            f"{place / name}: {error}", subject=str(place), code="patch-corrupt"
        ) from error


def _proof(data: Mapping[str, Any]) -> Proof:
    shown = data["help"] or {"run": (), "shows": ()}
    imports = tuple(data["imports"])
    return Proof(imports, tuple(shown["run"]), tuple(shown["shows"]), data["log"])


def _read(place: Path, where: Location, name: str) -> bytes:
    path = place / name
    if not path.resolve().is_relative_to(place.resolve()):
        raise Unsound(where, f"{name} leads out of the patch's folder")
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unsound(where, f"{name}: {error.strerror}") from error


def _check_references(library: dict[str, Patch]) -> None:
    for patch in library.values():
        for one in (*patch.needs, *patch.conflicts):
            if one not in library:
                raise ConfigError(f"{patch.id} names {one}, which is no patch", subject=patch.id)


def check_patch(patch: Patch) -> list[str]:
    """Return what is wrong with a patch beyond its format: code that does not compile, expressions, names."""
    problems: list[str] = []
    for variant in patch.variants:
        if variant.proof.log is not None:
            try:
                re.compile(variant.proof.log)
            except re.error as error:
                problems.append(f"{variant.versions}: proof.log: {error}")
        if not variant.proof.imports and not variant.proof.help_run:
            problems.append(f"{variant.versions}: nothing proves it: give proof.imports or help")
        problems += _code_problems(variant)
    return problems


def _code_problems(variant: Variant) -> Sequence[str]:
    import ast

    problems: list[str] = []
    for file in variant.files:
        if file.content is None:
            continue
        if b"\r" in file.content:
            problems.append(f"{variant.versions}: {file.path} has Windows line ends")
        if not file.path.endswith(".py"):
            continue
        try:
            ast.parse(file.content, file.path)
        except SyntaxError as error:
            problems.append(f"{variant.versions}: {file.path}:{error.lineno}: {error.msg}")
    return problems
