"""Captured streams: no truncation ever looks complete to the diagnosis."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.domain.crash import diagnose
from opsctl.sglang.log import records_of

CASES = Path(__file__).parents[2] / "data" / "cases"
WHOLE = [
    "121-usage-last-empty-choices.log",
    "125-many-tokens-per-chunk.log",
    "124-finish-reason-empty.log",
]


@pytest.mark.parametrize("name", WHOLE)
def test_stream_cut_before_its_finish_reason_is_a_cut(name: str) -> None:
    """At every byte: cut until the finish reason has arrived whole, never a crash of ours."""
    text = (CASES / name).read_text()
    said = text.index('"stop"')
    finished = text.index("\n", said)

    for end in range(len("data: {"), len(text)):
        category = diagnose(records_of(text[:end])).category
        assert category in ("stream-cut", "stream-ok")
        if end < said:
            assert category == "stream-cut", end
        if end > finished and text[:end].endswith("\n"):
            assert category == "stream-ok", end


def test_server_fault_in_the_same_bundle_wins_over_the_cut_stream() -> None:
    """Client capture and server log in one file: the cause is the server's."""
    stream = (CASES / "127-cut-without-done.log").read_text()
    log = (CASES / "001-graph-bs-plus-one.log").read_text()

    assert diagnose(records_of(stream + log)).category == "shape-mismatch"
    assert diagnose(records_of(log + stream)).category == "shape-mismatch"


def test_words_inside_an_answer_are_no_evidence() -> None:
    """A model that talks about CUDA errors is healthy."""
    text = (CASES / "121-usage-last-empty-choices.log").read_text()

    found = diagnose(records_of(text.replace("Hello", "CUDA error: device-side assert triggered")))

    assert found.category == "stream-ok"
