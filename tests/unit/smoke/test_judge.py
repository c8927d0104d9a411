"""Answers: mush, wrong, drifted, allowed."""

from __future__ import annotations

import pytest

from opsctl.domain.report import LevelReport, Outcome
from opsctl.sglang.stream import Reply
from opsctl.smoke.judge import Book, agreement, broken_text, is_loop
from opsctl.smoke.measure import Request

GOOD = "The river flows under the old bridge and past the garden wall"


def request(key: str, answer: str | list[int]) -> Request:
    reply = Reply(
        chunk_s=[1.0],
        text=answer if isinstance(answer, str) else "",
        ids=None if isinstance(answer, str) else answer,
        tokens=12,
        finish="length",
    )
    return Request(key, "plain", 12, 0.0, 1.0, reply, 200, None)


def level(requests: list[Request]) -> LevelReport:
    return LevelReport(4, Outcome.PASSED, requests=len(requests), ok=len(requests))


def book(count: int = 8) -> Book:
    made = Book()
    made.learn([request(f"p{i}", f"{i} {GOOD} {i}") for i in range(count)])
    return made


@pytest.mark.parametrize(
    "answer",
    [
        "!!!!!!!!!!!!",
        "! ! ! ! ! ! ! ! !",
        "\ufffd\ufffd\ufffdab\ufffd\ufffdcd",
        "nan " * 9,
        " " * 20,
    ],
)
def test_mush_is_seen_whatever_the_prompt(answer: str) -> None:
    """NaN logits, broken bytes, nothing at all: no working model answers so."""
    assert broken_text(answer) is not None


@pytest.mark.parametrize(
    "answer", [GOOD, "xxxxxxxxxxxx", "1. 2. 3. 4. 5. 6. 7.", "!", "da da da da"]
)
def test_odd_but_possible_text_is_no_mush(answer: str) -> None:
    """A small model repeats itself; that alone is no proof."""
    assert broken_text(answer) is None


def test_token_zero_for_ever_is_mush() -> None:
    """NaN logits choose token 0."""
    assert broken_text((0,) * 12) is not None
    assert broken_text((5,) * 12) is None


@pytest.mark.parametrize(
    ("answer", "loop"),
    [("a b a b a b a b a b", True), ((1, 2, 3) * 5, True), (GOOD, False), ((1, 2), False)],
)
def test_short_cycles_are_loops(answer: str | tuple[int, ...], loop: bool) -> None:
    """A cycle of up to four units that fills most of the answer."""
    assert is_loop(answer) is loop


def test_identical_answers_pass() -> None:
    """Same prompts, same tokens."""
    requests = [request(f"p{i}", f"{i} {GOOD} {i}") for i in range(8)]
    made = level(requests)

    book().judge(made, requests)

    assert made.outcome is Outcome.PASSED
    assert made.answers is not None
    assert (made.answers["exact"], made.answers["wrong"]) == (8, 0)


def test_answers_that_drift_late_are_allowed_and_counted() -> None:
    """Other kernels for another batch size may flip a near-tie late in an answer."""
    requests = [request(f"p{i}", f"{i} {GOOD[:50]} elsewhere now") for i in range(8)]
    made = level(requests)

    book().judge(made, requests)

    assert made.outcome is Outcome.PASSED
    assert made.answers is not None
    assert made.answers["drifted"] == 8


def test_strict_comparison_allows_no_drift() -> None:
    """--drift 0 asks for identical answers."""
    requests = [request(f"p{i}", f"{i} {GOOD[:50]} elsewhere now") for i in range(8)]
    made, strict = level(requests), book()
    strict.drift = 0.0

    strict.judge(made, requests)

    assert made.outcome is Outcome.FAILED


@pytest.mark.parametrize(("wrong", "outcome"), [(1, Outcome.PASSED), (2, Outcome.FAILED)])
def test_one_flipped_prompt_is_allowed_and_two_are_not(wrong: int, outcome: Outcome) -> None:
    """A near-tie at the first token is possible once in a few prompts, not twice in eight."""
    requests = [
        request(f"p{i}", "Quite another text altogether" if i < wrong else f"{i} {GOOD} {i}")
        for i in range(8)
    ]
    made = level(requests)

    book().judge(made, requests)

    assert made.outcome is outcome


def test_one_answer_of_mush_fails_the_level() -> None:
    """200 with mush is a failed request, and a failed request fails the level."""
    requests = [request("p0", f"0 {GOOD} 0"), request("p1", "!!!!!!!!!!!!!!!!")]
    made = level(requests)

    book().judge(made, requests)

    assert made.outcome is Outcome.FAILED
    assert (made.ok, made.failed, made.errors) == (1, 1, {"mush": 1})


def test_loop_under_load_is_mush_when_the_reference_has_none() -> None:
    """The field case: token mush up to max_tokens at 4 in parallel, clean alone."""
    requests = [request(f"p{i}", "so so so so so so so so so so") for i in range(3)]
    made = level(requests)

    book().judge(made, requests)

    assert made.errors == {"mush": 3}


def test_random_weights_are_not_judged_by_sense() -> None:
    """--load-format dummy loops by nature."""
    requests = [request(f"p{i}", "!!!!!!!!!!!!!!!!") for i in range(3)]
    made = level(requests)

    Book(dummy_weights=True).judge(made, requests)

    assert made.outcome is Outcome.PASSED


def test_server_that_samples_is_not_compared() -> None:
    """Two answers to one prompt without load: comparing is pointless."""
    made_book = Book()

    assert not made_book.check_repeat([request("p0", GOOD), request("p0", "Other words entirely")])


def test_acceptance_is_held_against_the_first_level() -> None:
    """The ratio tells that drafting got worse, or was switched off."""
    one, two = level([]), level([])
    one.accept_length, two.accept_length = 3.0, 1.5
    made = Book()

    made.judge(one, [])
    made.judge(two, [])

    assert (one.accept_ratio, two.accept_ratio) == (1.0, 0.5)


def test_agreement_counts_from_the_start() -> None:
    """The share of the reference that is followed; kinds that differ do not agree at all."""
    assert agreement("abcd", "abxx") == 0.5
    assert agreement((1, 2), (1, 2)) == 1.0
    assert agreement("1", (1,)) == 0.0
    assert agreement("", "abc") == 0.0
