"""The rules as data hold together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from opsctl.domain.crash.advice import ADVICE
from opsctl.domain.crash.captures import CAPTURES
from opsctl.domain.crash.model import NOTICES
from opsctl.domain.crash.rules import NOTABLE, NOTICE, RULES, Rule

DATA = Path(__file__).parents[2] / "data"
RESOLVED = {"cuda-oom": "cuda-oom-runtime", "files": "client-limit"}


def test_every_category_has_words_and_a_next_step() -> None:
    """No verdict leaves the reader alone."""
    categories = {RESOLVED.get(rule.category, rule.category) for rule in RULES}
    categories |= {capture.category for capture in CAPTURES}

    assert categories <= set(ADVICE)
    assert all(advice.meaning and advice.next for advice in ADVICE.values())
    assert set(ADVICE) >= NOTICES


def test_every_rule_has_a_sample() -> None:
    """A rule that no sample needs is a guess."""
    lines = [
        line
        for path in [*(DATA / "diagnose").glob("*.log"), *(DATA / "cases").glob("*.log")]
        for line in path.read_text(errors="replace").split("\n")
    ]

    unused = [
        rule.name
        for rule in RULES
        if not any(rule.wording.found(line, line.lower()) for line in lines)
    ]

    assert unused == []


def test_no_line_that_a_rule_knows_is_skipped_by_the_cheap_look() -> None:
    """Long logs are read with a list of words; every line that matches a rule holds one of them."""
    skipped = []
    for path in [*(DATA / "diagnose").glob("*.log"), *(DATA / "cases").glob("*.log")]:
        for line in path.read_text(errors="replace").split("\n"):
            lower = line.lower().encode()
            if any(rule.wording.found(line, line.lower()) for rule in RULES) and not any(
                word in lower for word in NOTABLE
            ):
                skipped.append(line)

    assert skipped == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_whatever_a_rule_can_match_passes_the_cheap_look(rule: Rule) -> None:
    """Every word that a rule needs holds one of the words of the cheap look."""
    hints = rule.wording.hints()

    assert hints is not None
    assert [hint for hint in hints if not any(word.decode() in hint for word in NOTABLE)] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_words_of_a_rule_are_in_everything_that_it_matches(rule: Rule) -> None:
    """The words are read from the pattern; strings made from the pattern hold one of them."""
    pattern = re.compile(rule.wording.source, re.IGNORECASE)

    @given(st.from_regex(pattern, alphabet=st.characters(min_codepoint=32, max_codepoint=126)))
    @settings(
        max_examples=8,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(text: str) -> None:
        assert rule.wording.found(text, text.lower()), text

    check()


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule.category in NOTICES], ids=lambda rule: rule.name
)
def test_notices_never_decide_over_a_fault(rule: object) -> None:
    """A warning has the last weight."""
    assert rule.weight == NOTICE  # type: ignore[attr-defined]
