"""Labelled samples of our own, one file per incident, beyond the handed cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.domain.crash import Diagnosis, diagnose
from opsctl.domain.crash.advice import ADVICE
from opsctl.sglang.log import open_log, read_lines, read_records, records_of

SAMPLES = Path(__file__).parents[2] / "data" / "diagnose"
LABELS: dict[str, str] = json.loads((SAMPLES / "labels.json").read_text())


def diagnose_sample(name: str) -> Diagnosis:
    with open_log(SAMPLES / f"{name}.log") as stream:
        return diagnose(read_records(read_lines(stream)))


@pytest.mark.parametrize("name", LABELS)
def test_sample_gets_its_label(name: str) -> None:
    """Every sample is told by its category; ``healthy`` stands for no category at all."""
    found = diagnose_sample(name)

    assert (found.category or "healthy") == LABELS[name]


def test_every_sample_has_a_file_and_every_file_a_label() -> None:
    """Nothing in the folder is left out of the test."""
    files = {path.stem for path in SAMPLES.glob("*.log")}

    assert files == set(LABELS)
    assert set(LABELS.values()) - {"healthy"} <= set(ADVICE)


@pytest.mark.parametrize("name", [name for name, label in LABELS.items() if label == "healthy"])
def test_healthy_samples_ask_for_nothing(name: str) -> None:
    """A healthy log has no signature and no next step."""
    found = diagnose_sample(name)

    assert found.severity == "healthy"
    assert found.next == ()
    assert found.signature is None


MESSAGES = [line.split("\t", 1) for line in (SAMPLES / "messages.tsv").read_text().splitlines()]
TRACE = """\
[2026-11-29 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "sglang/srt/managers/scheduler.py", line 1, in run_batch
{message}
"""


@pytest.mark.parametrize(("category", "message"), MESSAGES)
def test_message_of_the_scheduler_gets_its_category(category: str, message: str) -> None:
    """Wordings of PyTorch, NCCL, CUDA and SGLang, each as the last line of a scheduler's traceback."""
    assert diagnose(records_of(TRACE.format(message=message))).category == category


FACTS: dict[str, dict[str, object]] = json.loads((SAMPLES / "facts.json").read_text())


@pytest.mark.parametrize("name", FACTS)
def test_sample_names_its_sizes_and_rank(name: str) -> None:
    """Beyond the category: which sizes disagree, of how many requests and draft tokens, on which rank."""
    found = diagnose_sample(name)
    wanted = FACTS[name]

    if "sizes" in wanted:
        assert found.sizes is not None
        assert [found.sizes.a, found.sizes.b] == wanted["sizes"]
    if "requests" in wanted:
        assert found.sizes is not None
        assert found.sizes.requests == wanted["requests"]
        assert found.sizes.draft_tokens == wanted["draft_tokens"]
    if "rank" in wanted:
        assert found.rank == wanted["rank"]
