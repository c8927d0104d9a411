"""A run that is cut anywhere is continued: in the end one server runs, and everything is written down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.ledger import Ledger
from opsctl.runner import RESUMABLE
from tests.schemas import read_document
from tests.wire.ground import Ground, make_ground, wait_for

pytestmark = [pytest.mark.wire, pytest.mark.timeout(900)]

BEFORE_ASK = ["lock", "look", "preflight", "stage", "known-failure", "ask"]
AFTER_ASK = ["collect", "stop", "gpu-memory", "sweep", "patch", "launch", "ready", "smoke"]
STEPS = [*BEFORE_ASK, *AFTER_ASK, "settle", "record"]
BOUNDARIES = [f"{kind}:{step}" for step in STEPS for kind in ("begin", "act", "end")]
INSIDE = [
    *(f"call:launch.start:{ms}" for ms in (0, 5, 20, 60, 150)),
    *(f"call:process.signal_all:{ms}" for ms in (0, 5, 30)),
    *(f"call:process.signal:{ms}" for ms in (0, 5)),
    "call:lock.acquire:5",
    "call:preflight.arguments:20",
    "call:launch.remember:2",
    "call:attempts.append:0",
    "call:attempts.append:2",
    "call:probe.request:10",
]
FEW = [
    "begin:stop",
    "act:stop",
    "begin:launch",
    "act:launch",
    "call:launch.start:20",
    "act:ready",
    "act:record",
]


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with make_ground(tmp_path) as made:
        yield made


def cut(ground: Ground, point: str) -> int:
    """Run a restart that dies at ``point``; return its exit code, -9 when it died."""
    words = ground.command("restart", "one", "--yes")[3:]
    done = subprocess.run(
        [sys.executable, "-m", "tests.wire.cut_run", point, *words],
        capture_output=True,
        timeout=120,
        env=ground.environment(),
        cwd=Path(__file__).resolve().parents[2],
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode


def open_runs(ground: Ground) -> list[str]:
    """Return the runs that the ledger holds as not ended."""
    ledger = Ledger.open(ground.folder / "state")
    try:
        return [row.id for row in ledger.runs() if row.outcome in RESUMABLE]
    finally:
        ledger.close()


def open_run(ground: Ground) -> str:
    runs = open_runs(ground)
    assert len(runs) == 1, runs
    return runs[0]


def marker(pid: int) -> str:
    """Return the run that launched a process, from its environment."""
    environ = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return next(item.partition("=")[2] for item in environ if item.startswith("OPSCTL_RUN="))


def attempts_of(ground: Ground, run: str) -> list[str]:
    lines = (ground.host_state / "attempts.jsonl").read_text().splitlines()
    return [one["outcome"] for one in map(json.loads, lines) if one["run"] == run]


def check_continued(ground: Ground, point: str) -> None:
    """Cut a restart at ``point``, continue it, and look at what the world is like."""
    code = cut(ground, point)
    if code != -signal.SIGKILL:
        pytest.skip(f"{point} was not reached (exit {code})")
    if point.startswith("call:") and not open_runs(ground):
        check_ended(ground)
        pytest.skip(f"{point}: the run had ended by then")
    run = open_run(ground)

    document = ground.json("resume", run, "--yes", timeout_s=120)

    mains = ground.mains()
    assert document["outcome"] == "done", (point, document["findings"])
    assert document["run"] == run
    assert len(mains) == 1, (point, mains)
    assert marker(mains[0]) == run, point
    assert {os.getsid(pid) for pid in ground.members()} == {mains[0]}, point
    assert attempts_of(ground, run)[-1] == "passed", point
    assert open_runs(ground) == []


def check_ended(ground: Ground) -> None:
    """Check that the newest run is the one that stands: it ended well, and the server is its own."""
    ledger = Ledger.open(ground.folder / "state")
    try:
        newest = next(iter(ledger.runs()))
    finally:
        ledger.close()
    assert newest.outcome == "done", newest
    assert [marker(pid) for pid in ground.mains()] == [newest.id]


@pytest.mark.parametrize("point", FEW)
def test_a_cut_run_is_continued(ground: Ground, point: str) -> None:
    """The points that hurt most: around the stop, around the launch, before the record."""
    assert ground.json("restart", "one", "--yes", "--no-smoke")["outcome"] == "done"

    check_continued(ground, point)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("points", [BOUNDARIES, INSIDE], ids=["boundaries", "inside"])
def test_a_run_may_be_cut_anywhere(ground: Ground, points: list[str]) -> None:
    """kill -9 at each boundary and inside each step that acts; each cut run replaces the one before."""
    ground.write_site(smoke={"levels": [1], "requests": 1, "tokens": 2})
    assert ground.json("restart", "one", "--yes", "--no-smoke")["outcome"] == "done"
    missed = []

    for point in points:
        print(point, flush=True)
        try:
            check_continued(ground, point)
        except pytest.skip.Exception:
            missed.append(point)

    assert not set(missed) & set(BOUNDARIES), missed


def test_a_launch_that_died_meanwhile_is_a_crash_not_a_second_launch(ground: Ground) -> None:
    """Cut in ready, and the server dies before the resume: its end is found, and nothing is started again."""
    code = cut(ground, "begin:ready")
    assert code == -signal.SIGKILL
    run = open_run(ground)
    wait_for(lambda: len(ground.mains()) == 1)
    os.kill(ground.mains()[0], signal.SIGKILL)
    wait_for(lambda: not ground.mains())

    document = ground.json("resume", run, "--yes")

    assert document["exit_code"] == 60
    assert ground.mains() == []
    assert attempts_of(ground, run)[-1] == "crashed"


def test_a_newer_run_makes_a_cut_one_stale(ground: Ground) -> None:
    """Somebody else restarted it meanwhile: the cut run must not stop that server."""
    cut(ground, "begin:stop")
    run = open_run(ground)
    assert ground.json("restart", "one", "--yes", "--no-smoke", state="other")["outcome"] == "done"
    before = ground.mains()

    document = ground.json("resume", run, "--yes")

    assert document["exit_code"] == 50
    assert "overtaken" in [finding["code"] for finding in document["findings"]]
    assert ground.mains() == before


def test_two_operators_at_once(ground: Ground) -> None:
    """The second, with a site file of its own that names the server differently, is told who and why."""
    ground.write_site(faults="startup-s=12")
    first = subprocess.Popen(
        ground.command("restart", "one", "--yes", "--no-smoke", "--reason", "the first"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ground.environment(),
    )
    wait_for(lambda: ground.mains())

    other = ground.folder / "other.yaml"
    ground.write_site(path=other)
    other.write_text(other.read_text().replace("one:", "renamed:"))
    words = [
        "restart",
        "renamed",
        "--yes",
        "--json",
        "--site",
        str(other),
        "--state",
        str(ground.folder / "s2"),
    ]
    second = subprocess.run(
        [sys.executable, "-m", "opsctl", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=ground.environment(),
        check=False,
    )

    document: dict[str, Any] = read_document(second.stdout)
    assert second.returncode == 50
    locked = [f["text"] for f in document["findings"] if f["code"] == "locked"]
    assert locked
    assert "the first" in locked[0]
    assert first.wait(timeout=60) == 0
    assert len(ground.mains()) == 1


@pytest.mark.slow
def test_a_frozen_opsctl_signals_nothing_when_it_wakes(ground: Ground) -> None:
    """SIGSTOP for 40 s: its agent ends, another operator gets the lock, the frozen one finds itself cut."""
    assert ground.json("restart", "one", "--yes", "--no-smoke")["outcome"] == "done"
    words = ground.command("restart", "one", "--yes", "--no-smoke", "--json")[3:]
    frozen = subprocess.Popen(
        [sys.executable, "-m", "tests.wire.cut_run", "stop:stop", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=ground.environment(),
        cwd=Path(__file__).resolve().parents[2],
    )
    stat = Path(f"/proc/{frozen.pid}/stat")
    wait_for(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "T", 60)
    time.sleep(40)
    assert ground.json("restart", "one", "--yes", "--no-smoke", state="other")["outcome"] == "done"
    before = ground.mains()

    os.kill(frozen.pid, signal.SIGCONT)
    out, _ = frozen.communicate(timeout=60)

    document = read_document(out)
    assert document["outcome"] == "cut"
    assert document["exit_code"] in (30, 40)
    assert ground.mains() == before


def test_ctrl_c_once_finishes_the_step_and_says_where_things_are(ground: Ground) -> None:
    """SIGINT while the server starts: exit 130, the server goes on starting, resume proves it."""
    ground.write_site(faults="startup-s=6")
    child = subprocess.Popen(
        ground.command("restart", "one", "--yes", "--no-smoke", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=ground.environment(),
    )
    wait_for(lambda: ground.mains())
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=30)

    document = read_document(out)
    assert document["exit_code"] == 130
    assert "not proven ready" in document["data"]["state"]
    assert len(ground.mains()) == 1
    check_what_is_said_of_an_open_run(ground, document["run"])
    resumed = ground.json("resume", document["run"], "--yes")
    assert resumed["outcome"] == "done"
    assert len(ground.mains()) == 1


def check_what_is_said_of_an_open_run(ground: Ground, run: str) -> None:
    """`history` gives the reason, `status` the way on; a "no" to its resume tells of the whole run."""
    (row,) = ground.json("history")["data"]["runs"]
    assert row["why"].startswith("ready: interrupted while the server was starting")
    (told,) = [one for one in ground.json("status")["findings"] if one["code"] == "run-open"]
    assert f"run {run} (restart) is open: it was cut at step ready" in told["text"]
    assert told["next"].startswith(f"opsctl resume {run}")
    refused = ground.json("resume", run)
    assert refused["exit_code"] == 50
    assert "the new server was launched, and it is not proven ready" in refused["data"]["state"]
    (way,) = [one["next"] for one in refused["findings"] if one["code"] == "resumable"]
    assert way.startswith(f"opsctl resume {run} --yes")


def test_a_run_that_began_nothing_is_not_resumable(ground: Ground) -> None:
    """A container in the site file that there is not: the run has failed, and nothing is open."""
    wrong = {"node": {"local": True}, "here": {"pct": 999999999, "via": "node"}}
    ground.write_site(top={"hosts": wrong})

    document = ground.json("restart", "one", "--yes", "--no-smoke")

    assert (document["outcome"], document["exit_code"]) == ("failed", 30)
    assert document["findings"][0]["next"]
    assert not any("opsctl resume" in one["next"] for one in document["findings"])
    assert ground.json("resume")["data"]["runs"] == []


def test_ctrl_c_twice_stops_at_once_and_says_what_may_be_half_done(ground: Ground) -> None:
    """The second signal does not wait for the step; the run stays open and is continued."""
    ground.write_site(faults="startup-s=6")
    child = subprocess.Popen(
        ground.command("restart", "one", "--yes", "--no-smoke", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ground.environment(),
    )
    wait_for(lambda: ground.mains())
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=30)

    document = read_document(out)
    assert document["exit_code"] == 130
    assert len(ground.mains()) == 1
    assert open_run(ground) == document["run"]
    assert ground.json("resume", document["run"], "--yes")["outcome"] == "done"
    assert len(ground.mains()) == 1


def test_a_full_disk_under_the_ledger_leaves_the_server_alone(ground: Ground) -> None:
    """Exit 50 before anything is signalled: nothing is changed that cannot be written down."""
    assert ground.json("restart", "one", "--yes", "--no-smoke")["outcome"] == "done"
    before = ground.mains()
    small = ground.folder / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no tmpfs may be mounted here")
    try:
        document = ground.json("restart", "one", "--yes", "--no-smoke", state="small")
    finally:
        subprocess.run(["umount", str(small)], check=False)

    assert document["exit_code"] == 50
    assert document["findings"][0]["code"] == "ledger-not-writable"
    assert ground.mains() == before


def test_resume_alone_lists_what_is_open(ground: Ground) -> None:
    """Nothing is open, then one run is, by id, server and reason."""
    assert ground.json("resume")["data"]["runs"] == []

    cut(ground, "begin:look")

    runs = ground.json("resume")["data"]["runs"]
    assert [(run["server"], run["outcome"]) for run in runs] == [("one", None)]


def test_a_finished_run_is_not_resumed(ground: Ground) -> None:
    """A new attempt is a new run."""
    run = ground.json("restart", "one", "--yes", "--no-smoke")["run"]

    document = ground.json("resume", run, "--yes")

    assert document["exit_code"] == 2
