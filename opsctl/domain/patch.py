"""Patches as pinned content: what a patch is, which state a host's files are in, what they must become.

A file of a package is known by its SHA-256. Which patches stand in it is computed, never remembered: some
subset of the known patches, taken away again, must give the file that its distributor shipped; else it is
not ours to touch.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from packaging.specifiers import SpecifierSet

from opsctl.domain.hunks import Hunk, HunkError, reverse_hunks
from opsctl.records import dataclass


class PatchStatus(StrEnum):
    """What its author says of a patch."""

    RECOMMENDED = "recommended"
    EXPERIMENTAL = "experimental"
    KNOWN_BAD = "known-bad"


class PatchState(StrEnum):
    """What the files of a host say of a patch."""

    APPLIED = "applied"
    ABSENT = "absent"
    DRIFTED = "drifted"  # it was applied here, or part of it stands; the rest is something else
    CONFLICT = "conflict"  # the files are neither the pinned ones nor any known patch of them
    SUPERSEDED = "superseded"  # the installed version has it by itself


class FileState(StrEnum):
    """What one file says of one patch."""

    APPLIED = "applied"
    ABSENT = "absent"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class FilePatch:
    """One file of a patch: exact hunks in a file of the package, or a file of ours (``before`` None)."""

    path: str  # relative to the package's folder, with /
    before: str | None
    after: str
    hunks: tuple[Hunk, ...] = ()
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """What shows that a patch works: fresh imports, words in a help text, a line in the server's log."""

    imports: tuple[str, ...] = ()
    help_run: tuple[str, ...] = ()  # arguments after the interpreter
    help_shows: tuple[str, ...] = ()
    log: str | None = None  # regular expression; looked for after a launch


@dataclass(frozen=True, slots=True)
class Variant:
    """A patch's content for one range of versions (PEP 440)."""

    versions: str
    files: tuple[FilePatch, ...]
    proof: Proof = Proof()

    def fits(self, version: str) -> bool:
        return SpecifierSet(self.versions).contains(version, prereleases=True)


@dataclass(frozen=True, slots=True)
class Superseded:
    """Versions that need the patch no more, and what they offer in its place."""

    versions: str
    by: str


@dataclass(frozen=True, slots=True)
class Patch:
    """One patch of the library."""

    id: str
    title: str
    status: PatchStatus
    package: str  # distribution, e.g. sglang
    module: str  # what is imported, e.g. sglang
    variants: tuple[Variant, ...]
    reason: str | None = None  # why it is known-bad
    needs: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    superseded: tuple[Superseded, ...] = ()
    why: str = ""
    symptom: str = ""
    upstream: tuple[str, ...] = ()

    def variant(self, version: str) -> Variant | None:
        return next((one for one in self.variants if one.fits(version)), None)

    def superseded_by(self, version: str) -> str | None:
        for one in self.superseded:
            if SpecifierSet(one.versions).contains(version, prereleases=True):
                return one.by
        return None


@dataclass(frozen=True, slots=True)
class FileReport:
    """The state of one file for one patch, with the reason when it is changed."""

    path: str
    state: FileState
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PatchReport:
    """The state of one patch on one host, and whether it could be applied as things stand."""

    patch: Patch
    variant: Variant | None
    state: PatchState
    files: tuple[FileReport, ...]
    detail: str
    can_apply: bool


def digest(content: bytes) -> str:
    """Return the SHA-256 of ``content`` in hex."""
    return hashlib.sha256(content).hexdigest()


def evaluate(
    patches: Sequence[Patch],
    version: str,
    contents: Mapping[str, bytes | None],
    *,
    recorded: Collection[str] = (),
    shipped: Mapping[str, str] | None = None,
) -> list[PatchReport]:
    """Say for each patch which state it has in the files at hand.

    Args:
        patches: every patch that may stand in these files, in the order in which they are applied.
        version: installed version of the package.
        contents: file contents by path; None is: no such file. Every path of every fitting variant is a key.
        recorded: ids that the host's record says were applied here and not reverted.
        shipped: SHA-256 per path as the distributor recorded it, where known; for the explanation only.
    """
    fitting = [(patch, variant) for patch in patches if (variant := patch.variant(version))]
    applied = {path: applied_in(path, fitting, content) for path, content in contents.items()}
    reports: list[PatchReport] = []
    for patch in patches:
        variant = patch.variant(version)
        if variant is None:
            reports.append(_without_variant(patch, version))
            continue
        files = tuple(
            _file_report(patch, file, applied[file.path], contents[file.path], shipped or {})
            for file in variant.files
        )
        reports.append(_report(patch, variant, files, patch.id in recorded))
    return reports


