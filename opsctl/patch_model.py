"""``patch.yaml`` as it is written, every key checked, with its line. Not loaded for files checked before."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import Field, field_validator, model_validator

from opsctl.domain.patch import PatchStatus
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


def read_model(file: Path) -> tuple[dict[str, Any], LocatedYaml]:
    """Return a checked ``patch.yaml`` as plain data, and where everything stood. Raises ConfigError."""
    located = read_yaml(file)
    return validate(PatchModel, located).model_dump(mode="json", by_alias=True), located
