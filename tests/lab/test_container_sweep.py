"""Container 129 is stopped, started anew, rebooted, shut down or locked inside each step of a restart.

opsctl is halted (SIGSTOP) at the point, the container's fate is sealed on the node, and opsctl goes on. The
run must end in a state that it names, and `opsctl resume` must bring the server up once that can be.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.lab.fixture import Lab
from tests.lab.stopping import cleared, codes, opsctl
from tests.lab.test_restart import mains

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

BEFORE_ASK = ["container", "lock", "look", "preflight", "stage", "known-failure", "ask"]
AFTER_ASK = ["collect", "stop", "gpu-memory", "sweep", "patch", "launch", "ready", "smoke"]
ENDS = ["settle", "record"]
INSIDE = [
    "hold:units.stop:5",  # between the first signal and the last exit
    "hold:gpu.read:1",
    "hold:launch.start:30",  # systemd is executing the server
    "hold:probe.request:5",  # the question of the ready step is on its way
]
SEALS = {
    "stop": [("stop", "129")],
    # the node ends what is not down by then; systemd as init can miss the end of our agent, and waits 10 s
    "reboot": [("reboot", "129", "--timeout", "1")],
    "start": [("stop", "129"), ("start", "129")],
    "shutdown": [("shutdown", "129")],
}
RUN = ("restart", "glm5", "--yes", "--json")
SNAPSHOT = ("run", "restart", "glm5", "--yes", "--json", "--set", "snapshot=yes")
SHUTDOWN = ("run", "stop", "glm5", "--yes", "--json", "--set", "shutdown=yes")


def at(*steps: str) -> list[str]:
    """Return the points at the beginning of steps, after the intent was written down."""
    return [f"stop:{step}" for step in steps]


@pytest.fixture
def node(clean_lab: Lab) -> Iterator[Lab]:
    with cleared(clean_lab, "ct129"):
        yield clean_lab
        clean_lab.restore()
        clean_lab.on("ct129", ["sh", "-c", "systemctl stop 'opsctl-*'; rm -rf /var/lib/opsctl"])


def site_of(lab: Lab, folder: Path) -> Path:
    """The node through its API; one short smoke level."""
    text = lab.instance.api_file.read_text()
    levels = '{"levels": [1, 2, 5, 10]}'
    assert levels in text
    path = folder / "opsctl.yaml"
    path.write_text(text.replace(levels, '{"levels": [1], "requests": 1, "tokens": 2}'))
    return path


class Held:
    """One restart that is halted at a point of its own, and let go on."""

    def __init__(self, lab: Lab, folder: Path, point: str, run: Sequence[str] = RUN) -> None:
        self.lab, self.folder, self.site = lab, folder, site_of(lab, folder)
        words = [*run, "--site", str(self.site), "--state", str(folder)]
        self.child = lab.popen([sys.executable, "-m", "tests.wire.cut_run", point, *words])
        self.out = b""

    def wait_until_held(self) -> bool:
        """Say whether it came to its point; False when it has ended without."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self._state() == "T":
                return True
            if self.child.poll() is not None:
                return False
            time.sleep(0.02)
        raise AssertionError("it neither ended nor came to its point")

    def go_on(self) -> tuple[int, Any]:
        """Let it go on, and return its exit code and document."""
        os.kill(self._pid(), signal.SIGCONT)
        self.child.send_signal(signal.SIGCONT)  # nsenter halts itself with its child
        out, err = self.child.communicate(timeout=150)
        assert out, err.decode()[-2000:]
        return self.child.returncode, json.loads(out)

    def end(self) -> None:
        if self.child.poll() is None:
            os.kill(self._pid(), signal.SIGKILL)
            self.child.send_signal(signal.SIGCONT)
            self.child.communicate(timeout=20)

    def _pid(self) -> int:
        """Return the pid of opsctl below nsenter, setpriv and env, which execute each other."""
        pid = self.child.pid
        while True:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            argv = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"tests.wire.cut_run" in argv and b"nsenter" not in argv.split(b"\0")[0]:
                return pid
            if not children:
                return pid
            pid = int(children[0])

    def _state(self) -> str:
        try:
            stat = Path(f"/proc/{self._pid()}/stat").read_text()
        except OSError:
            return "?"
        return stat.rsplit(")", 1)[1].split()[0]


