"""Runs that act on container 129 through the node's API: snapshot before, shutdown after, start again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.fixture import Lab
from tests.lab.stopping import cleared, codes, opsctl
from tests.lab.test_restart import mains

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.fixture
def node(clean_lab: Lab) -> Iterator[Lab]:
    """Container 129 without snapshots of opsctl, and afterwards as before."""
    with cleared(clean_lab, "ct129"):
        yield clean_lab
        clean_lab.restore()
        clean_lab.on("ct129", ["sh", "-c", "systemctl stop 'opsctl-*'; rm -rf /var/lib/opsctl"])
        for name in snapshots(clean_lab):
            clean_lab.pct("delsnapshot", "129", name)


def snapshots(lab: Lab) -> list[str]:
    lines = lab.on("pve1", ["/bin/cat", "/etc/pve/lxc/129.conf"]).stdout.splitlines()
    return sorted(line[1:-1] for line in lines if line.startswith("["))


def playbook(lab: Lab, state: Path, name: str, *sets: str) -> tuple[int, Any]:
    """Run a playbook for glm5 with inputs, through the API."""
    words = [word for item in sets for word in ("--set", item)]
    site = ["--site", str(lab.instance.api_file)]
    return opsctl(lab, state, "run", name, "glm5", "--yes", *words, *site, timeout_s=150)


def outcome_of(document: Any, step: str) -> str:
    return next(row["outcome"] for row in document["data"]["steps"] if row["name"] == step)


def test_a_restart_takes_a_snapshot_first_and_a_failing_one_ends_it(
    node: Lab, tmp_path: Path
) -> None:
    """Named after the run; when the next one fails, the running server keeps its pid."""
    code, first = playbook(node, tmp_path, "restart", "smoke=no", "snapshot=yes", "keep=1")
    assert (code, outcome_of(first, "snapshot")) == (0, "done"), first["findings"]
    assert snapshots(node) == [f"opsctl-{first['run']}"]
    before = mains(node, "ct129", 30000)

    node.switch(fail={"vzsnapshot": "out of space on thin pool"})
    code, failed = playbook(node, tmp_path, "restart", "smoke=no", "snapshot=yes", "keep=1")
    assert (code, outcome_of(failed, "snapshot"), outcome_of(failed, "stop")) == (
        20,
        "failed",
        "skipped",
    )
    assert "out of space on thin pool" in str(failed["findings"])
    assert failed["data"]["state"] == "the running server was not touched"
    assert mains(node, "ct129", 30000) == before


@pytest.mark.slow
def test_a_storage_without_snapshots_is_told_before_and_after(node: Lab, tmp_path: Path) -> None:
    """The plan says it, the run goes on without; with require_snapshot it is refused."""
    node.switch(no_snapshots=True)
    site = ("--site", str(node.instance.api_file))
    words = ("run", "launch", "glm5", "--dry-run", "--set", "snapshot=yes", *site)
    planned = opsctl(node, tmp_path, *words)[1]["data"]["plan"]

    must = playbook(node, tmp_path, "launch", "smoke=no", "snapshot=yes", "require_snapshot=yes")
    code, without = playbook(node, tmp_path, "launch", "smoke=no", "snapshot=yes")

    lines = next(row["lines"] for row in planned if row["step"] == "snapshot")
    assert "storage of container 129 on pve1 cannot take any; the run goes on" in lines[0]
    assert (must[0], outcome_of(must[1], "launch")) == (50, "skipped")
    assert (code, outcome_of(without, "snapshot")) == (0, "unchanged")
    assert "no-snapshot" in codes(without)


@pytest.mark.slow
def test_a_stop_shuts_the_container_down_and_a_restart_brings_it_up(
    node: Lab, tmp_path: Path
) -> None:
    """The last step of the one, the first of the other; the plan of each says so before."""
    site = str(node.instance.api_file)
    words = ("run", "stop", "glm5", "--dry-run", "--set", "shutdown=yes", "--site", site)
    planned = opsctl(node, tmp_path, *words)[1]["data"]["plan"]
    assert planned[-1]["lines"] == [
        "shut down container 129 on pve1; after 60 s then leave it running and say so"
    ]
    assert playbook(node, tmp_path, "launch", "smoke=no")[0] == 0

    code, stopped = playbook(node, tmp_path, "stop", "shutdown=yes")

    assert (code, outcome_of(stopped, "container-shutdown")) == (0, "done"), stopped["findings"]
    assert node.pct("status", "129").stdout == "status: stopped\n"
    code, done = playbook(node, tmp_path, "restart", "smoke=no")
    assert (code, outcome_of(done, "container")) == (0, "done"), done["findings"]
    assert len(mains(node, "ct129", 30000)) == 1


@pytest.mark.parametrize("words", [("stop", "glm5"), ("kill", "glm5"), ("run", "stop", "glm5")])
def test_a_server_in_a_stopped_container_is_stopped(
    node: Lab, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Nothing of it can run: exit 0 with the GPUs proven free on the node, and the container stays down."""
    assert node.pct("stop", "129").exit_code == 0
    site = ("--yes", "--site", str(node.instance.api_file))

    code, stopped = opsctl(node, tmp_path, *words, *site)

    gpus = stopped["data"].get("gpus") or stopped["data"]["gpu verify"]["gpus"]
    assert (code, len(gpus), {gpu["state"] for gpu in gpus}) == (0, 8, {"free"})
    assert "container-stopped" in codes(stopped)
    assert node.pct("status", "129").stdout == "status: stopped\n"


HANG = "trap '' TERM; exec sleep 7351"  # an ignored signal stays ignored


@pytest.mark.slow
def test_a_container_that_does_not_shut_down_runs_on_until_it_may_be_stopped(
    node: Lab, tmp_path: Path
) -> None:
    """A unit inside ignores TERM: exit 20, the server is stopped, the container is not; `resume` asks again.

    With ``force`` it is stopped at once, and that is told.
    """
    made = ["systemd-run", "--unit=lab-hang", "-p", "TimeoutStopSec=600", "sh", "-c", HANG]
    assert node.on("ct129", made).exit_code == 0
    code, failed = playbook(node, tmp_path, "stop", "shutdown=yes", "shutdown_s=2")
    finding = next(one for one in failed["findings"] if one["code"] == "did-not-shut-down")
    left = node.pct("status", "129").stdout
    hangs = node.on("ct129", ["/usr/bin/pgrep", "-f", "^sleep 7351$"]).stdout
    words = ("resume", failed["run"], "--yes", "--site", str(node.instance.api_file))
    again, resumed = opsctl(node, tmp_path, *words, timeout_s=60)
    node.on("ct129", ["/usr/bin/kill", "-9", *hangs.split()])
    gone, done = opsctl(node, tmp_path, *words, timeout_s=60)

    assert (code, outcome_of(failed, "container-shutdown")) == (20, "failed")
    assert "did not shut down within 2 s; it still runs, and nothing was killed" in finding["text"]
    assert f"opsctl resume {failed['run']}" in finding["next"]
    assert (left, len(hangs.split())) == ("status: running\n", 1)
    assert (again, outcome_of(resumed, "container-shutdown")) == (20, "failed")
    assert (gone, done["outcome"]) == (0, "done"), done["findings"]
    assert node.pct("status", "129").stdout == "status: stopped\n"

    node.restore()
    assert node.on("ct129", made).exit_code == 0
    code, forced = playbook(node, tmp_path, "stop", "shutdown=yes", "shutdown_s=2", "force=yes")

    assert (code, "container-forced" in codes(forced)) == (0, True), forced["findings"]
    assert node.pct("status", "129").stdout == "status: stopped\n"
