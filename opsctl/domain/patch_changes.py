"""What the files of a package must become so that just the wanted patches stand in them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

from opsctl.domain.hunks import HunkError, apply_hunks
from opsctl.domain.patch import (
    FilePatch,
    Patch,
    PatchReport,
    applied_in,
    digest,
    parts_of,
    pristine_of,
)
from opsctl.records import dataclass


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file that must go from one content to another; None is: no file."""

    path: str
    before: str | None
    after: str | None
    content: bytes | None


class PatchConflictError(ValueError):
    """The patches cannot stand together in the files at hand; nothing is changed."""


def changes_for(
    reports: Sequence[PatchReport],
    contents: Mapping[str, bytes | None],
    wanted: Collection[str],
    standing: Mapping[str, bytes | None] | None = None,
) -> list[FileChange]:
    """Return what must change so that exactly the ``wanted`` patches stand in the files.

    Args:
        reports: what ``evaluate`` said, in the same order.
        contents: the same contents.
        wanted: ids that shall stand afterwards; all other patches of ``reports`` shall not.
        standing: what stands in a file where that is not its content, but an earlier form of a patch.

    Raises:
        PatchConflictError: if a file that must change is not understood, or two patches want the same lines.
    """
    fitting = [(report.patch, report.variant) for report in reports if report.variant]
    changes: list[FileChange] = []
    for path, content in contents.items():
        parts = parts_of(path, fitting)
        applied = applied_in(path, fitting, content)
        goal = frozenset(one for one, _ in parts if one in wanted)
        now = (standing or {}).get(path, content)
        if applied == goal and now == content:
            continue
        if applied is None:
            raise PatchConflictError(f"{path} is not a file that these patches know")
        after = _content_with(path, parts, applied, goal, content)
        changes.append(FileChange(path, _digest(now), _digest(after), after))
    # our own new files first: a hook never stands without the file that it calls, not even for an instant
    return sorted(changes, key=lambda change: (change.before is not None, change.after is None))


def _content_with(
    path: str,
    parts: Sequence[tuple[str, FilePatch]],
    applied: frozenset[str],
    goal: frozenset[str],
    content: bytes | None,
) -> bytes | None:
    if all(part.before is None for _, part in parts):
        new = [part.content for one, part in parts if one in goal]
        if len({c for c in new if c is not None}) > 1:
            raise PatchConflictError(f"{path}: {' and '.join(sorted(goal))} both bring this file")
        return new[0] if new else None
    assert content is not None
    standing = [part for part in parts if part[0] in applied]
    pristine = pristine_of(content, standing, parts[0][1].before)
    assert pristine is not None  # `applied` was found by just this
    try:
        for one, part in parts:
            if one in goal:
                pristine = apply_hunks(pristine, part.hunks)
    except HunkError as error:
        raise PatchConflictError(f"{path}: {one} does not go with the others: {error}") from error
    return pristine


def _digest(content: bytes | None) -> str | None:
    return None if content is None else digest(content)


def order_series(library: Mapping[str, Patch], wanted: Sequence[str]) -> list[str]:
    """Return ``wanted`` with what it needs, each after its needs, otherwise in the given order.

    Raises:
        PatchConflictError: if an id is unknown, needs go in a circle, or two of them conflict.
    """
    ordered: list[str] = []

    def add(one: str, path: tuple[str, ...]) -> None:
        if one in path:
            raise PatchConflictError(f"needs go in a circle: {' -> '.join([*path, one])}")
        if one in ordered:
            return
        if one not in library:
            raise PatchConflictError(f"no patch is called {one}")
        for need in library[one].needs:
            add(need, (*path, one))
        ordered.append(one)

    for one in wanted:
        add(one, ())
    for first, second in itertools.combinations(ordered, 2):
        if second in library[first].conflicts or first in library[second].conflicts:
            raise PatchConflictError(f"{first} and {second} exclude each other")
    return ordered
