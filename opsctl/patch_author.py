"""Make a patch from two folders of a package: as shipped, and as it shall be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from opsctl.domain.hunks import DiffError, make_diff
from opsctl.domain.patch import digest
from opsctl.errors import ConfigError
from opsctl.records import dataclass

SKELETON = """\
schema: opsctl.patch/1
id: {id}
title: what it does, in one line
status: experimental
why: |
  Why the package needs this change.
symptom: |
  How one sees that it is missing.
upstream: []
package: {{distribution: {package}, module: {package}}}
needs: []
conflicts: []
superseded: []
variants:
"""


@dataclass(frozen=True, slots=True)
class Written:
    """One variant as it now stands in patch.yaml."""

    data: dict[str, Any]
    text: str
    new: bool


def write_variant(
    place: Path, patch_id: str, package: str, version: str, old: Path, new: Path
) -> Written:
    """Write the diff and the added files of one version, and put its pins into patch.yaml.

    The part of patch.yaml above ``variants:`` is the author's and is left as it is; a variant of this very
    version keeps its proof.

    Raises:
        ConfigError: if the folders are alike, a file was removed, or a change has no place of its own.
    """
    diffs, files, added = _compare(old, new)
    if not diffs and not added:
        raise ConfigError(f"{old} and {new} do not differ", code="patch-empty")
    place.mkdir(parents=True, exist_ok=True)
    variant: dict[str, Any] = {"versions": f"=={version}"}
    if diffs:
        (place / f"{version}.diff").write_bytes(b"".join(diffs))
        variant |= {"diff": f"{version}.diff", "files": files}
    if added:
        variant["added"] = {
            path: _store(place, version, path, body) for path, body in added.items()
        }
    return _insert(place / "patch.yaml", patch_id, package, variant)


def _compare(
    old: Path, new: Path
) -> tuple[list[bytes], dict[str, dict[str, str]], dict[str, bytes]]:
    diffs: list[bytes] = []
    files: dict[str, dict[str, str]] = {}
    added: dict[str, bytes] = {}
    for path in sorted(one for one in new.rglob("*") if one.is_file()):
        if "__pycache__" in path.parts:
            continue
        name = path.relative_to(new).as_posix()
        after = path.read_bytes()
        if not (old / name).exists():
            added[name] = after
            continue
        before = (old / name).read_bytes()
        if before == after:
            continue
        try:
            diffs.append(make_diff(name, before, after))
        except DiffError as error:
            raise ConfigError(str(error), code="patch-ambiguous", subject=name) from error
        files[name] = {"before": digest(before), "after": digest(after)}
    for path in sorted(one for one in old.rglob("*") if one.is_file()):
        name = path.relative_to(old).as_posix()
        if not (new / name).exists() and "__pycache__" not in path.parts:
            raise ConfigError(f"{name} is gone: a patch changes or adds files", subject=name)
    return diffs, files, added


def _store(place: Path, version: str, path: str, body: bytes) -> dict[str, str]:
    """Keep an added file once for all versions that share it, else under the version's name."""
    shared = place / Path(path).name
    own = place / f"{version}-{Path(path).name}"
    if shared.exists() and shared.read_bytes() != body:
        shared = own
    elif own.exists():
        own.unlink()  # it was this version's own, and is now what the others have
    shared.write_bytes(body)
    return {"source": shared.name, "sha256": digest(body)}


def _version_of(variant: dict[str, Any]) -> tuple[Version, str]:
    """Order variants by the first version that their range names."""
    first = next(iter(SpecifierSet(variant["versions"])), None)
    return Version(first.version.removesuffix(".*") if first else "0"), variant["versions"]


def _insert(file: Path, patch_id: str, package: str, variant: dict[str, Any]) -> Written:
    new = not file.exists()
    text = SKELETON.format(id=patch_id, package=package) if new else file.read_text("utf-8")
    head, mark, tail = text.partition("\nvariants:\n")
    if not mark:
        raise ConfigError(f"{file}: no line 'variants:' to write below", subject=str(file))
    variants: list[dict[str, Any]] = yaml.safe_load(tail) or []
    kept = [one for one in variants if one["versions"] != variant["versions"]]
    before = next((one for one in variants if one["versions"] == variant["versions"]), {})
    variant["proof"] = before.get("proof") or (kept[0].get("proof") if kept else None) or {}
    ordered = sorted([*kept, variant], key=_version_of)
    body = yaml.safe_dump(ordered, sort_keys=False, width=110)
    file.write_text(head + mark + body, "utf-8")
    return Written(variant, yaml.safe_dump([variant], sort_keys=False, width=110).rstrip(), new)
