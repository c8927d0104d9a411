"""`opsctl ct` against fakepve: what is done, what is refused, and that a lock stays a lock."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opsctl.cli import run
from tests.wire.fake_node import TOKEN, TOKEN_ID, fake_node

pytestmark = pytest.mark.wire
Ct = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with fake_node(tmp_path_factory.mktemp("pve")) as node:
        yield node


@pytest.fixture
def fake(server: SimpleNamespace) -> Any:
    """A fresh container 129 on a storage that can take snapshots, running."""
    server.pve.cts = [c for c in server.pve.cts if c.vmid != 129]
    return server.pve.add_ct(129, "sglang", status="running")


@pytest.fixture
def ct(
    server: SimpleNamespace,
    fake: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Ct:
    """Runs `opsctl ct ... --json` on a site with the API; returns exit code and document."""
    monkeypatch.setenv("PVE_TOKEN", TOKEN)
    site = tmp_path / "opsctl.yaml"
    site.write_text(
        "hosts:\n"
        f"  pve1: {{local: true, proxmox: {{api: '{server.url}', ca_file: {server.ca}, "
        f"token_id: '{TOKEN_ID}', token: {{env: PVE_TOKEN}}}}}}\n"
        "  ct129: {pct: 129, via: pve1}\n"
        "servers:\n  glm5: {host: ct129, command: [/bin/true]}\n"
    )

    def call(*words: str) -> tuple[int, dict[str, Any]]:
        code = run(["ct", *words, "--json", "--site", str(site)])
        out = capsys.readouterr().out
        document: dict[str, Any] = json.loads(out)
        assert document["exit_code"] == code
        return code, document

    return call


def codes(document: dict[str, Any]) -> list[str]:
    return [item["code"] for item in document["findings"]]


def test_status_shows_state_and_node(ct: Ct) -> None:
    """The node's name comes from the API; the server's name leads to its container."""
    code, seen = ct("status", "glm5")

    assert (code, seen["schema"], seen["outcome"]) == (0, "opsctl.ct-status/1", "running")
    assert (seen["data"]["vmid"], seen["data"]["node"]) == (129, "pve1")
    assert seen["data"]["servers"] == ["glm5"]


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
    ct: Ct, fake: Any, verb: str, before: str, after: str, outcome: str
) -> None:
    """A dry run changes nothing, no yes is exit 50, and with it the state follows."""
    fake.status = before

    planned = ct(verb, "129", "--dry-run")
    refused = ct(verb, "129")
    assert (planned[1]["outcome"], refused[0], fake.status) == ("planned", 50, before)
    code, done = ct(verb, "129", "--yes")

    assert (code, done["outcome"], fake.status) == (0, outcome, after)
    assert done["data"]["task"].startswith("UPID:pve1:")
    told = ["locks-not-told"] if before == "running" else []  # there is no pct here to look inside
    assert codes(done) == told


@pytest.mark.parametrize(("verb", "state"), [("start", "running"), ("stop", "stopped")])
def test_what_is_so_already_is_left_alone(ct: Ct, fake: Any, verb: str, state: str) -> None:
    """Idempotent: exit 0 without a question and without a task."""
    fake.status = state

    code, done = ct(verb, "129")

    assert (code, done["outcome"]) == (0, f"already-{state}")


def test_a_locked_container_is_refused_with_its_holder_and_stays_locked(
    ct: Ct, fake: Any, server: SimpleNamespace
) -> None:
    """The backup's task, its user and its age are named; exit 50; the lock is still there."""
    fake.status, fake.lock = "stopped", "backup"
    task = {
        "upid": "UPID:pve1:0000AAAA:00000001:65000000:vzdump:129:backup@pve:",
        "type": "vzdump",
        "id": "129",
        "user": "backup@pve",
        "node": "pve1",
        "starttime": int(time.time()) - 720,
        "status": "running",
        "log": [],
    }
    server.pve.tasklog.append(task)
    try:
        code, refused = ct("start", "129", "--yes")
        looked, seen = ct("status", "129")
    finally:
        server.pve.tasklog.remove(task)

    text = refused["findings"][0]["text"]
    assert (code, codes(refused)) == (50, ["container-locked"])
    assert "vzdump of backup@pve" in text
    assert "12 min" in text
    assert (fake.lock, fake.status) == ("backup", "stopped")
    assert looked == 20
    assert seen["data"]["lock"]["user"] == "backup@pve"
    assert 715 <= seen["data"]["lock"]["age_s"] <= 780


