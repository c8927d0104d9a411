"""Exact replacements in a file's bytes, read from a unified diff: no fuzz, no guessed offsets."""

from __future__ import annotations

import difflib
import re

from opsctl.records import dataclass

_HUNK_HEADER = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_NEWLINE = b"\\ No newline at end of file"
_MOST_CONTEXT = 40  # lines around a change until `make_diff` gives up making its place unique


class DiffError(ValueError):
    """The text is no sound unified diff; the message names the line."""


class HunkError(ValueError):
    """A hunk has no single place in the content at hand."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """One place of a file: ``old`` must stand there exactly once, and becomes ``new``."""

    line: int  # where old starts in the pinned file, from 1; for messages
    old: bytes
    new: bytes

    def reversed(self) -> Hunk:
        return Hunk(self.line, self.new, self.old)


def apply_hunks(content: bytes, hunks: tuple[Hunk, ...]) -> bytes:
    """Return ``content`` with every hunk's old text replaced by its new one.

    Raises:
        HunkError: if an old text is missing, stands at more than one place, or two hunks overlap.
    """
    places: list[tuple[int, Hunk]] = []
    for hunk in hunks:
        at = content.find(hunk.old) if hunk.old else -1
        if at < 0:
            raise HunkError(f"the text of the hunk at line {hunk.line} is not there")
        if content.find(hunk.old, at + 1) >= 0:
            raise HunkError(f"the text of the hunk at line {hunk.line} is there more than once")
        places.append((at, hunk))
    places.sort(key=lambda place: place[0])
    parts: list[bytes] = []
    end = 0
    for at, hunk in places:
        if at < end:
            raise HunkError(f"the hunk at line {hunk.line} overlaps the one before it")
        parts += [content[end:at], hunk.new]
        end = at + len(hunk.old)
    return b"".join([*parts, content[end:]])


def reverse_hunks(content: bytes, hunks: tuple[Hunk, ...]) -> bytes:
    """Return ``content`` as it was before ``apply_hunks``; raises HunkError as that does."""
    return apply_hunks(content, tuple(hunk.reversed() for hunk in hunks))


def parse_diff(text: bytes) -> dict[str, tuple[Hunk, ...]]:
    """Read a unified diff whose paths are ``a/PATH`` and ``b/PATH``, counting every line of every hunk.

    Returns:
        The hunks per path, in order.

    Raises:
        DiffError: on a wrong count, an unknown line, Windows line ends, or a file that is added or removed.
    """
    files: dict[str, list[Hunk]] = {}
    current: list[Hunk] | None = None
    lines = text.split(b"\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith(b"--- "):
            path = _path_of(lines, at)
            if path in files:
                raise DiffError(f"line {at + 1}: {path} appears twice")
            current = files.setdefault(path, [])
            at += 2
        elif header := _HUNK_HEADER.match(line):
            if line.endswith(b"\r"):
                raise DiffError(
                    f"line {at + 1}: the diff went through an editor that writes Windows line ends"
                )
            if current is None:
                raise DiffError(f"line {at + 1}: a hunk before any file name")
            hunk, at = _read_hunk(lines, at, header)
            current.append(hunk)
        elif not line.strip() or line.startswith((b"diff ", b"index ", b"#")):
            at += 1
        else:
            raise DiffError(f"line {at + 1}: neither a file name nor a hunk: {line[:60]!r}")
    empty = [path for path, hunks in files.items() if not hunks]
    if empty or not files:
        raise DiffError(f"no hunk for {', '.join(empty)}" if empty else "no file in it")
    return {path: tuple(hunks) for path, hunks in files.items()}


def _path_of(lines: list[bytes], at: int) -> str:
    following = lines[at + 1] if at + 1 < len(lines) else b""
    if lines[at].endswith(b"\r"):
        raise DiffError(
            f"line {at + 1}: the diff went through an editor that writes Windows line ends"
        )
    old = lines[at][4:].split(b"\t")[0].decode()
    new = following[4:].split(b"\t")[0].decode() if following.startswith(b"+++ ") else ""
    if not (old.startswith("a/") and new.startswith("b/") and old[2:] == new[2:]):
        raise DiffError(f"line {at + 1}: expected '--- a/PATH' and '+++ b/PATH' of one file")
    return old[2:]


def _read_hunk(lines: list[bytes], at: int, header: re.Match[bytes]) -> tuple[Hunk, int]:
    start = at
    old_left = int(header[2] or 1)
    new_left = int(header[4] or 1)
    old: list[bytes] = []
    new: list[bytes] = []
    at += 1
    while old_left > 0 or new_left > 0:
        line = lines[at] if at < len(lines) else b""
        sign, body = line[:1], line[1:] + b"\n"
        if sign not in (b" ", b"-", b"+"):
            raise DiffError(f"line {at + 1}: the hunk at line {start + 1} ends before its counts")
        sides = [side for side, signs in ((old, b" -"), (new, b" +")) if sign in signs]
        old_left -= sign in b" -"
        new_left -= sign in b" +"
        if at + 1 < len(lines) and lines[at + 1].startswith(_NO_NEWLINE):
            body = body[:-1]
            at += 1
        for side in sides:
            side.append(body)
        at += 1
    if old_left or new_left:
        raise DiffError(f"line {start + 1}: the hunk's counts do not fit its lines")
    if at < len(lines) and lines[at][:1] in (b" ", b"-", b"+") and not _is_file_header(lines, at):
        raise DiffError(f"line {at + 1}: the hunk at line {start + 1} goes on after its counts")
    return Hunk(int(header[1]), b"".join(old), b"".join(new)), at


def _is_file_header(lines: list[bytes], at: int) -> bool:
    following = lines[at + 1] if at + 1 < len(lines) else b""
    return lines[at].startswith(b"--- ") and following.startswith(b"+++ ")


def make_diff(path: str, old: bytes, new: bytes) -> bytes:
    """Return the unified diff from ``old`` to ``new``, with as much context as makes every place unique.

    Raises:
        DiffError: if no amount of context makes a change's place unique.
    """
    for context in range(3, _MOST_CONTEXT):
        text = unified(path, old, new, context)
        hunks = parse_diff(text)[path]
        try:
            if apply_hunks(old, hunks) == new and reverse_hunks(new, hunks) == old:
                return text
        except HunkError:
            continue
    raise DiffError(f"{path}: a change stands in text that repeats; give it a place of its own")


def unified(path: str, old: bytes, new: bytes, context: int = 3) -> bytes:
    """Return the plain unified diff of two contents, for people and for ``make_diff``."""
    lines: list[bytes] = []
    for line in difflib.diff_bytes(
        difflib.unified_diff,
        _lines(old),
        _lines(new),
        f"a/{path}".encode(),
        f"b/{path}".encode(),
        n=context,
    ):
        lines.append(line if line.endswith(b"\n") else line + b"\n" + _NO_NEWLINE + b"\n")
    return b"".join(lines)


def _lines(content: bytes) -> list[bytes]:
    """Split at LF only: CR, VT and FF stay part of their line, unlike with ``splitlines``."""
    parts = content.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
