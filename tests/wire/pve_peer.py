"""A Proxmox node as the shared test cases see it; fakepve is one, the lab's node behind its API another."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from opsctl.domain.passthrough import DeviceNode, NodeFacts
from tests.wire.fake_node import TOKEN, TOKEN_ID

Acl = Mapping[str, Sequence[str]]  # path -> privileges


class Peer(Protocol):
    """One container on one node, with the node's moods as switches."""

    vmid: str

    def access(self) -> dict[str, Any]:
        """Return the ``proxmox`` block of a login that may do everything; {} for pvesh."""

    def hosts(self, access: Mapping[str, Any]) -> dict[str, Any]:
        """Return the site's hosts: pve1 with that block, and ``ct``, the container."""

    def state(self) -> str: ...

    def set_state(self, state: str) -> None: ...

    def set_stubborn(self) -> None:
        """Let it run with an init that ignores the request to shut down."""

    def lock(self) -> str | None: ...

    def set_lock(self, why: str) -> None: ...

    def running_task(self, kind: str, user: str, age_s: int) -> Any:
        """Plant a running task of the container; a context manager."""

    def snapshots(self) -> list[str]:
        """Return the names, sorted."""

    def set_snapshot(self, name: str, age_days: int) -> None: ...

    def forbid_snapshots(self) -> None:
        """Let the storage be one that cannot take any."""

    def fail_task(self, kind: str, text: str) -> None:
        """Let tasks of this kind (vzstart, ...) fail with a text."""

    def warn_start(self) -> None:
        """Let the next starts be done with ``WARNINGS: 2``."""


class ApiPeer(Peer, Protocol):
    """A peer with logins."""

    def set_token(self, acl: Acl) -> dict[str, Any]:
        """Make a token with just these privileges; return the ``proxmox`` block for it."""

    def password_access(self) -> dict[str, Any]:
        """Return the ``proxmox`` block of a login with a password."""

    def root_access(self) -> dict[str, Any]:
        """Return the ``proxmox`` block of root@pam with its password."""

    def plain_hosts(self, access: Mapping[str, Any]) -> dict[str, Any]:
        """Return the site's hosts, where the node's user is not root."""

    def set_node_devices(self, patch: pytest.MonkeyPatch) -> None:
        """Let the node have GPUs, if it has none."""

    def devices(self) -> dict[str, str]:
        """Return the devN settings of the container, those at its next start included."""

    def change_password(self) -> None: ...

    def expire_tickets(self) -> None:
        """Let every ticket that was given so far be too old."""

    def slow_start(self, seconds: float) -> None:
        """Let a start take so long."""

    def hold_config_lock(self, seconds: float) -> Any:
        """Hold the container's configuration as another task does; a context manager."""

    def fingerprint(self) -> str: ...


def write_site(folder: Path, hosts: Mapping[str, Any]) -> Path:
    """Write a site file (JSON is YAML) with one server in the container."""
    servers = {"glm5": {"host": "ct", "command": ["/bin/true"]}}
    path = folder / "opsctl.yaml"
    path.write_text(json.dumps({"hosts": hosts, "servers": servers}))
    return path


def secret(folder: Path, name: str, value: str) -> dict[str, str]:
    """Write a secret to a file and return its reference."""
    path = folder / name
    path.touch(mode=0o600)
    path.write_text(value)
    return {"file": str(path)}