def test_a_lock_that_no_task_holds_is_told_so(ct: Ct, fake: Any) -> None:
    """What is left of a killed task: the words to clear it by hand, and no clearing."""
    fake.lock = "backup"

    code, refused = ct("stop", "129", "--yes")

    assert (code, fake.lock, fake.status) == (50, "backup", "running")
    assert "no running task" in refused["findings"][0]["text"]
    assert "pct unlock 129" in refused["findings"][0]["next"]


def test_a_task_that_fails_is_exit_20_with_its_log(ct: Ct, fake: Any) -> None:
    """The node took the order, and the start failed."""
    fake.status, fake.start_error = "stopped", "startup for container '129' failed"

    code, failed = ct("start", "129", "--yes")

    assert (code, codes(failed)) == (20, ["task-failed"])
    assert "startup for container '129' failed" in failed["findings"][0]["text"]


def test_a_reboot_of_a_stopped_container_says_start(ct: Ct, fake: Any) -> None:
    """Nothing is started that was not asked for."""
    fake.status = "stopped"

    code, refused = ct("reboot", "129", "--yes")

    assert (code, fake.status) == (20, "stopped")
    assert refused["findings"][0]["next"] == "opsctl ct start 129"


def test_snapshots_are_taken_and_only_own_ones_pruned(ct: Ct, fake: Any) -> None:
    """keep 2: the oldest of ours goes after the new one is there; the operator's own stays."""
    for age, name in enumerate(["opsctl-c", "opsctl-b", "mine"], 1):
        fake.snapshots[name] = {**fake.config, "snaptime": int(time.time()) - age * 86400}

    planned = ct("snapshot", "129", "--keep", "2", "--dry-run")
    assert sorted(fake.snapshots) == ["mine", "opsctl-b", "opsctl-c"]
    code, done = ct("snapshot", "129", "--keep", "2", "--reason", "before the patch", "--yes")

    made = done["data"]["snapshot"]
    assert (code, done["outcome"]) == (0, "taken")
    assert sorted(fake.snapshots) == sorted(["mine", "opsctl-c", made])
    assert fake.snapshots[made]["description"] == "before the patch"
    assert done["data"]["deleted"] == ["opsctl-b"]
    assert any("opsctl-b" in line for line in planned[1]["data"]["plan"])


def test_a_storage_without_snapshots_deletes_nothing(ct: Ct, fake: Any) -> None:
    """The node says why; the old snapshots stay."""
    fake.snapshots["opsctl-a"] = {**fake.config, "snaptime": 1}
    fake.config["rootfs"] = "local:129/vm-129-disk-0.raw,size=8G"

    code, failed = ct("snapshot", "129", "--keep", "1", "--yes")

    assert (code, list(fake.snapshots)) == (20, ["opsctl-a"])
    assert "snapshot feature is not available" in failed["findings"][0]["text"]


def test_rollback_brings_back_and_starts_only_on_request(ct: Ct, fake: Any) -> None:
    """An unknown name is exit 2 with the known ones; a running container ends stopped, or started."""
    ct("snapshot", "129", "--name", "opsctl-clean", "--yes")

    code, unknown = ct("rollback", "129", "nope", "--yes")
    assert (code, fake.status) == (2, "running")
    assert "opsctl-clean" in unknown["findings"][0]["next"]
    assert ct("rollback", "129", "opsctl-clean", "--dry-run")[1]["outcome"] == "planned"
    assert fake.status == "running"
    code, done = ct("rollback", "129", "opsctl-clean", "--yes")
    assert (code, done["data"]["after"], fake.status) == (0, "stopped", "stopped")
    code, done = ct("rollback", "129", "opsctl-clean", "--start", "--yes")
    assert (code, done["data"]["after"], fake.status) == (0, "running", "running")


def test_a_container_that_does_not_exist_and_a_token_that_may_not(
    ct: Ct, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked, and it is not there: 20. Not allowed to look: 30, without the secret."""
    assert ct("status", "998")[0] == 20
    monkeypatch.setenv("PVE_TOKEN", "wrong-9b1c")

    code, refused = ct("status", "129")

    assert code == 30
    assert "wrong-9b1c" not in json.dumps(refused)
