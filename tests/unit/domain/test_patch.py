"""States of patches, and what files must become: computed from content, never guessed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.domain.hunks import make_diff, parse_diff
from opsctl.domain.patch import (
    FilePatch,
    FileState,
    Patch,
    PatchState,
    PatchStatus,
    Superseded,
    Variant,
    digest,
    evaluate,
)
from opsctl.domain.patch_changes import PatchConflictError, changes_for, order_series

BASE = b"".join(b"line %d\n" % number for number in range(40))


def edited(line: int, word: bytes) -> bytes:
    return BASE.replace(b"line %d\n" % line, b"line %d\n%s\n" % (line, word))


def hook(path: str, line: int, word: bytes) -> FilePatch:
    new = edited(line, word)
    return FilePatch(path, digest(BASE), digest(new), parse_diff(make_diff(path, BASE, new))[path])


def added(path: str, content: bytes) -> FilePatch:
    return FilePatch(path, None, digest(content), content=content)


def patch(one: str, *files: FilePatch, versions: str = "==1.0", **more: object) -> Patch:
    variants = (Variant(versions, files),)
    return Patch(one, one, PatchStatus.RECOMMENDED, "demo", "demo", variants, **more)  # type: ignore[arg-type]


A = patch("a", hook("m.py", 5, b"A"), added("ours.py", b"A = 1\n"))
B = patch("b", hook("m.py", 25, b"B"))
PRISTINE = {"m.py": BASE, "ours.py": None}


def applied(*wanted: str) -> dict[str, bytes | None]:
    contents: dict[str, bytes | None] = dict(PRISTINE)
    for change in changes_for(evaluate([A, B], "1.0", contents), contents, wanted):
        contents[change.path] = change.content
    return contents


def states(contents: dict[str, bytes | None], **more: object) -> dict[str, PatchState]:
    reports = evaluate([A, B], "1.0", contents, **more)  # type: ignore[arg-type]
    return {report.patch.id: report.state for report in reports}


@pytest.mark.parametrize("size", range(3))
def test_every_combination_of_patches_is_told_apart(size: int) -> None:
    """Two patches in one file: each subset gives a file in which exactly that subset is found."""
    for wanted in itertools.combinations(("a", "b"), size):
        found = states(applied(*wanted))

        assert {one for one, state in found.items() if state is PatchState.APPLIED} == set(wanted)


def test_one_of_two_is_taken_away_and_the_other_stays() -> None:
    """Reverting the first of two patches of a file leaves just what the second alone would give."""
    both = applied("a", "b")

    changes = changes_for(evaluate([A, B], "1.0", both), both, ["b"])

    assert {c.path: c.content for c in changes} == {"m.py": edited(25, b"B"), "ours.py": None}


def test_hooks_go_in_after_the_file_they_call_and_out_before_it() -> None:
    """At no instant does a hook stand without the added file that it imports."""
    there = changes_for(evaluate([A, B], "1.0", PRISTINE), PRISTINE, ["a"])
    standing = applied("a")
    back = changes_for(evaluate([A, B], "1.0", standing), standing, [])

    assert [change.path for change in there] == ["ours.py", "m.py"]
    assert [change.path for change in back] == ["m.py", "ours.py"]


def test_a_file_that_nobody_knows_is_a_conflict_and_stops_the_series() -> None:
    """One changed file: the patch conflicts, and no change is planned for any file."""
    contents: dict[str, bytes | None] = {**PRISTINE, "m.py": BASE.replace(b"line 30", b"LINE 30")}

    assert states(contents) == {"a": PatchState.CONFLICT, "b": PatchState.CONFLICT}
    with pytest.raises(PatchConflictError, match=r"m\.py"):
        changes_for(evaluate([A, B], "1.0", contents), contents, ["a"])


def test_windows_line_ends_are_named() -> None:
    """A file that went through an editor with CRLF is refused with that reason (case 115)."""
    contents: dict[str, bytes | None] = {**PRISTINE, "m.py": BASE.replace(b"\n", b"\r\n")}

    report = evaluate([A], "1.0", contents)[0]

    assert report.state is PatchState.CONFLICT
    assert "Windows line ends" in report.detail


def test_another_build_of_the_same_version_is_named() -> None:
    """A file that is as shipped, but not as pinned: the wheel is another build, nobody edited it."""
    other = BASE + b"# built elsewhere\n"

    report = evaluate([A], "1.0", {**PRISTINE, "m.py": other}, shipped={"m.py": digest(other)})[0]

    assert "another build" in report.detail


def test_a_reinstalled_package_shows_as_drift_and_can_be_patched_again() -> None:
    """`pip install -U` put the package's files back: drifted by the record, and ready to apply."""
    report = evaluate([A], "1.0", PRISTINE, recorded={"a"})[0]

    assert report.state is PatchState.DRIFTED
    assert report.can_apply