class FakePeer:
    """fakepve: an independent server of the API, without containers behind it."""

    vmid = "130"

    def __init__(self, server: SimpleNamespace, folder: Path) -> None:
        self.server, self.pve, self.folder = server, server.pve, folder
        self.pve.cts = [ct for ct in self.pve.cts if ct.vmid != 130]
        self.fake = self.pve.add_ct(130, "sglang", status="running")
        self.pve.acl, self.pve.lock_wait = None, 10
        self.can_snapshot = True
        self.pve.users["ops@pve"] = "password-3c1d"
        self.pve.__dict__.pop("_start_steps", None)

    def _base(self) -> dict[str, Any]:
        return {"api": self.server.url, "ca_file": str(self.server.ca)}

    def access(self) -> dict[str, Any]:
        return {
            **self._base(),
            "token_id": TOKEN_ID,
            "token": secret(self.folder, "token", TOKEN),
        }

    def hosts(self, access: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "pve1": {"local": True, "proxmox": dict(access)},
            "ct": {"pct": 130, "via": "pve1"},
        }

    def state(self) -> str:
        return str(self.fake.status)

    def set_state(self, state: str) -> None:
        self.fake.status = state

    def set_stubborn(self) -> None:
        self.fake.status, self.fake.shutdown_secs = "running", 500

    def lock(self) -> str | None:
        return None if self.fake.lock is None else str(self.fake.lock)

    def set_lock(self, why: str) -> None:
        self.fake.lock = why

    @contextmanager
    def running_task(self, kind: str, user: str, age_s: int) -> Iterator[None]:
        task = {
            "upid": f"UPID:pve1:0000AAAA:00000001:65000000:{kind}:130:{user}:",
            "type": kind,
            "id": "130",
            "user": user,
            "node": "pve1",
            "starttime": int(time.time()) - age_s,
            "status": "running",
            "log": [],
        }
        self.pve.tasklog.append(task)
        try:
            yield
        finally:
            self.pve.tasklog.remove(task)

    def snapshots(self) -> list[str]:
        return sorted(self.fake.snapshots)

    def set_snapshot(self, name: str, age_days: int) -> None:
        taken = int(time.time()) - age_days * 86400
        self.fake.snapshots[name] = {**self.fake.config, "snaptime": taken}

    def forbid_snapshots(self) -> None:
        self.fake.config["rootfs"] = "local:130/vm-130-disk-0.raw,size=8G"
        self.can_snapshot = False

    def fail_task(self, kind: str, text: str) -> None:
        assert kind == "vzstart"
        self.fake.start_error = text

    def warn_start(self) -> None:
        from fakepve import TaskError

        steps = type(self.pve)._start_steps

        async def warned(ct: Any, user: str, skiplock: bool = False) -> None:
            await steps(self.pve, ct, user, skiplock)
            raise TaskError("WARNINGS: 2")

        self.pve._start_steps = warned

    def set_token(self, acl: Acl) -> dict[str, Any]:
        self.pve.apitokens["few@pve!t"] = "few-4410"
        self.pve.acl = {}
        for path, privileges in acl.items():
            self.pve.grant("few@pve!t", path, *privileges)
        reference = secret(self.folder, "few", "few-4410")
        return {**self._base(), "token_id": "few@pve!t", "token": reference}

    def password_access(self) -> dict[str, Any]:
        reference = secret(self.folder, "password", "password-3c1d")
        return {**self._base(), "user": "ops@pve", "password": reference}

    def root_access(self) -> dict[str, Any]:
        reference = secret(self.folder, "root", self.pve.password)
        return {**self._base(), "user": "root@pam", "password": reference}

    def plain_hosts(self, access: Mapping[str, Any]) -> dict[str, Any]:
        return self.hosts(access)  # there is no /etc/pve on this machine

    def set_node_devices(self, patch: pytest.MonkeyPatch) -> None:
        names = {"0": (195, 0), "1": (195, 1), "ctl": (195, 255), "-uvm": (511, 0)}
        devices = tuple(DeviceNode(f"/dev/nvidia{name}", number) for name, number in names.items())
        facts = NodeFacts({"nvidia": 195, "nvidia-uvm": 511}, devices, "580.95.05")
        patch.setattr("opsctl.passthrough.read_node", lambda _: facts)

    def devices(self) -> dict[str, str]:
        known = {**self.fake.config, **self.fake.pending}
        return {key: value for key, value in known.items() if key.startswith("dev")}

    def change_password(self) -> None:
        self.pve.users["ops@pve"] = "another"

    def expire_tickets(self) -> None:
        for ticket in self.pve.tickets.values():
            ticket["expires"] = time.time() - 1

    def slow_start(self, seconds: float) -> None:
        self.fake.start_secs = seconds * 50  # its seconds are fifty times shorter

    @contextmanager
    def hold_config_lock(self, seconds: float) -> Iterator[None]:
        """The fake waits ``lock_wait`` of its own seconds, which are fifty times shorter than ours."""

        def hold() -> None:
            self._on_loop(self.pve.hold_config_lock(130, seconds * 50))

        hold()
        try:
            yield
        finally:

            async def release() -> None:
                self.pve.release_config_lock(130)

            self._on_loop(release())

    def fingerprint(self) -> str:
        import hashlib
        import ssl

        der = ssl.PEM_cert_to_DER_cert(self.server.ca.read_text())
        return hashlib.sha256(der).hexdigest()

    def _on_loop(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self.server.loop).result(10)
