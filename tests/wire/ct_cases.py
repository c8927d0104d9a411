"""`opsctl ct` against any peer: what is done, what is refused and how it reads; a lock stays a lock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli import run
from tests.schemas import read_document
from tests.wire.pve_peer import Peer, write_site

Ct = Callable[..., tuple[int, dict[str, Any]]]


def codes(document: dict[str, Any]) -> list[str]:
    return [item["code"] for item in document["findings"]]


def make_ct(site: Path, capsys: pytest.CaptureFixture[str]) -> Ct:
    """Return a function that runs `opsctl ct ... --json` and returns exit code and document."""

    def call(*words: str) -> tuple[int, dict[str, Any]]:
        code = run(["ct", words[0], "--json", "--site", str(site), *words[1:]])
        document: dict[str, Any] = read_document(capsys.readouterr().out)
        assert document["exit_code"] == code
        return code, document

    return call


class CtCases:
    """Subclass it with a fixture ``peer``."""

    @pytest.fixture
    def ct(self, peer: Peer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ct:
        return make_ct(write_site(tmp_path, peer.hosts(peer.access())), capsys)

    def test_status_shows_state_and_node(self, ct: Ct, peer: Peer) -> None:
        """The server's name leads to its container; a stopped one is exit 20 with how to start it."""
        peer.set_state("running")
        code, seen = ct("status", "glm5")
        peer.set_state("stopped")
        down, stopped = ct("status", "glm5")

        assert (code, seen["schema"], seen["outcome"]) == (0, "opsctl.ct-status/1", "running")
        assert (seen["data"]["vmid"], seen["data"]["node"]) == (130, "pve1")
        assert seen["data"]["servers"] == ["glm5"]
        assert (down, stopped["findings"][0]["next"].split(" --")[0]) == (
            20,
            "opsctl ct start glm5",
        )

    @pytest.mark.parametrize(
        ("verb", "before", "after", "outcome"),
        [
            ("start", "stopped", "running", "started"),
            ("stop", "running", "stopped", "stopped"),
            ("shutdown", "running", "stopped", "shut-down"),
            ("reboot", "running", "running", "rebooted"),
        ],
    )
    def test_each_verb_ends_when_the_state_is_seen(
        self, ct: Ct, peer: Peer, verb: str, before: str, after: str, outcome: str
    ) -> None:
        """A dry run changes nothing, no yes is exit 50, and with it the state follows."""
        peer.set_state(before)

        planned = ct(verb, "130", "--dry-run")
        refused = ct(verb, "130")
        assert (planned[1]["outcome"], refused[0], peer.state()) == ("planned", 50, before)
        code, done = ct(verb, "130", "--yes")

        assert (code, done["outcome"], peer.state()) == (0, outcome, after)
        assert done["data"]["task"].startswith("UPID:pve1:")
        assert set(codes(done)) <= {"locks-not-told"}  # where there is no way inside

    @pytest.mark.parametrize(("verb", "state"), [("start", "running"), ("stop", "stopped")])
    def test_what_is_so_already_is_left_alone(
        self, ct: Ct, peer: Peer, verb: str, state: str
    ) -> None:
        """Idempotent: exit 0 without a question and without a task."""
        peer.set_state(state)

        code, done = ct(verb, "130")

        assert (code, done["outcome"]) == (0, f"already-{state}")

    def test_a_locked_container_is_refused_with_its_holder_and_stays_locked(
        self, ct: Ct, peer: Peer
    ) -> None:
        """The backup's task, its user and its age are named; exit 50; the lock is still there."""
        peer.set_state("stopped")
        peer.set_lock("backup")
        with peer.running_task("vzdump", "backup@pve", 720):
            code, refused = ct("start", "130", "--yes")
            looked, seen = ct("status", "130")

        text = refused["findings"][0]["text"]
        assert (code, codes(refused), looked) == (50, ["container-locked"], 20)
        assert "vzdump of backup@pve" in text
        assert "12 min" in text
        assert (peer.lock(), peer.state()) == ("backup", "stopped")
        assert seen["data"]["lock"]["user"] == "backup@pve"
        assert 715 <= seen["data"]["lock"]["age_s"] <= 780

    def test_a_lock_that_no_task_holds_is_told_so(self, ct: Ct, peer: Peer) -> None:
        """What is left of a killed task: the words to clear it by hand, and no clearing."""
        peer.set_state("stopped")
        peer.set_lock("backup")

        code, refused = ct("start", "130", "--yes")

        assert (code, peer.lock(), peer.state()) == (50, "backup", "stopped")
        assert "no running task" in refused["findings"][0]["text"]
        assert "pct unlock 130" in refused["findings"][0]["next"]

    def test_a_task_that_fails_is_exit_20_with_its_log(self, ct: Ct, peer: Peer) -> None:
        """The node took the order, and the start failed."""
        peer.set_state("stopped")
        peer.fail_task("vzstart", "startup for container '130' failed")

        code, failed = ct("start", "130", "--yes")

        assert (code, peer.state()) == (20, "stopped")
        assert "startup for container '130' failed" in failed["findings"][0]["text"]

    def test_a_start_with_warnings_is_done_and_says_so(self, ct: Ct, peer: Peer) -> None:
        """PVE's ``WARNINGS: 2``: exit 0, and how many."""
        peer.set_state("stopped")
        peer.warn_start()

        code, done = ct("start", "130", "--yes")

        assert (code, done["outcome"], codes(done)) == (0, "started", ["task-warnings"])
        assert "2 warnings" in done["findings"][0]["text"]

    def test_a_reboot_of_a_stopped_container_says_start(self, ct: Ct, peer: Peer) -> None:
        """Nothing is started that was not asked for."""
        peer.set_state("stopped")

        code, refused = ct("reboot", "130", "--yes")

        assert (code, peer.state()) == (20, "stopped")
        assert refused["findings"][0]["next"].startswith("opsctl ct start 130")

    def test_a_container_that_does_not_shut_down_runs_on(self, ct: Ct, peer: Peer) -> None:
        """A stubborn init: exit 20 for shutdown and reboot, nothing is killed; only --force ends it."""
        peer.set_stubborn()

        plan = ct("reboot", "130", "--timeout", "1", "--dry-run")[1]["data"]["plan"]
        tried = [ct(verb, "130", "--timeout", "1", "--yes") for verb in ("shutdown", "reboot")]
        left = peer.state()
        code, forced = ct("shutdown", "130", "--timeout", "1", "--force", "--yes")

        assert plan[1] == "if it has not shut down after 1 s, leave it running and say so"
        for found, document in tried:
            finding = document["findings"][0]
            assert (found, finding["code"], finding["subject"]) == (20, "did-not-shut-down", "130")
            assert "within 1 s; it still runs, and nothing was killed" in finding["text"]
            assert "opsctl ct stop 130" in finding["next"]
        assert left == "running"
        assert (code, forced["outcome"], peer.state()) == (0, "shut-down", "stopped")
        assert "container-forced" in codes(forced)

    def test_a_container_whose_init_is_stubborn_is_rebooted_by_force(
        self, ct: Ct, peer: Peer
    ) -> None:
        """It is stopped as asked, started again, and both are told."""
        peer.set_stubborn()

        code, done = ct("reboot", "130", "--timeout", "1", "--force", "--yes")

        assert (code, done["outcome"], peer.state()) == (0, "rebooted", "running")
        assert "container-forced" in codes(done)

    def test_snapshots_are_taken_and_only_own_ones_pruned(self, ct: Ct, peer: Peer) -> None:
        """keep 2: the oldest of ours goes after the new one is there; the operator's own stays."""
        for age, name in enumerate(["opsctl-c", "opsctl-b", "mine"], 1):
            peer.set_snapshot(name, age)

        planned = ct("snapshot", "130", "--keep", "2", "--dry-run")
        assert peer.snapshots() == ["mine", "opsctl-b", "opsctl-c"]
        code, done = ct("snapshot", "130", "--keep", "2", "--reason", "before the patch", "--yes")

        made = done["data"]["snapshot"]
        assert (code, done["outcome"]) == (0, "taken")
        assert peer.snapshots() == sorted(["mine", "opsctl-c", made])
        assert done["data"]["deleted"] == ["opsctl-b"]
        assert any("opsctl-b" in line for line in planned[1]["data"]["plan"])
        shown = {row["name"]: row for row in ct("status", "130")[1]["data"]["snapshots"]}
        assert shown[made]["description"] == "before the patch"
        assert (shown[made]["own"], shown["mine"]["own"]) == (True, False)

    @pytest.mark.parametrize(
        ("words", "gone"),
        [
            (("--older-than", "5"), ["opsctl-c", "opsctl-b"]),
            (("--keep", "1", "--older-than", "15"), ["opsctl-c"]),
        ],
    )
    def test_own_snapshots_are_pruned_by_age(
        self, ct: Ct, peer: Peer, words: tuple[str, ...], gone: list[str]
    ) -> None:
        """Older than so many days; with a count only what is beyond both. The operator's own stays."""
        for name, age in (("opsctl-a", 1), ("opsctl-b", 10), ("opsctl-c", 20), ("mine", 99)):
            peer.set_snapshot(name, age)

        code, done = ct("snapshot", "130", *words, "--yes")

        left = {"opsctl-a", "opsctl-b", "opsctl-c", "mine", done["data"]["snapshot"]} - set(gone)
        assert (code, done["data"]["deleted"]) == (0, gone)
        assert peer.snapshots() == sorted(left)

    def test_a_storage_without_snapshots_deletes_nothing(self, ct: Ct, peer: Peer) -> None:
        """The node says why; the old snapshots stay."""
        peer.set_snapshot("opsctl-a", 9)
        peer.forbid_snapshots()

        code, failed = ct("snapshot", "130", "--keep", "1", "--yes")

        assert (code, peer.snapshots()) == (20, ["opsctl-a"])
        assert "snapshot feature is not available" in failed["findings"][0]["text"]

    def test_rollback_brings_back_and_starts_only_on_request(self, ct: Ct, peer: Peer) -> None:
        """An unknown name is exit 2 with the known ones; a running container ends stopped, or started."""
        peer.set_state("running")
        ct("snapshot", "130", "--name", "opsctl-clean", "--yes")

        code, unknown = ct("rollback", "130", "nope", "--yes")
        assert (code, peer.state()) == (2, "running")
        assert "opsctl-clean" in unknown["findings"][0]["next"]
        assert ct("rollback", "130", "opsctl-clean", "--dry-run")[1]["outcome"] == "planned"
        assert peer.state() == "running"
        code, done = ct("rollback", "130", "opsctl-clean", "--yes")
        assert (code, done["data"]["after"], peer.state()) == (0, "stopped", "stopped")
        code, done = ct("rollback", "130", "opsctl-clean", "--start", "--yes")
        assert (code, done["data"]["after"], peer.state()) == (0, "running", "running")

    def test_a_container_that_does_not_exist_is_told_in_the_nodes_words(self, ct: Ct) -> None:
        """Looked, and it is not there: 20."""
        code, absent = ct("status", "998")

        assert code == 20
        assert "lxc/998.conf' does not exist" in absent["findings"][0]["text"]