def seal(lab: Lab, fate: str) -> None:
    for words in SEALS[fate]:
        done = lab.pct(*words)
        assert done.exit_code == 0, done.stderr


def check_sealed(lab: Lab, folder: Path, point: str, fate: str, run: Sequence[str] = RUN) -> None:
    """Run to the point, seal the container's fate, and look at what the run says; then resume it."""
    folder.mkdir()
    held = Held(lab, folder, point, run)
    try:
        assert held.wait_until_held(), f"{point} was not reached"
        seal(lab, fate)
        code, document = held.go_on()
    finally:
        held.end()
    where = (point, fate, document["outcome"], document["findings"])
    if document["outcome"] == "done":
        # the step that was held needed nothing of the container any more, or had its start in hand
        assert code == 0, where
    else:
        assert (document["outcome"], code in (30, 40)) == ("cut", True), where
        told = {"container-stopped", "container-restarted"} & codes(document)
        assert told, where
        assert "container 129 on pve1" in document["data"]["state"], where
        assert "resumable" in codes(document), where
    if document["outcome"] != "done" or not mains(lab, "ct129", 30000):
        words = ["resume", document["run"], "--yes", "--site", str(held.site)]
        if document["outcome"] == "done":
            words = ["restart", "glm5", "--yes", "--site", str(held.site)]
        code, after = opsctl(lab, folder, *words, timeout_s=150)
        assert (code, after["outcome"]) == (0, "done"), (where, after["findings"])
    found = mains(lab, "ct129", 30000)
    assert len(found) == 1, where
    assert failures(lab) == [], where


def failures(lab: Lab) -> list[Any]:
    """Return what the host believes to have failed: an end from outside is no knowledge of the server."""
    path = "/var/lib/opsctl/attempts.jsonl"
    lines = lab.on("ct129", ["/bin/sh", "-c", f"cat {path} || true"]).stdout.splitlines()
    attempts = [json.loads(line) for line in lines]
    return [one for one in attempts if one["outcome"] not in ("passed", "inconclusive")]


@pytest.mark.parametrize(("point", "fate"), [("stop:stop", "stop"), ("stop:ready", "stop")])
def test_a_container_that_ends_under_a_restart_is_told_and_resumed(
    node: Lab, tmp_path: Path, point: str, fate: str
) -> None:
    """Before the first signal, and while the new server starts: that one is launched again."""
    check_sealed(node, tmp_path / "run", point, fate)


def sweep(points: list[str], check: Callable[[str, Path], None], folder: Path, lab: Lab) -> None:
    """Check each point, and name all that failed; the lab is brought back after one."""
    failed = []
    for number, point in enumerate(points):
        begun = time.monotonic()
        try:
            check(point, folder / str(number))
        except (AssertionError, subprocess.TimeoutExpired) as error:
            failed.append(f"{point}: {error}")
            lab.restore()
        print(f"{point}: {time.monotonic() - begun:.1f} s", flush=True)
    assert not failed, f"{len(failed)} of {len(points)} points:\n" + "\n".join(failed)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("fate", "points"),
    [
        ("stop", [*at(*BEFORE_ASK, *AFTER_ASK, *ENDS), *INSIDE]),
        ("reboot", [*at(*BEFORE_ASK, *AFTER_ASK, *ENDS), *INSIDE]),
        ("shutdown", [*at("launch", "ready", "smoke"), *INSIDE]),
    ],
    ids=["stop", "reboot", "shutdown"],
)
def test_a_container_may_end_in_each_step(
    node: Lab, tmp_path: Path, fate: str, points: list[str]
) -> None:
    """Each step of the restart, and inside those that act. Every run ends named, and is continued."""
    sweep(points, lambda point, folder: check_sealed(node, folder, point, fate), tmp_path, node)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_container_that_was_found_stopped_may_be_started_anew_in_each_step(
    node: Lab, tmp_path: Path
) -> None:
    """Our own start is no restart; one by somebody after it is told, and the run is continued."""

    def check(point: str, folder: Path) -> None:
        seal(node, "stop")
        check_sealed(node, folder, point, "start")

    sweep(at(*BEFORE_ASK[1:], *AFTER_ASK, *ENDS), check, tmp_path, node)


