"""The lab's node as a peer of the shared Proxmox cases: real containers behind its API, or behind pvesh."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab import api
from tests.lab.fixture import Lab, wait_until
from tests.lab.node import container_config
from tests.wire.pve_peer import Acl, secret

CONFIG = "/etc/pve/lxc/130.conf"
CLEAN = """
printf %s "$1" >"$2"
rm -rf /var/lib/lab-pve/switches.json /var/lib/vz/images/130/snap-*
if grep -q '@/var/lib/lxc/130/command' /proc/net/unix; then pct stop 130; fi
"""


class LabPeer:
    """Container 130 of the lab, through pvesh on the node (ssh)."""

    vmid = "130"

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self._switches: dict[str, Any] = {}

    def clean(self) -> None:
        """Container 130 stopped, unlocked, without snapshots, and without moods of the node."""
        config = container_config(self.lab.instance, 130)
        done = self.lab.on("pve1", ["/bin/sh", "-c", CLEAN, "sh", config, CONFIG])
        assert done.exit_code == 0, done.stderr
        self._switches = {}

    def access(self) -> dict[str, Any]:
        return {}

    def hosts(self, access: Mapping[str, Any]) -> dict[str, Any]:
        entry = yaml.safe_load(self.lab.instance.api_file.read_text())["hosts"]["pve1"]
        entry["proxmox"] = dict(access)
        return {"pve1": entry, "ct": {"pct": 130, "via": "pve1"}}

    def state(self) -> str:
        return self.lab.pct("status", "130").stdout.split()[-1]

    def set_state(self, state: str) -> None:
        if self.state() != state:
            done = self.lab.pct("start" if state == "running" else "stop", "130")
            assert done.exit_code == 0, done.stderr

    def set_stubborn(self) -> None:
        """As process 1 of its namespace `sleep` gets no signal that it has no handler for."""
        rule = "s|^entrypoint: .*|entrypoint: /usr/bin/sleep infinity|"
        assert self.lab.on("pve1", ["/usr/bin/sed", "-i", rule, CONFIG]).exit_code == 0
        self.set_state("running")

    def lock(self) -> str | None:
        lines = self.lab.on("pve1", ["/bin/cat", CONFIG]).stdout.splitlines()
        found = [line.removeprefix("lock: ") for line in lines if line.startswith("lock: ")]
        return found[0] if found else None

    def set_lock(self, why: str) -> None:
        self._insert(CONFIG, f"lock: {why}")

    def _insert(self, path: str, line: str) -> None:
        assert self.lab.on("pve1", ["/usr/bin/sed", "-i", f"1i {line}", path]).exit_code == 0

    @contextmanager
    def running_task(self, kind: str, user: str, age_s: int) -> Iterator[None]:
        upid = f"UPID:pve1:00000001:00000001:00000001:{kind}:130:{user}:"
        task = {"upid": upid, "type": kind, "id": "130", "user": user, "node": "pve1"}
        task |= {"starttime": int(time.time()) - age_s, "pid": 1}
        write = 'mkdir -p /var/log/pve/tasks; printf %s "$2" >"/var/log/pve/tasks/$1"'
        self.lab.on("pve1", ["/bin/sh", "-c", write, "sh", upid, json.dumps(task)])
        try:
            yield
        finally:
            self.lab.on("pve1", ["/bin/rm", f"/var/log/pve/tasks/{upid}"])

    def snapshots(self) -> list[str]:
        lines = self.lab.on("pve1", ["/bin/cat", CONFIG]).stdout.splitlines()
        return sorted(line[1:-1] for line in lines if line.startswith("["))

    def set_snapshot(self, name: str, age_days: int) -> None:
        assert self.lab.pct("snapshot", "130", name).exit_code == 0
        taken = int(time.time()) - age_days * 86400
        rule = f"/^\\[{name}\\]/,/^snaptime:/s/^snaptime: .*/snaptime: {taken}/"
        assert self.lab.on("pve1", ["/usr/bin/sed", "-i", rule, CONFIG]).exit_code == 0

    def forbid_snapshots(self) -> None:
        self._switch(no_snapshots=True)

    def fail_task(self, kind: str, text: str) -> None:
        self._switch(fail={kind: text})

    def warn_start(self) -> None:
        self._switch(warnings={"vzstart": 2})

    def _switch(self, **switches: Any) -> None:
        self._switch_all({**self._switches, **switches})

    def _switch_all(self, switches: dict[str, Any]) -> None:
        self._switches = switches
        self.lab.switch(**switches)


class LabApiPeer(LabPeer):
    """The same container through the node's API on port 8006."""

    def _base(self) -> dict[str, Any]:
        url = "https://10.77.1.1:8006"
        return {"api": url, "ca_file": str(api.ca_file(self.lab.instance))}

    def access(self) -> dict[str, Any]:
        reference = {"file": str(api.secret_file(self.lab.instance, "token"))}
        return {**self._base(), "token_id": api.TOKEN_ID, "token": reference}

    def password_access(self) -> dict[str, Any]:
        reference = {"file": str(api.secret_file(self.lab.instance, "password"))}
        return {**self._base(), "user": api.USER, "password": reference}

    def set_token(self, acl: Acl) -> dict[str, Any]:
        token = {"secret": "few-4410", "acl": {path: list(held) for path, held in acl.items()}}
        self._switch(tokens={"few@pve!t": token})
        reference = secret(self.folder, "few", "few-4410")
        return {**self._base(), "token_id": "few@pve!t", "token": reference}

    def root_access(self) -> dict[str, Any]:
        self._switch(users={"root@pam": "root-77aa"})
        reference = secret(self.folder, "root", "root-77aa")
        return {**self._base(), "user": "root@pam", "password": reference}

    def plain_hosts(self, access: Mapping[str, Any]) -> dict[str, Any]:
        found = self.hosts(access)
        found["pve1"]["ssh"] = found["pve1"]["ssh"].replace("root@", "ops@")
        return found

    def set_node_devices(self, patch: pytest.MonkeyPatch) -> None:
        """It has eight."""

    def devices(self) -> dict[str, str]:
        rows = self.lab.on("pve1", ["/bin/cat", CONFIG]).stdout.splitlines()
        return dict(row.split(": ") for row in rows if row.startswith("dev"))

    def change_password(self) -> None:
        self._switch(users={api.USER: "another"})

    def expire_tickets(self) -> None:
        self._switch(tickets_gone_before_s=time.time())

    def slow_start(self, seconds: float) -> None:
        self._switch(delay_s={"vzstart": seconds})

    @contextmanager
    def hold_config_lock(self, seconds: float) -> Iterator[None]:
        """pct waits 0.3 s for it instead of 10."""
        self._switch(lock_wait_s=0.3)
        path = "/run/lock/lxc/pve-config-130.lock"
        hold = f"mkdir -p /run/lock/lxc; exec flock {path} sleep {seconds}"
        with self.lab.popen(self.lab.host_argv("pve1", ["/bin/sh", "-c", hold])) as process:
            held = ["/usr/bin/flock", "-n", path, "true"]
            wait_until(lambda: self.lab.on("pve1", held).exit_code != 0, 10, "the lock is held")
            try:
                yield
            finally:
                release = ["/usr/bin/pkill", "-f", f"^(flock {path} )?sleep {seconds}$"]
                self.lab.on("pve1", release)
                process.wait(10)

    def fingerprint(self) -> str:
        return api.fingerprint(self.lab.instance)
