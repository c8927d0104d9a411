"""The page of the 31 rules names tests that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
ROWS = [
    line.split(" | ")
    for line in (TESTS.parent / "docs" / "rules.md").read_text().splitlines()
    if re.match(r"\| \d+ \|", line)
]
_NAME = re.compile(r"`([\w/]+\.py)::(test_\w+)(?:\[([\w.-]+)\])?`")
SAMPLES = {
    *json.loads((TESTS / "data" / "diagnose" / "labels.json").read_text()),
    *(path.stem for path in (TESTS / "data" / "cases").glob("*.log")),
}


def test_every_rule_has_its_row() -> None:
    """Thirty-one, in order, none forgotten."""
    assert [int(row[0].strip("| ")) for row in ROWS] == list(range(1, 32))


@pytest.mark.parametrize("row", ROWS, ids=[row[0].strip("| ") for row in ROWS])
def test_tests_of_a_rule_exist(row: list[str]) -> None:
    """Each named function is in its file, each sample in its folder; no rule is without a test."""
    named = _NAME.findall(row[-1])

    assert named
    assert len(named) == row[-1].count("::")
    for path, function, sample in named:
        assert f"\ndef {function}(" in (TESTS / path).read_text(), (path, function)
        assert not sample or sample in SAMPLES, sample
