"""Smoke with restarts by the playbook: bisection, and the measured threshold of speculation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wire.ground import Ground, make_ground

pytestmark = [pytest.mark.wire, pytest.mark.timeout(400)]
EAGLE = {"tp": 1, "speculative-algorithm": "EAGLE3", "speculative-num-draft-tokens": 4}


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with make_ground(tmp_path) as made:
        yield made


def test_bisection_restarts_the_server_by_its_playbook(ground: Ground) -> None:
    """The bracket 2..5 is searched to the exact level; the server lives at the end."""
    smoke = {"levels": [1, 2, 5], "requests": 2, "tokens": 4}
    ground.write_site("crash-above=3", smoke=smoke)
    assert ground.json("launch", "one", "--yes", "--no-smoke")["exit_code"] == 0

    document = ground.json("smoke", "one", "--bisect", "--yes", timeout_s=300)

    data = document["data"]
    assert document["exit_code"] == 60
    assert data["bracket"] == {"last_good": 3, "first_bad": 4}
    assert data["bisection"]["deterministic"] is True
    assert data["bisection"]["restarts"] >= 3
    assert len(ground.mains()) == 1
    assert data["diagnosis"]["category"] == "shape-mismatch"


def test_tune_measures_both_sides_and_leaves_the_site_as_it_says(ground: Ground) -> None:
    """A stand-in whose speculation gives three tokens a step never loses: keep it on."""
    ground.write_site(
        "itl-ms=10", args=EAGLE, smoke={"levels": [1, 2], "requests": 4, "tokens": 24}
    )

    planned = ground.json("speculation", "tune", "one", "--dry-run")
    before = ground.mains()
    document = ground.json(
        "speculation", "tune", "one", "--yes", "--profile", "quick", timeout_s=300
    )

    assert planned["outcome"] == "planned"
    assert before == []
    assert (document["exit_code"], document["outcome"]) == (0, "keep-on")
    assert [len(runs) for runs in document["data"]["runs"].values()] == [1, 1]
    main = ground.mains()
    assert len(main) == 1
    assert "--speculative-algorithm" in Path(f"/proc/{main[0]}/cmdline").read_text().split("\0")


def test_tune_without_speculation_is_refused(ground: Ground) -> None:
    """A server that does not speculate has no threshold."""
    document = ground.json("speculation", "tune", "one", "--yes")

    assert document["exit_code"] == 2
    assert ground.mains() == []
