"""The playbooks of the runbooks on what they are for: a hung server, memory to be freed, a look."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wire.ground import Ground, make_ground

pytestmark = [pytest.mark.wire, pytest.mark.timeout(180)]


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with make_ground(tmp_path) as made:
        yield made


@pytest.mark.slow
def test_a_hung_server_is_proven_hung_kept_and_replaced_at_once(ground: Ground) -> None:
    """Health says 200 and no token comes: exit 60; its evidence is kept; KILL without the long grace."""
    ground.write_site(faults="hang-after-tokens=40,ignore-term=1", stop={"grace_s": 100})
    assert ground.json("launch", "one", "--yes", "--no-smoke")["exit_code"] == 0
    old = ground.mains()

    smoke = ground.json(
        "smoke", "one", "--levels", "1", "--tokens", "64", "--stall", "2", "--allow-live"
    )
    looked = ground.json("run", "evidence", "one", "--yes")
    untouched = ground.mains()
    ground.write_site(stop={"grace_s": 100})
    begun = time.monotonic()
    document = ground.json("run", "restart-hung", "one", "--yes", "--set", "smoke=false")
    seconds = time.monotonic() - begun

    assert (smoke["exit_code"], smoke["outcome"]) == (60, "hung")
    assert looked["exit_code"] == 0
    assert untouched == old
    assert document["exit_code"] == 0, document["findings"]
    assert seconds < 100  # the grace was not waited for
    assert len(ground.mains()) == 1
    assert ground.mains() != old


def test_free_gpus_stops_and_proves_and_is_done_when_there_is_nothing(ground: Ground) -> None:
    """The server goes, what it left is swept, no new one comes; a second time nothing changes."""
    assert ground.json("launch", "one", "--yes", "--no-smoke")["exit_code"] == 0

    first = ground.json("run", "free-gpus", "one", "--yes")
    second = ground.json("run", "free-gpus", "one", "--yes", "--set", "hard=true")

    assert (first["exit_code"], second["exit_code"]) == (0, 0)
    assert ground.mains() == []
    steps = {step["name"]: step["outcome"] for step in second["data"]["steps"]}
    assert steps["stop"] == "unchanged"
    assert {one["outcome"] for one in first["data"]["stop"]["processes"]} & {"terminated", "ended"}
