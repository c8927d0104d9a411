"""What counts as the same attempt, and when one is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opsctl.domain.fingerprint import (
    Attempt,
    AttemptOutcome,
    Content,
    differences,
    judge,
    shortened,
)

CONTENT = Content(
    package="sglang",
    package_version="0.5.12.post1",
    arguments=("--tp", "8", "--port", "30000", "--speculative-algorithm", "EAGLE3"),
    gpu_model="NVIDIA RTX PRO 6000",
    patches={"dynamic-off": "aa11"},
    environment={"SGLANG_ENABLE_SPEC_V2": "1"},
)


def attempt(
    run: str, outcome: AttemptOutcome, content: Content = CONTENT, at: float = 1.0
) -> Attempt:
    return Attempt(run, "glm5", at, outcome, content, "3f2a", "crashed at C=10")


@pytest.mark.parametrize(
    "other",
    [
        replace(CONTENT, package_version="0.5.13"),
        replace(CONTENT, arguments=("--tp", "4")),
        replace(CONTENT, gpu_model="H200"),
        replace(CONTENT, patches={"dynamic-off": "bb22"}),
        replace(CONTENT, patches={}),
        replace(CONTENT, environment={}),
    ],
)
def test_each_part_of_the_content_counts(other: Content) -> None:
    """One changed byte of a patch is another attempt, and so is another version or GPU."""
    assert other.fingerprint() != CONTENT.fingerprint()


def test_the_port_does_not_count() -> None:
    """The same server on another port is the same attempt."""
    moved = replace(
        CONTENT, arguments=("--tp", "8", "--port=31000", "--speculative-algorithm", "EAGLE3")
    )

    assert moved.fingerprint() == CONTENT.fingerprint()


def test_the_order_of_patches_and_variables_does_not_count() -> None:
    """A mapping has no order."""
    one = replace(CONTENT, patches={"a": "1", "b": "2"})
    two = replace(CONTENT, patches={"b": "2", "a": "1"})

    assert one.fingerprint() == two.fingerprint()


@pytest.mark.parametrize(
    "outcome", [AttemptOutcome.CRASHED, AttemptOutcome.HUNG, AttemptOutcome.WRONG_ANSWERS]
)
def test_a_failed_fix_is_known_bad(outcome: AttemptOutcome) -> None:
    """The last conclusive outcome of this content was a failure."""
    judgement = judge(CONTENT, "glm5", [attempt("r17", outcome)])

    assert judgement.is_known_bad
    assert judgement.blocking is not None
    assert judgement.blocking.run == "r17"


def test_inconclusive_attempts_never_block() -> None:
    """A lost network or a full disk says nothing about the fix."""
    judgement = judge(CONTENT, "glm5", [attempt("r1", AttemptOutcome.INCONCLUSIVE)])

    assert not judgement.is_known_bad


def test_an_inconclusive_attempt_does_not_hide_the_failure_before_it() -> None:
    """crashed, then cut: still known bad."""
    attempts = [
        attempt("r1", AttemptOutcome.CRASHED, at=1.0),
        attempt("r2", AttemptOutcome.INCONCLUSIVE, at=2.0),
    ]

    assert judge(CONTENT, "glm5", attempts).is_known_bad


def test_a_later_pass_clears_an_earlier_failure() -> None:
    """Only the last conclusive outcome is knowledge, whatever order the lines came in."""
    attempts = [
        attempt("r2", AttemptOutcome.PASSED, at=2.0),
        attempt("r1", AttemptOutcome.CRASHED, at=1.0),
    ]

    assert not judge(CONTENT, "glm5", attempts).is_known_bad


@pytest.mark.parametrize(
    ("failed_at", "passed_to", "blocks"),
    [(10, None, True), (10, 2, True), (10, 10, False), (10, 20, False), (None, None, False)],
    ids=["no smoke", "lower", "as high", "higher", "failed at start"],
)
def test_a_pass_that_looked_less_far_clears_nothing(
    failed_at: int | None, passed_to: int | None, blocks: bool
) -> None:
    """`--again --no-smoke` starts what crashes at C=10; the next restart is refused all the same."""
    failed = replace(attempt("r1", AttemptOutcome.CRASHED), smoked_to=failed_at)
    passed = replace(attempt("r2", AttemptOutcome.PASSED, at=2.0), smoked_to=passed_to)
    judgement = judge(CONTENT, "glm5", [failed, passed])
    assert judgement.is_known_bad is blocks
    assert (judgement.last_passed is None) is blocks  # nor is it a state to go back to
    assert Attempt.from_json(passed.to_json()) == passed


def test_another_content_is_not_blocked() -> None:
    """A failure of one patch set says nothing about another."""
    other = replace(CONTENT, patches={"dynamic-off": "cc33"})

    assert not judge(other, "glm5", [attempt("r1", AttemptOutcome.CRASHED)]).is_known_bad


def test_the_refusal_knows_what_differs_from_the_last_pass() -> None:
    """'what did we change since it worked' is answered with words, not with two hashes."""
    passed = replace(CONTENT, package_version="0.5.9", arguments=("--tp", "8"), patches={})
    attempts = [
        attempt("r1", AttemptOutcome.PASSED, passed, 1.0),
        attempt("r2", AttemptOutcome.CRASHED, CONTENT, 2.0),
    ]

    judgement = judge(CONTENT, "glm5", attempts)

    assert judgement.last_passed is not None
    assert judgement.last_passed.run == "r1"
    assert judgement.differences == (
        "patch dynamic-off is new",
        "package sglang 0.5.9 became sglang 0.5.12.post1",
        "argument --speculative-algorithm EAGLE3 is new",
    )


@pytest.mark.parametrize(
    "other",
    [
        replace(CONTENT, interpreter="/other/python"),
        replace(CONTENT, arguments=("--model-path", "/m/other")),
        replace(CONTENT, arguments=("--model-path=/m/other",)),
    ],
)
def test_another_model_or_interpreter_is_not_compared(other: Content) -> None:
    """A good run of something else explains nothing; the last good run that is alike does."""
    now = replace(CONTENT, interpreter="/v/python")
    alike = replace(now, patches={})
    passed = [attempt("r2", AttemptOutcome.PASSED, other, 2.0)]

    alone = judge(now, "glm5", passed)
    both = judge(now, "glm5", [attempt("r1", AttemptOutcome.PASSED, alike), *passed])

    assert alone.last_passed is not None
    assert (alone.compared, alone.differences) == (None, ())
    assert both.compared is not None
    assert (both.compared.run, both.differences) == ("r1", ("patch dynamic-off is new",))


def test_interpreter_is_no_part_of_the_fingerprint() -> None:
    """What is known from before it was recorded stays known, and is compared."""
    recorded = replace(CONTENT, interpreter="/v/python")

    assert recorded.fingerprint() == CONTENT.fingerprint()
    assert recorded.is_comparable(CONTENT)
    assert Content.from_json(recorded.to_json()) == recorded


def test_many_differences_are_cut_with_a_count() -> None:
    """One line holds five; the others are in the run."""
    found = [f"d{number}" for number in range(17)]

    assert shortened(found, "r9") == "d0; d1; d2; d3; d4; and 12 more: opsctl show r9"
    assert shortened(found[:5], "r9") == "d0; d1; d2; d3; d4"


def test_differences_name_changed_values() -> None:
    """Old and new value stand beside each other."""
    new = replace(CONTENT, arguments=("--tp", "4", "--speculative-algorithm", "EAGLE3"))

    assert differences(CONTENT, new) == ("argument --tp 8 became 4",)
    assert differences(CONTENT, CONTENT) == ()


def test_an_attempt_survives_its_json_line() -> None:
    """The copy beside the server says the same as the ledger."""
    original = attempt("r17", AttemptOutcome.CRASHED)

    assert Attempt.from_json(original.to_json()) == original


@pytest.mark.parametrize("line", [{}, {"run": "r"}, {"run": 1, "server": 2, "at_s": "x"}])
def test_a_damaged_line_is_no_attempt(line: dict[str, object]) -> None:
    """Half a line, as a full disk leaves it, raises ValueError; the reader skips it."""
    with pytest.raises(ValueError, match=r"not an attempt|could not convert"):
        Attempt.from_json(line)


def test_an_outcome_of_a_newer_opsctl_blocks_nothing() -> None:
    """Unknown words are inconclusive."""
    line = {**attempt("r1", AttemptOutcome.CRASHED).to_json(), "outcome": "melted"}

    assert Attempt.from_json(line).outcome is AttemptOutcome.INCONCLUSIVE