def set_lock(lab: Lab) -> None:
    done = lab.on("pve1", ["/usr/bin/sed", "-i", "1i lock: backup", "/etc/pve/lxc/129.conf"])
    assert done.exit_code == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_lock_that_comes_meanwhile_is_in_nobodys_way(node: Lab, tmp_path: Path) -> None:
    """A backup begins inside any step: the run goes on, the lock stays."""

    def check(point: str, folder: Path) -> None:
        folder.mkdir()
        held = Held(node, folder, point)
        try:
            assert held.wait_until_held(), point
            set_lock(node)
            code, document = held.go_on()
        finally:
            held.end()
        assert (code, document["outcome"]) == (0, "done"), (point, document["findings"])
        assert node.pct("unlock", "129").exit_code == 0, "the lock was gone"
        assert len(mains(node, "ct129", 30000)) == 1, point

    sweep(at(*BEFORE_ASK, *AFTER_ASK, *ENDS), check, tmp_path, node)


@pytest.mark.slow
def test_a_restart_whose_lxc_attach_dies_is_resumed_without_a_second_launch(
    node: Lab, tmp_path: Path
) -> None:
    """The way in is gone, the server comes up all the same: `resume` finds it, and launches nothing."""
    held = Held(node, tmp_path, "stop:ready")
    try:
        assert held.wait_until_held()
        launched = mains(node, "ct129", 30000)
        done = node.on("pve1", ["/usr/bin/pkill", "-9", "-f", "^lxc-attach -n 129 --keep-env"])
        assert done.exit_code == 0, "there was no lxc-attach"
        code, cut = held.go_on()
    finally:
        held.end()
    words = ["resume", cut["run"], "--yes", "--site", str(held.site)]
    resumed, after = opsctl(node, tmp_path, *words, timeout_s=150)

    assert (cut["outcome"], code in (30, 40)) == ("cut", True), cut["findings"]
    assert (resumed, after["outcome"]) == (0, "done"), after["findings"]
    assert mains(node, "ct129", 30000) == launched
    assert failures(node) == []


@pytest.mark.slow
def test_a_resume_that_a_lock_refuses_can_be_resumed(node: Lab, tmp_path: Path) -> None:
    """Stopped and locked, as a backup in stop mode leaves it: exit 50 and still open; then it goes on."""
    folder = tmp_path / "run"
    folder.mkdir()
    held = Held(node, folder, "stop:launch")
    try:
        assert held.wait_until_held()
        seal(node, "stop")
        _, cut = held.go_on()
    finally:
        held.end()
    set_lock(node)
    words = ["resume", cut["run"], "--yes", "--site", str(held.site)]

    refused = opsctl(node, folder, *words, timeout_s=100)
    listed = opsctl(node, folder, "resume")[1]["data"]["runs"]
    assert node.pct("unlock", "129").exit_code == 0
    code, done = opsctl(node, folder, *words, timeout_s=150)

    assert (refused[0], refused[1]["outcome"]) == (50, "refused"), refused[1]
    assert {"container-locked", "resumable"} <= codes(refused[1])
    assert [row["id"] for row in listed] == [cut["run"]]
    assert (code, done["outcome"]) == (0, "done"), done["findings"]
    assert len(mains(node, "ct129", 30000)) == 1


@pytest.mark.slow
def test_a_container_that_somebody_starts_meanwhile_is_taken_as_it_is(
    node: Lab, tmp_path: Path
) -> None:
    """Found stopped, and started by a colleague before our step begins: nothing to start, no failure."""
    folder = tmp_path / "run"
    folder.mkdir()
    seal(node, "stop")
    held = Held(node, folder, "stop:container")
    try:
        assert held.wait_until_held()
        assert node.pct("start", "129").exit_code == 0
        code, document = held.go_on()
    finally:
        held.end()

    assert (code, document["outcome"]) == (0, "done"), document["findings"]
    assert len(mains(node, "ct129", 30000)) == 1


