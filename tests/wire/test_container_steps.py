"""The steps that act on the server's container, against fakepve: snapshot, and shutdown after a stop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opsctl.errors import CheckFailed, SafetyRefusal
from opsctl.proxmox_container import Container
from opsctl.session import open_session
from opsctl.site import load_site
from opsctl.steps import container
from opsctl.steps.aftermath import container_now
from opsctl.steps.base import MonotonicClock, StepContext, StepOutcome, StepResult
from opsctl.steps.container_shutdown import ShutDownContainer
from opsctl.steps.snapshot import Snapshot
from tests.wire.fake_node import fake_node
from tests.wire.pve_peer import FakePeer, write_site

pytestmark = pytest.mark.wire
MADE = "opsctl-20261129-101112-ab12"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with fake_node(tmp_path_factory.mktemp("pve")) as node:
        yield node


@pytest.fixture
def peer(server: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePeer:
    """The fake answers /feature with a sample, whatever the storage is; the lab's node has the real one."""
    found = FakePeer(server, tmp_path)
    monkeypatch.setattr(Container, "has_feature", lambda *_: found.can_snapshot)
    return found


class Quiet:
    """Says nothing."""

    def say(self, text: str) -> None:
        """Nothing is shown."""

    progress = say


@pytest.fixture
def ctx(peer: FakePeer, tmp_path: Path) -> Iterator[StepContext]:
    """A run's context on the peer's container."""
    site = load_site(write_site(tmp_path, peer.hosts(peer.access())))
    with open_session(site, "glm5") as session:
        yield StepContext(
            server=session.server,
            server_name="glm5",
            run_id="20261129-101112-ab12",
            session=session,
            clock=MonotonicClock(),
            reporter=Quiet(),
            reason="graph crash at 10",
        )


def codes(result: Any) -> list[str]:
    return [finding.code for finding in result.findings]


def test_a_snapshot_is_named_after_the_run_and_says_why(ctx: StepContext, peer: FakePeer) -> None:
    """It can be found again by the run, and a second pass of the same run takes no second one."""
    planned = Snapshot().preview(ctx)
    first = Snapshot().run(ctx)
    again = Snapshot().run(ctx)

    assert planned == [f"take snapshot {MADE} of container 130 on pve1"]
    assert (first.outcome, first.changed, first.data["snapshot"]) == (StepOutcome.DONE, True, MADE)
    assert again.outcome is StepOutcome.UNCHANGED
    assert peer.snapshots() == [MADE]
    assert "before graph crash at 10" in peer.fake.snapshots[MADE]["description"]


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        ({}, []),
        ({"keep": 2}, ["opsctl-b", "opsctl-c"]),
        ({"older_than_days": 15.0}, ["opsctl-c"]),
        ({"keep": 1, "older_than_days": 5.0}, ["opsctl-b", "opsctl-c"]),
    ],
)
def test_own_snapshots_are_pruned_by_count_and_age(
    ctx: StepContext, peer: FakePeer, options: dict[str, Any], gone: list[str]
) -> None:
    """Only opsctl's own, only after the new one is there, and the plan names each."""
    for name, age in (("opsctl-a", 1), ("opsctl-b", 10), ("opsctl-c", 20), ("mine", 99)):
        peer.set_snapshot(name, age)

    planned = Snapshot(**options).preview(ctx)
    done = Snapshot(**options).run(ctx)

    assert sorted(done.data["deleted"]) == gone
    assert [line.rsplit(" ", 1)[-1] for line in planned[1:]] == list(done.data["deleted"])
    left = {"opsctl-a", "opsctl-b", "opsctl-c", "mine", MADE} - set(gone)
    assert peer.snapshots() == sorted(left)


def test_a_storage_that_cannot_is_told_and_ends_the_run_only_when_asked_to(
    ctx: StepContext, peer: FakePeer
) -> None:
    """The run goes on without; with ``require`` it is refused. Nothing is deleted in either case."""
    peer.set_snapshot("opsctl-a", 99)
    peer.forbid_snapshots()

    goes_on = Snapshot(keep=1).run(ctx)
    peer.can_snapshot = True  # the node's word in advance may be wrong: the task has the last one
    refused = Snapshot(keep=1, require=True).run(ctx)

    assert (goes_on.outcome, codes(goes_on)) == (StepOutcome.UNCHANGED, ["no-snapshot"])
    assert (refused.outcome, refused.exit_code) == (StepOutcome.REFUSED, 50)
    assert "storage of container 130" in refused.findings[0].text
    assert peer.snapshots() == ["opsctl-a"]