def earlier_forms(
    patches: Sequence[Patch],
    version: str,
    contents: Mapping[str, bytes | None],
    origins: Mapping[str, bytes | None],
) -> dict[str, bytes | None]:
    """Return the origin of each file that an earlier opsctl wrote and these patches no longer know.

    The patch has changed since; what stood there before it is known, and goes with the patches at hand.
    """
    fitting = [(patch, variant) for patch in patches if (variant := patch.variant(version))]
    return {
        path: origin
        for path, origin in origins.items()
        if applied_in(path, fitting, contents[path]) is None
        and applied_in(path, fitting, origin) is not None
    }


def _without_variant(patch: Patch, version: str) -> PatchReport:
    by = patch.superseded_by(version)
    if by is not None:
        return PatchReport(patch, None, PatchState.SUPERSEDED, (), f"{version} has {by}", False)
    known = ", ".join(variant.versions for variant in patch.variants)
    detail = f"made for {patch.package} {known}; {version} is installed"
    return PatchReport(patch, None, PatchState.CONFLICT, (), detail, False)


def _report(
    patch: Patch, variant: Variant, files: tuple[FileReport, ...], recorded: bool
) -> PatchReport:
    states = {file.state for file in files}
    changed = next((f for f in files if f.state is FileState.CHANGED), None)
    if states == {FileState.APPLIED}:
        return PatchReport(patch, variant, PatchState.APPLIED, files, "", False)
    if states == {FileState.ABSENT}:
        if not recorded:
            return PatchReport(patch, variant, PatchState.ABSENT, files, "", True)
        detail = "it was applied here, and the installation has put the package's own files back"
        return PatchReport(patch, variant, PatchState.DRIFTED, files, detail, True)
    if changed and not recorded and FileState.APPLIED not in states:
        detail = f"{changed.path}: {changed.detail}"
        return PatchReport(patch, variant, PatchState.CONFLICT, files, detail, False)
    if changed:
        detail = f"{changed.path}: {changed.detail}"
    else:
        gone = next(file.path for file in files if file.state is FileState.ABSENT)
        detail = f"part of it stands, and {gone} has it not"
    return PatchReport(patch, variant, PatchState.DRIFTED, files, detail, changed is None)


def _file_report(
    patch: Patch,
    file: FilePatch,
    applied: frozenset[str] | None,
    content: bytes | None,
    shipped: Mapping[str, str],
) -> FileReport:
    if applied is None:
        return FileReport(file.path, FileState.CHANGED, _why_changed(file, content, shipped))
    return FileReport(file.path, FileState.APPLIED if patch.id in applied else FileState.ABSENT)


def _why_changed(file: FilePatch, content: bytes | None, shipped: Mapping[str, str]) -> str:
    if content is None:
        return "the file is missing"
    if file.before is None:
        return "a file of this name stands there, and it is not ours"
    unix = digest(content.replace(b"\r\n", b"\n"))
    if unix in (file.before, file.after):
        return "it has Windows line ends, otherwise it is the pinned file"
    if shipped.get(file.path) == digest(content):
        return "it is as its distributor shipped it, but another build than the patch was made for"
    return f"sha256 {digest(content)[:12]} is neither the pinned file nor a known patch of it"


def applied_in(
    path: str, fitting: Sequence[tuple[Patch, Variant]], content: bytes | None
) -> frozenset[str] | None:
    """Return the ids of the patches that stand in one file, None when it is none of their combinations."""
    parts = parts_of(path, fitting)
    if all(part.before is None for _, part in parts):
        if content is None:
            return frozenset()
        found = {one for one, part in parts if part.after == digest(content)}
        return frozenset(found) or None
    if content is None:
        return None
    for size in range(len(parts) + 1):
        for subset in itertools.combinations(parts, size):
            if pristine_of(content, subset, parts[0][1].before) is not None:
                return frozenset(one for one, _ in subset)
    return None


def parts_of(path: str, fitting: Sequence[tuple[Patch, Variant]]) -> list[tuple[str, FilePatch]]:
    return [(p.id, file) for p, variant in fitting for file in variant.files if file.path == path]


def pristine_of(
    content: bytes, subset: Sequence[tuple[str, FilePatch]], before: str | None
) -> bytes | None:
    try:
        for _, part in reversed(subset):
            content = reverse_hunks(content, part.hunks)
    except HunkError:
        return None
    return content if digest(content) == before else None
