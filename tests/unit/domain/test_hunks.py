"""Exact hunks: what a diff says, and nothing else, or an error."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.domain.hunks import (
    DiffError,
    Hunk,
    HunkError,
    apply_hunks,
    make_diff,
    parse_diff,
    reverse_hunks,
)

LINES = st.lists(
    st.sampled_from([b"a", b"b", b"", b"  x = 1", b"--- a/x", b"+y", b"c\r", b"\x0c", b"\xff\xfe"]),
    max_size=14,
)


def text(lines: list[bytes], final_newline: bool) -> bytes:
    return b"\n".join(lines) + (b"\n" if final_newline and lines else b"")


@settings(max_examples=300, deadline=None)
@given(LINES, LINES, st.booleans(), st.booleans())
def test_a_made_diff_leads_there_and_back(
    old_lines: list[bytes], new_lines: list[bytes], old_end: bool, new_end: bool
) -> None:
    """For any two contents the diff applies exactly and reverses exactly, or is refused."""
    old, new = text(old_lines, old_end), text(new_lines, new_end)
    if not old or not new or old == new:
        return
    try:
        diff = make_diff("m.py", old, new)
    except DiffError:
        return

    hunks = parse_diff(diff)["m.py"]

    assert apply_hunks(old, hunks) == new
    assert reverse_hunks(new, hunks) == old


DIFF = b"""--- a/m.py
+++ b/m.py
@@ -1,3 +1,3 @@
 a = 1
-b = 2
+b = 3
 c = 4
"""


def test_fuzz_is_refused() -> None:
    """Context that drifted (b = 22) is an error, where patch(1) says 'succeeded with fuzz' (case 113)."""
    hunks = parse_diff(DIFF)["m.py"]

    with pytest.raises(HunkError, match="line 1"):
        apply_hunks(b"a = 1\nb = 22\nc = 4\n", hunks)


def test_a_second_application_is_refused() -> None:
    """What is applied already does not apply again (case 112)."""
    hunks = parse_diff(DIFF)["m.py"]
    once = apply_hunks(b"a = 1\nb = 2\nc = 4\n", hunks)

    with pytest.raises(HunkError):
        apply_hunks(once, hunks)


def test_a_place_that_is_there_twice_is_refused() -> None:
    """Two equal places: no guess which one is meant."""
    hunks = parse_diff(DIFF)["m.py"]

    with pytest.raises(HunkError, match="more than once"):
        apply_hunks(b"a = 1\nb = 2\nc = 4\n" * 2, hunks)


def test_overlapping_hunks_are_refused() -> None:
    """Two hunks that share a line cannot both hold."""
    hunks = (Hunk(1, b"a\nb\n", b"x\n"), Hunk(2, b"b\nc\n", b"y\n"))

    with pytest.raises(HunkError, match="overlaps"):
        apply_hunks(b"a\nb\nc\n", hunks)


@pytest.mark.parametrize(
    ("diff", "says"),
    [
        (DIFF.replace(b"@@ -1,3 +1,3 @@", b"@@ -1,4 +1,3 @@"), "ends before its counts"),
        (DIFF.replace(b"@@ -1,3 +1,3 @@", b"@@ -1,2 +1,2 @@"), "goes on after"),
        (DIFF.replace(b"@@ -1,3 +1,3 @@", b"@@ -1,3 +1,2 @@"), "counts"),
        (DIFF[:-8], "ends before its counts"),
        (DIFF.replace(b"\n", b"\r\n"), "Windows line ends"),
        (DIFF.replace(b"+++ b/m.py\n", b"+++ b/n.py\n"), "of one file"),
        (b"@@ -1 +1 @@\n-a\n+b\n", "before any file name"),
        (b"--- a/m.py\n+++ b/m.py\n", "no hunk for m.py"),
        (b"hello\n", "neither a file name nor a hunk"),
        (b"", "no file in it"),
        (DIFF + DIFF, "appears twice"),
    ],
)
def test_a_damaged_diff_names_its_line(diff: bytes, says: str) -> None:
    """Counts, line ends, names: everything is checked when the library is read (cases 115, 116)."""
    with pytest.raises(DiffError, match=says):
        parse_diff(diff)


def test_a_missing_final_newline_is_part_of_the_content() -> None:
    """A file without a final newline keeps being one, or gets one when the diff says so."""
    old, new = b"a\nb", b"a\nc\n"

    hunks = parse_diff(make_diff("m.py", old, new))["m.py"]

    assert apply_hunks(old, hunks) == new
    assert reverse_hunks(new, hunks) == old
