"""The handed cases from the field: one file per incident, its verdict beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.domain.crash import diagnose
from opsctl.sglang.log import open_log, read_lines, read_records

CASES = Path(__file__).parents[2] / "data" / "cases"
VERDICTS = json.loads((CASES / "verdicts.json").read_text())
_OUTSIDE = range(91, 121)
"""Groups E to G are no logs of a server; case 90 belongs to group D."""


@pytest.mark.parametrize("case", VERDICTS, ids=lambda case: case["file"])
def test_handed_case_gets_its_verdict(case: dict[str, object]) -> None:
    """Groups A to D and the streams get their category, everything else is unknown."""
    name = str(case["file"])
    inside = int(name[:3]) not in _OUTSIDE

    with open_log(CASES / name) as stream:
        found = diagnose(read_records(read_lines(stream)))

    assert found.category == (case["category"] if inside else "unknown")
    assert found.explanation
    assert found.next