def test_a_half_patched_package_is_drift_and_can_be_completed() -> None:
    """A tool that patches file by file died in between: the state is drifted, and apply completes it."""
    half: dict[str, bytes | None] = {"m.py": BASE, "ours.py": b"A = 1\n"}

    report = evaluate([A], "1.0", half)[0]
    changes = changes_for([report], half, ["a"])

    assert report.state is PatchState.DRIFTED
    assert [file.state for file in report.files] == [FileState.ABSENT, FileState.APPLIED]
    assert [change.path for change in changes] == ["m.py"]


def test_a_file_of_our_name_that_is_not_ours_is_left_alone() -> None:
    """An added file never overwrites one that stands there."""
    contents: dict[str, bytes | None] = {"m.py": BASE, "ours.py": b"somebody's\n"}

    report = evaluate([A], "1.0", contents)[0]

    assert report.state is PatchState.CONFLICT
    assert "not ours" in report.detail


def test_another_version_is_a_conflict_or_superseded() -> None:
    """Outside its ranges a patch never applies: the version has it by itself, or nobody tried (case 117)."""
    later = patch("c", hook("m.py", 5, b"C"), superseded=(Superseded(">=2", "--adaptive"),))

    old = evaluate([later], "1.5", {})[0]
    new = evaluate([later], "2.1.post1", {})[0]

    assert old.state is PatchState.CONFLICT
    assert "1.5 is installed" in old.detail
    assert new.state is PatchState.SUPERSEDED
    assert "--adaptive" in new.detail


def test_two_patches_of_the_same_lines_do_not_go_together() -> None:
    """A series with one bad member plans no change at all."""
    clash = patch("clash", hook("m.py", 5, b"CLASH"))
    contents: dict[str, bytes | None] = dict(PRISTINE)

    with pytest.raises(PatchConflictError, match="clash does not go with the others"):
        changes_for(evaluate([A, clash], "1.0", contents), contents, ["a", "clash"])


def test_a_series_is_ordered_by_needs_and_refuses_exclusions() -> None:
    """Needs come first; a circle, an unknown name and an exclusion are errors."""
    library = {
        "base": patch("base", added("x.py", b"")),
        "top": patch("top", added("y.py", b""), needs=("base",)),
        "rival": patch("rival", added("z.py", b""), conflicts=("base",)),
        "ring": patch("ring", added("r.py", b""), needs=("ring",)),
    }

    assert order_series(library, ["top", "base"]) == ["base", "top"]
    with pytest.raises(PatchConflictError, match="exclude each other"):
        order_series(library, ["top", "rival"])
    with pytest.raises(PatchConflictError, match="circle"):
        order_series(library, ["ring"])
    with pytest.raises(PatchConflictError, match="no patch is called none"):
        order_series(library, ["none"])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 39), st.binary(min_size=1, max_size=6)), max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_any_way_through_the_subsets_ends_where_it_should(
    edits: list[tuple[int, bytes]], wanted: list[bool]
) -> None:
    """Whatever patches one file has, going to a subset and back gives the first bytes again."""
    patches = []
    for number, (line, word) in enumerate(edits):
        safe = b"# " + word.hex().encode()
        patches.append(patch(f"p{number}", hook("m.py", line, safe)))
    contents: dict[str, bytes | None] = {"m.py": BASE}
    goal = [f"p{number}" for number, take in enumerate(wanted[: len(patches)]) if take]

    try:
        there = changes_for(evaluate(patches, "1.0", contents), contents, goal)
    except PatchConflictError:
        return
    after: dict[str, bytes | None] = {**contents, **{c.path: c.content for c in there}}
    back = changes_for(evaluate(patches, "1.0", after), after, [])

    assert {**after, **{c.path: c.content for c in back}} == contents