def test_a_snapshot_that_fails_is_no_storage_that_cannot(
    ctx: StepContext, peer: FakePeer, server: SimpleNamespace
) -> None:
    """A full pool, say: the run ends there, before anything is changed; the old ones stay."""
    peer.set_snapshot("opsctl-a", 99)
    path = "/nodes/pve1/lxc/130/snapshot"
    server.pve.fail("POST", path, 500, "out of space on thin pool")
    try:
        with pytest.raises(Exception, match="out of space on thin pool") as caught:
            Snapshot(keep=1).run(ctx)
    finally:
        server.pve.failures.clear()

    assert getattr(caught.value, "exit_code", None) == 20
    assert peer.snapshots() == ["opsctl-a"]


def test_a_locked_container_gets_no_snapshot(ctx: StepContext, peer: FakePeer) -> None:
    """Its lock is told, exit 50."""
    peer.set_lock("backup")

    with pytest.raises(SafetyRefusal, match=r"locked \(backup\)"):
        Snapshot().run(ctx)

    assert peer.snapshots() == []


def test_a_container_is_shut_down_cleanly(ctx: StepContext, peer: FakePeer) -> None:
    """Its own init ends it; a second time there is nothing to do."""
    peer.fake.shutdown_secs = 1

    done = ShutDownContainer().run(ctx)
    again = ShutDownContainer().run(ctx)

    assert (done.outcome, done.data["forced"], peer.state()) == (StepOutcome.DONE, False, "stopped")
    assert again.outcome is StepOutcome.UNCHANGED


def test_one_that_does_not_end_is_stopped_only_when_that_was_asked_for(
    ctx: StepContext, peer: FakePeer
) -> None:
    """Without ``force`` it runs on and the step fails; with it, it is stopped, and that is told."""
    peer.fake.shutdown_secs = 500

    with pytest.raises(CheckFailed, match="it still runs, and nothing was killed") as caught:
        ShutDownContainer(timeout_s=1).run(ctx)
    assert peer.state() == "running"
    assert (caught.value.exit_code, caught.value.code) == (20, "did-not-shut-down")
    assert "opsctl resume 20261129-101112-ab12" in str(caught.value.next_step)
    done = ShutDownContainer(timeout_s=1, force=True).run(ctx)

    assert (done.outcome, codes(done), peer.state()) == (
        StepOutcome.DONE,
        ["container-forced"],
        "stopped",
    )


def test_a_server_without_a_container_has_nothing_to_snapshot_or_shut_down(
    ctx: StepContext,
) -> None:
    """It is told, and nothing is looked for on a node."""
    ctx.session = SimpleNamespace(container=None)  # type: ignore[assignment]

    assert codes(Snapshot().run(ctx)) == ["no-snapshot"]
    assert codes(ShutDownContainer().run(ctx)) == ["no-container"]


def test_a_container_that_somebody_else_starts_is_fine(
    ctx: StepContext, peer: FakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was seen stopped, and runs when our order comes: the wanted state is there."""
    monkeypatch.setattr(container, "is_stopped", lambda _: True)
    monkeypatch.setattr(container, "wait_for_init", lambda *_: None)
    peer.set_state("running")

    done = container.Container().run(ctx)

    assert (done.outcome, done.data["task"]) == (StepOutcome.DONE, None)
    assert "somebody else started container 130" in done.data["summary"]


@pytest.mark.parametrize(
    ("state", "code", "words"),
    [
        ("stopped", "container-stopped", "container 130 on pve1 is stopped now"),
        ("running", "container-restarted", "was started anew 0 s ago: what ran in it is gone"),
    ],
)
def test_after_a_cut_the_container_is_told(
    ctx: StepContext, peer: FakePeer, state: str, code: str, words: str
) -> None:
    """Stopped, or started anew since the run began; with the way on."""
    ctx.begun_s = time.time() - 60
    peer.set_state(state)
    peer.fake.started_at = time.time()

    found = container_now(ctx)

    assert found is not None
    assert (found.code, found.subject) == (code, "130")
    assert words in found.text
    assert "opsctl resume 20261129-101112-ab12" in found.next


def test_a_container_that_ran_all_along_explains_nothing(ctx: StepContext, peer: FakePeer) -> None:
    """The cut had another reason."""
    ctx.begun_s = time.time() - 60
    peer.fake.started_at = time.time() - 3600

    assert container_now(ctx) is None


def test_our_own_start_is_no_restart_and_one_after_it_is(ctx: StepContext, peer: FakePeer) -> None:
    """The init that this run started still runs, or it is another one."""
    ctx.begun_s = time.time() - 60
    peer.set_state("running")
    peer.fake.started_at, peer.fake.pid = time.time(), 4711
    ours = StepResult(StepOutcome.DONE, changed=True, data={"init_pid": 4711})
    ctx.results["container"] = ours

    quiet = container_now(ctx)
    peer.fake.pid = 4712
    told = container_now(ctx)

    assert quiet is None
    assert told is not None
    assert told.code == "container-restarted"
