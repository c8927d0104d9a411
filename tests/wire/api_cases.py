"""Logins against any peer with an API: tickets that expire, tokens that may little, a node that is busy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from opsctl.containers import find_place, open_container
from opsctl.errors import OpsctlError
from opsctl.proxmox import PveError
from opsctl.proxmox_container import Container
from opsctl.session import open_hosts
from opsctl.site import load_site
from tests.wire.ct_cases import Ct, codes, make_ct
from tests.wire.pve_peer import ApiPeer, write_site

CtOf = Callable[[Mapping[str, Any]], Ct]
AUDIT = {"/vms/130": ["VM.Audit"], "/nodes/pve1": ["Sys.Audit"]}


@contextmanager
def opened(folder: Path, peer: ApiPeer, access: Mapping[str, Any]) -> Iterator[Container]:
    """Open the container with a login and keep it, as a long run does."""
    site = load_site(write_site(folder, peer.hosts(access)))
    with open_hosts(site) as hosts:
        container = open_container(hosts, find_place(site, "glm5"))
        try:
            yield container
        finally:
            container.api.close()


class ApiCases:
    """Subclass it with a fixture ``peer``."""

    @pytest.fixture
    def ct_of(self, peer: ApiPeer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CtOf:
        """Makes `opsctl ct` with a given login."""
        return lambda access: make_ct(write_site(tmp_path, peer.hosts(access)), capsys)

    def test_an_expired_ticket_is_replaced_without_a_word(
        self, peer: ApiPeer, tmp_path: Path
    ) -> None:
        """Reads and orders go on after the two hours: it logs in again with the password."""
        peer.set_state("stopped")
        with opened(tmp_path, peer, peer.password_access()) as container:
            assert container.status()["status"] == "stopped"
            peer.expire_tickets()
            seen = container.status()["status"]
            peer.expire_tickets()
            container.act("start")

        assert (seen, peer.state()) == ("stopped", "running")

    def test_a_password_that_was_changed_meanwhile_ends_it(
        self, peer: ApiPeer, tmp_path: Path
    ) -> None:
        """One more login, and no endless trying: exit 30 with whose login it was."""
        access = peer.password_access()
        with opened(tmp_path, peer, access) as container:
            container.status()
            peer.expire_tickets()
            peer.change_password()

            with pytest.raises(PveError, match="login of ops@pve was refused") as caught:
                container.status()

        assert (caught.value.exit_code, caught.value.code) == (30, "pve-login")

    @pytest.mark.parametrize("kind", ["token", "password"])
    def test_a_wrong_secret_is_refused_and_never_shown(
        self, peer: ApiPeer, ct_of: CtOf, tmp_path: Path, kind: str
    ) -> None:
        """Not allowed to look is exit 30; the login is named, its secret is not."""
        access = dict(peer.access() if kind == "token" else peer.password_access())
        wrong = tmp_path / "wrong"
        wrong.write_text("wrong-9b1c")
        access[kind] = {"file": str(wrong)}

        code, refused = ct_of(access)("status", "130")

        assert (code, codes(refused)) == (30, ["pve-login"])
        assert refused["findings"][0]["next"].startswith(
            "check token_id" if kind == "token" else "check user and password"
        )
        assert "wrong-9b1c" not in json.dumps(refused)

    @pytest.mark.parametrize(
        ("acl", "words", "missing"),
        [
            ({}, ("status", "130"), "VM.Audit"),
            (AUDIT, ("start", "130", "--yes"), "VM.PowerMgmt"),
            (AUDIT, ("snapshot", "130", "--yes"), "VM.Snapshot"),
        ],
    )
    def test_a_token_without_the_privilege_is_told_which(
        self,
        peer: ApiPeer,
        ct_of: CtOf,
        acl: dict[str, list[str]],
        words: tuple[str, ...],
        missing: str,
    ) -> None:
        """Exit 30 with privilege, path and the command that grants it; nothing has happened."""
        peer.set_state("stopped")

        code, refused = ct_of(peer.set_token(acl))(*words)

        finding = refused["findings"][0]
        assert (code, finding["code"]) == (30, "pve-forbidden")
        assert "few@pve!t is not allowed" in finding["text"]
        assert f"{missing} on /vms/130" in finding["next"]
        assert "pveum acl modify /vms/130 --tokens 'few@pve!t'" in finding["next"]
        assert (peer.state(), peer.snapshots()) == ("stopped", [])

    def test_a_token_that_sees_no_tasks_does_not_call_a_lock_orphaned(
        self, peer: ApiPeer, ct_of: CtOf
    ) -> None:
        """Without Sys.Audit the backup is invisible: its holder is unknown, and no unlock is advised."""
        peer.set_state("stopped")
        peer.set_lock("backup")
        ct = ct_of(peer.set_token({"/vms/130": ["VM.Audit", "VM.PowerMgmt"]}))
        with peer.running_task("vzdump", "backup@pve", 720):
            code, refused = ct("start", "130", "--yes")

        finding = refused["findings"][0]
        assert (code, finding["code"], peer.state()) == (50, "container-locked", "stopped")
        assert "lacks Sys.Audit on /nodes/pve1" in finding["text"]
        assert "unlock" not in finding["next"]

    def test_a_task_that_does_not_end_in_time_is_no_success(
        self, peer: ApiPeer, tmp_path: Path
    ) -> None:
        """Exit 21 with the task and where to watch it; the node goes on with it."""
        peer.set_state("stopped")
        peer.slow_start(2.0)
        with opened(tmp_path, peer, peer.access()) as container:
            with pytest.raises(OpsctlError, match="did not end within 0 s") as caught:
                container.act("start", timeout_s=0.4)
            container.wait(caught.value.subject, timeout_s=30)

        assert (caught.value.exit_code, caught.value.code) == (21, "task-timeout")
        assert f"/tasks/{caught.value.subject}/log" in str(caught.value.next_step)
        assert peer.state() == "running"

    def test_a_busy_container_is_tried_again(self, peer: ApiPeer, ct_of: CtOf) -> None:
        """'got timeout' for a moment: another task had the configuration; then it starts."""
        peer.set_state("stopped")
        with peer.hold_config_lock(0.5):
            code, done = ct_of(peer.access())("start", "130", "--yes")

        assert (code, done["outcome"], peer.state()) == (0, "started", "running")

    def test_a_container_that_stays_busy_is_told_after_a_bound(
        self, peer: ApiPeer, ct_of: CtOf
    ) -> None:
        """Exit 20 with the node's words and what to do."""
        peer.set_state("stopped")
        with peer.hold_config_lock(60):
            code, busy = ct_of(peer.access())("start", "130", "--yes")

        finding = busy["findings"][0]
        assert (code, finding["code"], peer.state()) == (20, "task-busy", "stopped")
        assert "got timeout" in finding["text"]
        assert "try again" in finding["next"]

    def test_a_lock_that_comes_after_the_look_is_exit_50(
        self, peer: ApiPeer, tmp_path: Path
    ) -> None:
        """A backup begins between the look and the order: the node refuses, and nothing is forced."""
        peer.set_state("stopped")
        peer.set_lock("backup")
        with (
            opened(tmp_path, peer, peer.access()) as container,
            pytest.raises(OpsctlError, match=r"CT is locked \(backup\)") as caught,
        ):
            container.act("start")

        assert (caught.value.exit_code, caught.value.code) == (50, "container-locked")
        assert "never clears a lock" in str(caught.value.next_step)
        assert (peer.lock(), peer.state()) == ("backup", "stopped")

    def test_trust_is_by_ca_or_by_fingerprint(self, peer: ApiPeer, ct_of: CtOf) -> None:
        """Neither: exit 30 and what to name. The right fingerprint passes, another one does not."""
        peer.set_state("running")
        access = peer.access()
        del access["ca_file"]

        code, untrusted = ct_of(access)("status", "130")
        pinned, _ = ct_of({**access, "fingerprint": peer.fingerprint()})("status", "130")
        wrong, _ = ct_of({**access, "fingerprint": "ab" * 32})("status", "130")

        assert (code, codes(untrusted), pinned, wrong) == (30, ["tls"], 0, 30)
        assert "pve-root-ca.pem" in untrusted["findings"][0]["next"]

    @pytest.mark.parametrize("state", ["stopped", "running"])
    def test_devices_are_set_through_the_api_by_root_alone(
        self,
        peer: ApiPeer,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        state: str,
    ) -> None:
        """root@pam with its password, and no root on the node: shown, then written; twice is nothing to do.

        A running container gets new devices at once; what was there before changes at its next start.
        """
        peer.set_node_devices(monkeypatch)
        peer.set_state(state)
        ct = make_ct(write_site(tmp_path, peer.plain_hosts(peer.root_access())), capsys)

        planned = ct("fix-devices", "130", "--dry-run")
        assert peer.devices() == {}
        code, done = ct("fix-devices", "130", "--yes")
        again = ct("fix-devices", "130", "--yes")

        assert (planned[0], code) == (0, 0), (planned[1]["findings"], done["findings"])
        edits = planned[1]["data"]["edits"]
        assert (planned[1]["findings"], planned[1]["data"]["by"]) == ([], "api")
        assert (done["outcome"], done["data"]["edits"]) == ("changed", edits)
        assert peer.devices() == dict(edit["new"].split(": ") for edit in edits)
        assert "restart-needed" not in codes(done)
        assert again[1]["outcome"] == "nothing-to-do"
        assert peer.state() == state

    @pytest.mark.parametrize("login", ["token", "password"])
    def test_a_login_that_may_not_set_devices_says_who_may(
        self,
        peer: ApiPeer,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        login: str,
    ) -> None:
        """Proxmox compares with the name root@pam: exit 30 with the line for root; nothing is tried."""
        peer.set_node_devices(monkeypatch)
        peer.set_state("stopped")
        access = peer.access() if login == "token" else peer.password_access()
        ct = make_ct(write_site(tmp_path, peer.plain_hosts(access)), capsys)

        planned = ct("fix-devices", "130", "--dry-run")
        code, refused = ct("fix-devices", "130", "--yes")

        finding = refused["findings"][0]
        assert (planned[0], codes(planned[1])[0]) == (0, "root-only")
        assert planned[1]["findings"][0]["text"] == finding["text"]
        assert (code, finding["code"], peer.devices()) == (30, "root-only", {})
        assert access.get("token_id", access.get("user")) in finding["text"]
        assert "pct set 130 --dev0 /dev/nvidia0,mode=0666 --dev1 " in finding["next"]
        assert "become: sudo" in finding["next"]

    def test_the_node_itself_refuses_devices_of_a_token(
        self, peer: ApiPeer, tmp_path: Path
    ) -> None:
        """What is foreseen is so: also with every privilege on the configuration, 403 in its words."""
        peer.set_state("stopped")
        may = {"/vms/130": ["VM.Audit", "VM.Config.Options", "VM.Config.Disk"]}
        with (
            opened(tmp_path, peer, peer.set_token(may)) as container,
            pytest.raises(PveError, match="only allowed for root@pam") as caught,
        ):
            container.configure({"dev0": "/dev/null,mode=0666"}, container.config()["digest"])

        assert (caught.value.exit_code, caught.value.code) == (30, "pve-forbidden")
        assert "no token, no other user" in str(caught.value.next_step)
        assert peer.devices() == {}

    def test_a_configuration_that_changed_meanwhile_is_left_alone(
        self, peer: ApiPeer, tmp_path: Path
    ) -> None:
        """Its digest is another one: exit 50, nothing is written."""
        with opened(tmp_path, peer, peer.root_access()) as container:
            with pytest.raises(OpsctlError, match="changed meanwhile") as caught:
                container.configure({"dev0": "/dev/null,mode=0666"}, "0" * 40)
            peer.set_lock("backup")
            with pytest.raises(OpsctlError, match="locked") as locked:
                container.configure({"dev0": "/dev/null,mode=0666"}, None)

        assert (caught.value.exit_code, locked.value.exit_code) == (50, 50)
        assert peer.devices() == {}
