"""The library of patches: folders ``patches/<id>/`` with a ``patch.yaml``, read and checked as a whole."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import Field, field_validator, model_validator

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
from opsctl.secret import Strict
from opsctl.yaml_lines import LocatedYaml, read_yaml, validate

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Identifier = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]


class PinnedFile(Strict):
    """SHA-256 of one file of the package before and after this patch alone."""

    before: Sha256
    after: Sha256


class AddedFile(Strict):
    """One file of ours that the patch brings."""

    source: str = Field(description="File in the patch's folder.")
    sha256: Sha256


class HelpProof(Strict):
    """A help text that must show some words."""

    run: list[str] = Field(description="Arguments after the launch interpreter.", min_length=1)
    shows: list[str] = Field(description="Words that must be in its output.", min_length=1)


class ProofModel(Strict):
    """What shows that the patch works."""

    imports: list[str] = Field(
        default_factory=list, description="Modules that must import in a fresh process."
    )
    help: HelpProof | None = None
    log: str | None = Field(None, description="Regular expression of a line in the server's log.")


class VariantModel(Strict):
    """The patch's content for one range of versions."""

    versions: str = Field(description="PEP 440 range, e.g. '==0.5.9'.")
    diff: str | None = Field(
        None, description="Unified diff in the patch's folder, paths a/ and b/."
    )
    files: dict[str, PinnedFile] = Field(default_factory=dict)
    added: dict[str, AddedFile] = Field(default_factory=dict)
    proof: ProofModel = Field(default_factory=ProofModel)

    @field_validator("versions")
    @classmethod
    def _range(cls, text: str) -> str:
        return _checked_range(text)

    @model_validator(mode="after")
    def _something(self) -> VariantModel:
        if bool(self.diff) != bool(self.files):
            raise ValueError("diff and files go together")
        if not self.files and not self.added:
            raise ValueError("it changes nothing: give diff and files, or added")
        for path in [*self.files, *self.added]:
            parts = PurePosixPath(path)
            if parts.is_absolute() or ".." in parts.parts:
                raise ValueError(f"'{path}' leads out of the package")
        return self


class SupersededModel(Strict):
    """Versions that need the patch no more."""

    versions: str
    by: str = Field(description="What they offer in its place.")

    @field_validator("versions")
    @classmethod
    def _range(cls, text: str) -> str:
        return _checked_range(text)


class PackageModel(Strict):
    """The installed distribution that the patch changes."""

    distribution: str
    module: str = Field(description="What is imported; its folder is what paths are relative to.")


class PatchModel(Strict):
    """``patch.yaml``."""

    # the field is called `schema` in the file; pydantic keeps that name for itself
    schema_: Literal["opsctl.patch/1"] = Field(alias="schema")
    id: Identifier
    title: str
    status: PatchStatus
    reason: str | None = Field(None, description="For known-bad: what happens with it.")
    why: str
    symptom: str
    upstream: list[str] = Field(default_factory=list, description="Issues, pull requests, files.")
    package: PackageModel
    needs: list[Identifier] = Field(default_factory=list)
    conflicts: list[Identifier] = Field(default_factory=list)
    superseded: list[SupersededModel] = Field(default_factory=list)
    variants: list[VariantModel] = Field(min_length=1)

    @model_validator(mode="after")
    def _reason(self) -> PatchModel:
        if (self.status is PatchStatus.KNOWN_BAD) != (self.reason is not None):
            raise ValueError("status known-bad and reason go together")
        return self


def _checked_range(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(f"'{text}' is no version range (write e.g. '>=0.5.8,<0.5.11')") from error
    return text


def library_folders(extra: Path | None = None) -> list[Path]:
    """Return the folders that hold patches: the caller's first, then the one that ships with opsctl."""
    return [*([extra] if extra else []), folder("patches")]


def load_library(extra: Path | None = None) -> dict[str, Patch]:
    """Read every patch; one in ``extra`` hides the shipped one of its name.

    Raises:
        ConfigError: exit 10, with the file, when any of them is not sound.
    """
    library: dict[str, Patch] = {}
    for place in library_folders(extra):
        if not place.is_dir():
            raise ConfigError(f"{place}: no such folder of patches", subject=str(place))
        for file in sorted(place.glob("*/patch.yaml")):
            patch = load_patch(file.parent)
            library.setdefault(patch.id, patch)
    _check_references(library)
    return library


def find_patch(library: dict[str, Patch], one: str) -> Patch:
    """Return a patch by id. Raises UsageError, with the known ids, when there is none."""
    if one not in library:
        known = ", ".join(sorted(library)) or "none"
        raise UsageError(f"no patch is called {one}", next_step=f"known: {known}", subject=one)
    return library[one]


def load_patch(place: Path) -> Patch:
    """Read and check one patch folder. Raises ConfigError."""
    located = read_yaml(place / "patch.yaml")
    model = validate(PatchModel, located)
    if model.id != place.name:
        raise _broken(located, ("id",), f"the id is {model.id}, the folder {place.name}")
    variants = tuple(_variant(place, located, n, one) for n, one in enumerate(model.variants))
    return Patch(
        id=model.id,
        title=model.title,
        status=model.status,
        package=model.package.distribution,
        module=model.package.module,
        variants=variants,
        reason=model.reason,
        needs=tuple(model.needs),
        conflicts=tuple(model.conflicts),
        superseded=tuple(Superseded(one.versions, one.by) for one in model.superseded),
        why=model.why.strip(),
        symptom=model.symptom.strip(),
        upstream=tuple(model.upstream),
    )


def _variant(place: Path, located: LocatedYaml, number: int, model: VariantModel) -> Variant:
    where = ("variants", number)
    hunks: dict[str, tuple[Hunk, ...]] = {}
    if model.diff:
        try:
            hunks = parse_diff(_read(place, located, (*where, "diff"), model.diff))
        except DiffError as error:
            raise ConfigError(
                f"{place / model.diff}: {error}", subject=str(place), code="patch-corrupt"
            ) from error
    if set(hunks) != set(model.files):
        odd = sorted(set(hunks) ^ set(model.files))
        raise _broken(located, (*where, "files"), f"diff and files differ about {', '.join(odd)}")
    files = [
        FilePatch(path, pinned.before, pinned.after, hunks[path])
        for path, pinned in model.files.items()
    ]
    for path, added in model.added.items():
        content = _read(place, located, (*where, "added", path), added.source)
        if digest(content) != added.sha256:
            text = f"{added.source} has sha256 {digest(content)}, not the pinned one"
            raise _broken(located, (*where, "added", path), text)
        files.append(FilePatch(path, None, added.sha256, content=content))
    help_proof = model.proof.help
    proof = Proof(
        imports=tuple(model.proof.imports),
        help_run=tuple(help_proof.run) if help_proof else (),
        help_shows=tuple(help_proof.shows) if help_proof else (),
        log=model.proof.log,
    )
    return Variant(model.versions, tuple(files), proof)


def _read(place: Path, located: LocatedYaml, where: tuple[str | int, ...], name: str) -> bytes:
    path = place / name
    if not path.resolve().is_relative_to(place.resolve()):
        raise _broken(located, where, f"{name} leads out of the patch's folder")
    try:
        return path.read_bytes()
    except OSError as error:
        raise _broken(located, where, f"{name}: {error.strerror}") from error


def _broken(located: LocatedYaml, where: tuple[str | int, ...], text: str) -> ConfigError:
    return ConfigError(f"{located.path}:{located.line_of(where)}: {text}", subject=located.path)


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
