"""Reports: statistics, levels, JUnit, HTML, the stored result."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from opsctl.domain.report import (
    LevelReport,
    Outcome,
    bracket_of,
    delivered,
    percentile,
    spread,
)
from opsctl.errors import UsageError
from opsctl.smoke.html import html_report
from opsctl.smoke.junit import junit_report
from opsctl.smoke.store import load_result, save_result
from opsctl.smoke.svg import Curve, line_plot, nice_top


def stored(outcome: str = "crashed") -> dict[str, Any]:
    good = LevelReport(1, Outcome.PASSED, requests=3, ok=3, output_tok_s=100.0)
    good.ttft_ms = spread([10.0, 11.0, 12.0])
    good.timeline = [[0.0, 0.01, 0.1, 32, None]]
    bad = LevelReport(
        10, Outcome(outcome), "the server </script> died \x00", requests=10, failed=10
    )
    bad.timeline = [[0.0, None, 0.1, None, "stream-cut"]]
    levels = [good, bad]
    return {
        "url": "http://127.0.0.1:30000",
        "run": "smoke-1",
        "outcome": outcome,
        "wanted_levels": [1, 10, 20],
        "levels": [level.to_dict(timeline=True) for level in levels],
        "bracket": bracket_of(levels),
        "findings": [{"code": "c", "subject": "level 10", "text": "<b>died</b>", "next": "look"}],
        "evidence": {"log": {"path": "/x", "window": ["<script>alert(1)</script>"]}},
        "diagnosis": {"category": "shape-mismatch", "explanation": "160 = 10 x 16", "next": ["n"]},
        "seconds": 1.5,
    }


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 2.5), (1.0, 4.0), (0.25, 1.75)])
def test_percentiles_are_interpolated(share: float, value: float) -> None:
    """Between two values the percentile lies between them."""
    assert percentile([1.0, 2.0, 3.0, 4.0], share) == value


def test_confidence_is_only_claimed_with_enough_values() -> None:
    """The p99 of 20 values has no interval; the p50 of 100 has one that holds it."""
    few, many = spread([float(n) for n in range(20)]), spread([float(n) for n in range(100)])

    assert few is not None
    assert few.p99_interval is None
    assert many is not None
    assert many.p50_interval is not None
    low, high = many.p50_interval
    assert low < many.p50 < high
    assert spread([]) is None


def test_delivered_concurrency_is_measured_not_claimed() -> None:
    """Two of four slots that idle half of the time show in peak and mean."""
    spans = [(0.0, 10.0), (0.0, 10.0), (0.0, 4.0), (0.0, 4.0)]

    held = delivered(spans, 4)

    assert (held.peak, held.steady_s, held.mean) == (4, 4.0, 4.0)
    assert delivered(spans[:2], 4).peak == 2
    assert delivered([], 4).peak == 0


def test_short_gap_between_two_requests_does_not_end_the_steady_part() -> None:
    """A slot needs a moment to send again."""
    spans = [(0.0, 5.0), (5.01, 10.0)]

    assert delivered(spans, 1).steady_s == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("outcomes", "bracket"),
    [
        ({1: "passed", 2: "passed"}, None),
        ({1: "passed", 5: "crashed"}, {"last_good": 1, "first_bad": 5}),
        ({1: "hung"}, {"last_good": None, "first_bad": 1}),
        ({1: "passed", 5: "not-measured"}, None),
        ({1: "not-measured", 5: "failed"}, {"last_good": None, "first_bad": 5}),
    ],
)
def test_bracket(outcomes: dict[int, str], bracket: dict[str, int | None] | None) -> None:
    """Last good below first bad; a level that was not measured is neither."""
    levels = [LevelReport(c, Outcome(outcome)) for c, outcome in outcomes.items()]

    assert bracket_of(levels) == bracket


def test_junit_has_one_test_per_level_and_skips_what_was_not_run() -> None:
    """Crashed is an error, failed a failure; forbidden characters do not break the file."""
    root = ElementTree.fromstring(junit_report(stored()).encode())

    suite = root[0]
    assert suite.attrib["tests"] == "3"
    assert (suite.attrib["errors"], suite.attrib["skipped"]) == ("1", "1")
    assert [case.attrib["name"] for case in suite] == ["C=1", "C=10", "C=20"]
    assert suite[1].find("error") is not None
    failed = ElementTree.fromstring(junit_report(stored("failed")).encode())
    assert failed[0].attrib["failures"] == "1"


class Tags(HTMLParser):
    """Collects every tag and every address that a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def test_html_is_one_file_without_network_and_without_injected_markup() -> None:
    """Nothing is loaded, log lines stay text, the verdict and the sizes are there."""
    page = html_report([stored()])

    tags = Tags()
    tags.feed(page)
    assert tags.addresses == []
    assert "script" not in tags.tags
    assert "b" not in tags.tags
    assert not re.search(r"url\(|@import", page)
    assert "160 = 10 x 16" in page
    assert "last good C=1, first bad C=10" in page
    assert 'name="viewport"' in page


def test_html_of_several_runs_draws_one_curve_each() -> None:
    """Compared runs share the plots."""
    page = html_report(
        [stored() | {"label": "eagle"}, stored() | {"label": "base"}], ["eagle wins"]
    )

    assert page.count("<li><i") >= 6
    assert "eagle wins" in page


def test_plot_of_nothing_says_so() -> None:
    """A plot without a value is a sentence, not an empty frame."""
    assert "nothing was measured" in line_plot("T", "ms", [Curve("a", ((1.0, None),))])


@pytest.mark.parametrize(("value", "top"), [(0, 1), (1, 1), (7, 8), (23, 25), (950, 1000)])
def test_axes_end_at_round_numbers(value: float, top: float) -> None:
    """The axis holds the value and reads well."""
    assert nice_top(value) == top


def test_result_is_found_by_part_of_its_id_and_by_path(tmp_path: Path) -> None:
    """Id, unique part, path and `last` name one run; what is ambiguous or unknown is said."""
    first = save_result(tmp_path, "smoke-20260101T000000-aaa", {"levels": []})
    save_result(tmp_path, "smoke-20260102T000000-bbb", {"levels": []})

    assert load_result(tmp_path, "aaa")["run"].endswith("aaa")
    assert load_result(tmp_path, "last")["run"].endswith("bbb")
    assert load_result(tmp_path, str(first))["run"].endswith("aaa")
    for wrong in ("smoke", "zzz", "nowhere/x.json"):
        with pytest.raises(UsageError):
            load_result(tmp_path, wrong)


def test_document_that_json_printed_can_be_compared(tmp_path: Path) -> None:
    """A CI job keeps the --json output: that is a result too."""
    path = tmp_path / "out.json"
    path.write_text('{"schema": "opsctl.smoke/1", "run": "r", "data": {"levels": []}}')

    assert load_result(tmp_path, str(path))["run"] == "r"
    path.write_text('{"schema": "opsctl.stop/1"}')
    with pytest.raises(UsageError):
        load_result(tmp_path, str(path))
