"""What is said of a known-bad patch in place: the recommended one, picked by the library's own words."""

from __future__ import annotations

from opsctl.domain.crash import Context, diagnose
from opsctl.domain.patch_way_out import better_than, way_out
from opsctl.patch_library import load_library
from opsctl.sglang.log import records_of

BAD = "spec-disable-v1"
CRASH = (
    "[2026-11-30 01:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "sglang/srt/speculative/eagle_worker.py", line 5, in verify\n'
    "RuntimeError: The size of tensor a (20) must match the size of tensor b (5) "
    "at non-singleton dimension 0\n"
)


def test_the_recommended_patch_for_the_same_flag_is_found_by_the_library() -> None:
    """Of the installed version only: where it does not fit, nothing is recommended."""
    library = load_library()

    better = better_than(library, library[BAD], "0.5.12.post1")

    assert better is not None
    assert better.id == "spec-disable-v2"
    assert better_than(library, library[BAD], "0.5.8") is None
    assert better_than(library, library[BAD], None) is None


def test_the_way_out_names_the_patch_its_fault_and_what_passed() -> None:
    """In one sentence with the command; without a known-bad patch there is none."""
    library = load_library()

    said = way_out(library, [BAD], "0.5.12.post1", "glm5", "r7") or ""

    assert said.startswith(f"{BAD} is in place and known to be bad (above the threshold")
    assert "write spec-disable-v2 in its place" in said
    assert "`opsctl restart glm5`" in said
    assert "`opsctl show r7`" in said
    assert "take spec-disable-v1 out" in (way_out(library, [BAD], "0.5.8") or "")
    assert way_out(library, ["spec-disable-v2"], "0.5.12.post1") is None


def test_the_way_out_comes_first_and_a_bisection_only_where_one_is_left() -> None:
    """The command to bisect says all that a known-bad patch needs; an exact bracket needs none."""
    coarse = diagnose(records_of(CRASH), Context(5, server="glm5", way_out="write v2"))
    exact = diagnose(records_of(CRASH), Context(5, server="glm5", way_out="write v2", exact=True))
    plain = diagnose(records_of(CRASH), Context(5, server="glm5"))

    assert coarse.next[0] == exact.next[0] == "write v2"
    assert "opsctl restart glm5 --no-smoke --again bisect --allow-known-bad" in coarse.next[1]
    assert not any("bisect" in step for step in exact.next)
    assert "opsctl restart glm5 --no-smoke --again bisect` first" in plain.next[0]