@pytest.mark.slow
def test_a_container_may_end_under_its_snapshot(node: Lab, tmp_path: Path) -> None:
    """The snapshot is of its storage, and is taken; what comes after finds the container gone, or anew."""

    def check(fate: str, folder: Path) -> None:
        check_sealed(node, folder, "stop:snapshot", fate, SNAPSHOT)

    try:
        sweep(["stop", "start", "reboot"], check, tmp_path, node)
    finally:
        delete_snapshots(node)


@pytest.mark.slow
def test_a_container_may_end_in_each_step_of_a_stop(node: Lab, tmp_path: Path) -> None:
    """What it was to stop is stopped then: the run or its `resume` proves that, and starts nothing."""
    code, up = opsctl(
        node,
        tmp_path,
        "restart",
        "glm5",
        "--yes",
        "--no-smoke",
        "--site",
        str(site_of(node, tmp_path)),
    )
    assert code == 0, up["findings"]

    def check(point: str, folder: Path) -> None:
        folder.mkdir()
        node.restore()
        held = Held(node, folder, point, SHUTDOWN)
        try:
            assert held.wait_until_held(), "not reached"
            seal(node, "stop")
            code, document = held.go_on()
        finally:
            held.end()
        where = (document["outcome"], document["findings"])
        assert (code, document["outcome"]) in ((0, "done"), (30, "cut"), (40, "cut")), where
        if code:
            assert "container-stopped" in codes(document), where
            words = ["resume", document["run"], "--yes", "--site", str(held.site)]
            code, document = opsctl(node, folder, *words, timeout_s=60)
        assert (code, document["outcome"]) == (0, "done"), (where, document["findings"])
        assert node.pct("status", "129").stdout == "status: stopped\n"

    sweep(
        at("lock", "look", "ask", "collect", "stop", "gpu-memory", "sweep"), check, tmp_path, node
    )


@pytest.mark.slow
def test_a_container_may_end_or_come_back_under_its_own_shutdown(node: Lab, tmp_path: Path) -> None:
    """Down already: nothing to do. Started anew meanwhile: it is shut down all the same."""
    for fate, outcome in (("stop", "unchanged"), ("reboot", "done"), ("start", "done")):
        folder = tmp_path / fate
        folder.mkdir()
        node.restore()
        held = Held(node, folder, "stop:container-shutdown", SHUTDOWN)
        try:
            assert held.wait_until_held()
            seal(node, fate)
            code, document = held.go_on()
        finally:
            held.end()
        assert (code, document["outcome"]) == (0, "done"), (fate, document["findings"])
        assert document["data"]["steps"][-1]["outcome"] == outcome, fate
        assert node.pct("status", "129").stdout == "status: stopped\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "run"), [("stop:snapshot", SNAPSHOT), ("stop:container-shutdown", SHUTDOWN)]
)
def test_a_lock_that_comes_under_a_step_on_the_container_is_exit_50(
    node: Lab, tmp_path: Path, point: str, run: tuple[str, ...]
) -> None:
    """Its holder is told, the container runs on, the lock stays; without it `resume` goes on."""
    held = Held(node, tmp_path, point, run)
    try:
        assert held.wait_until_held()
        set_lock(node)
        code, document = held.go_on()
    finally:
        held.end()
    assert (code, document["outcome"]) == (50, "refused"), document["findings"]
    assert "container-locked" in codes(document)
    assert node.pct("status", "129").stdout == "status: running\n"
    assert node.pct("unlock", "129").exit_code == 0, "the lock was gone"
    words = ["resume", document["run"], "--yes", "--site", str(held.site)]
    try:
        code, after = opsctl(node, tmp_path, *words, timeout_s=150)
    finally:
        delete_snapshots(node)
    assert (code, after["outcome"]) == (0, "done"), after["findings"]


def delete_snapshots(lab: Lab) -> None:
    for line in lab.on("pve1", ["/bin/cat", "/etc/pve/lxc/129.conf"]).stdout.splitlines():
        if line.startswith("[opsctl-"):
            lab.pct("delsnapshot", "129", line[1:-1])
