"""Proxmox VE: containers through the API (proxmoxer) or, without a token, through `pvesh` on the node."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import tenacity

from opsctl.errors import CheckFailed, ConfigError, CouldNotTell, OpsctlError, TransportError
from opsctl.transport.base import Transport

REQUEST_TIMEOUT_S = (
    30.0  # PVE waits 10 s for a config lock, 5 s (proxmoxer's default) gives up before it answers
)
CHANGE_TIMEOUT_S = (
    900.0  # pvesh stays until the task has ended; a snapshot of a large disk takes long
)
BUSY = re.compile(r"got timeout|can't lock file|no quorum|got no worker upid", re.IGNORECASE)
LOCKED = re.compile(r"(?:CT|VM) is locked(?: \((?P<why>[\w-]+)\))?")
WARNINGS = re.compile(r"WARNINGS: (\d+)$")


class PveError(OpsctlError):
    """The node answered, and the answer is no."""

    exit_code = 20
    code = "pve-refused"

    def __init__(self, status: int, text: str, *, subject: str) -> None:
        super().__init__(f"{subject}: {text}", next_step=_advice(status, text), subject=subject)
        self.status = status
        self.text = text
        if status in (401, 403):
            self.exit_code = 30  # not allowed to look is not "looked, and it is bad"


def _advice(status: int, text: str) -> str | None:
    if status in (401, 403):
        return (
            "check the token's id, its secret and its privileges "
            "(VM.Audit, VM.PowerMgmt, VM.Snapshot, Sys.Audit on /vms/VMID and /nodes/NODE)"
        )
    if LOCKED.search(text):
        return (
            "wait for the task that holds the lock (`opsctl ct status`); opsctl never clears a lock"
        )
    return None


class Api(Protocol):
    """GET, POST, PUT and DELETE on API paths such as ``/nodes/pve1/lxc/129/status/current``."""

    name: str

    def call(self, method: str, path: str, params: dict[str, Any] | None = None) -> Any:
        """Return the answer's ``data``.

        Raises:
            PveError: the node refused; TransportError: it could not be asked.
        """

    def close(self) -> None:
        """Give up what is held; safe to call twice."""


class HttpsApi:
    """The API over TLS: verified by the system's CAs, a CA file or the certificate's fingerprint."""

    def __init__(
        self,
        url: str,
        *,
        token_id: str | None = None,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        ca_file: Path | None = None,
        fingerprint: str | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        parts = urlsplit(url if "//" in url else f"//{url}")
        if not parts.hostname:
            raise ConfigError(f"'{url}' is no address of a Proxmox API")
        if fingerprint and token is None:
            raise ConfigError(
                "a fingerprint goes with an API token; with a password name a ca_file",
                next_step="copy /etc/pve/pve-root-ca.pem from the node and name it as ca_file",
            )
        self.name = f"https://{parts.hostname}:{parts.port or 8006}"
        self._secrets = [secret for secret in (token, password) if secret]
        arguments: dict[str, Any] = {
            "port": parts.port or 8006,
            "timeout": timeout_s,
            "verify_ssl": str(ca_file) if ca_file else fingerprint is None,
        }
        if token is not None:
            who, _, token_name = (token_id or "").partition("!")
            if not token_name:
                raise ConfigError("token_id is written user@realm!name")
            arguments |= {"user": who, "token_name": token_name, "token_value": token}
        else:
            arguments |= {"user": user, "password": password}
        with self._told():
            self._api = self._connect(parts.hostname, arguments)
        self._api._store["session"].trust_env = False  # a proxy variable must not redirect the API
        if fingerprint:
            self._api._store["session"].mount("https://", _pinned(fingerprint))

    def _connect(self, host: str, arguments: dict[str, Any]) -> Any:
        from proxmoxer import ProxmoxAPI

        return _retrying()(ProxmoxAPI, host, **arguments)

    def call(self, method: str, path: str, params: dict[str, Any] | None = None) -> Any:
        def once() -> Any:
            resource = self._api(path.strip("/"))
            with self._told():
                return getattr(resource, method.lower())(**(params or {}))

        return _retrying()(once)

    def close(self) -> None:
        """Close the connections."""
        self._api._store["session"].close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        import requests
        from proxmoxer import ResourceException
        from proxmoxer.core import AuthenticationError

        try:
            yield
        except ResourceException as error:
            text = self._clean(str(error.content or error).strip())
            raise PveError(int(error.status_code), text, subject=self.name) from None
        except AuthenticationError:
            raise PveError(401, "the login was refused", subject=self.name) from None
        except requests.exceptions.SSLError as error:
            raise TransportError(
                f"{self.name}: the certificate is not trusted ({self._clean(_root(error))})",
                next_step="name the node's CA (/etc/pve/pve-root-ca.pem) as ca_file, or its fingerprint",
                code="tls",
                subject=self.name,
            ) from None
        except requests.exceptions.Timeout:
            raise TransportError(
                f"{self.name}: no answer in time", code="pve-timeout", subject=self.name
            ) from None
        except requests.exceptions.RequestException as error:
            never_connected = "NewConnectionError" in repr(error)
            raise TransportError(
                f"{self.name}: {self._clean(_root(error))}",
                next_step="is pveproxy running on the node, and is the port open from here?",
                code="pve-unreachable" if never_connected else "pve-cut",
                subject=self.name,
            ) from None

    def _clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _pinned(fingerprint: str) -> Any:
    from requests.adapters import HTTPAdapter

    class Pinned(HTTPAdapter):
        """Accepts exactly the certificate with this SHA-256 fingerprint."""

        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            super().init_poolmanager(*args, assert_fingerprint=fingerprint, **kwargs)

    return Pinned()


def _root(error: BaseException) -> str:
    while error.args and isinstance(error.args[0], BaseException):
        error = error.args[0]
    reason = getattr(error, "reason", None)
    return str(reason or error)


class PveshApi:
    """The API through ``pvesh`` on the node, over a transport of ours (host keys are checked there)."""

    VERBS: dict[str, str] = {"GET": "get", "POST": "create", "PUT": "set", "DELETE": "delete"}  # noqa: RUF012

    def __init__(self, transport: Transport, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self.name = f"pvesh on {transport.name}"
        self._transport = transport
        self._timeout_s = timeout_s

    def call(self, method: str, path: str, params: dict[str, Any] | None = None) -> Any:
        return _retrying()(self._once, method, path, params or {})

    def close(self) -> None:
        """The transport belongs to whoever opened it."""

    def _once(self, method: str, path: str, params: dict[str, Any]) -> Any:
        argv = ["pvesh", self.VERBS[method], path, "--output-format", "json"]
        for key, value in params.items():
            argv += [f"--{key}", str(value)]
        limit_s = self._timeout_s if method == "GET" else max(self._timeout_s, CHANGE_TIMEOUT_S)
        done = self._transport.run(argv, timeout_s=limit_s)
        errors = done.stderr.decode(errors="replace").strip()
        if done.exit_code in (126, 127):
            raise TransportError(
                f"{self.name}: there is no pvesh",
                next_step="is this a Proxmox node, and is its user allowed to run pvesh?",
                code="no-pvesh",
            )
        if done.exit_code != 0:
            raise PveError(
                500, errors.splitlines()[-1] if errors else "no reason given", subject=self.name
            )
        text = done.stdout.decode(errors="replace").strip()
        if not text:
            return None
        try:
            # a create that starts a task prints its progress first and the UPID last
            return json.loads(text)
        except ValueError:
            last = text.splitlines()[-1].strip().strip('"')
            return last if last.startswith("UPID:") else text


def _retrying() -> tenacity.Retrying:
    """Retry what cannot have happened yet: no connection, or a lock that was busy; at most four times."""
    return tenacity.Retrying(
        stop=tenacity.stop_after_attempt(4) | tenacity.stop_after_delay(45),
        wait=tenacity.wait_exponential(multiplier=0.5, max=5),
        retry=tenacity.retry_if_exception(_may_retry),
        reraise=True,
    )


def _may_retry(error: BaseException) -> bool:
    if isinstance(error, PveError):
        return bool(BUSY.search(error.text))
    return isinstance(error, TransportError) and error.code == "pve-unreachable"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a task ended: ``warnings`` counts what PVE warned of although the task was done."""

    upid: str
    warnings: int
    log_tail: tuple[str, ...]


class Container:
    """One container of one node."""

    def __init__(self, api: Api, node: str, vmid: int) -> None:
        self.api = api
        self.node = node
        self.vmid = vmid

    @property
    def _path(self) -> str:
        return f"/nodes/{self.node}/lxc/{self.vmid}"

    def status(self) -> dict[str, Any]:
        """Return status/current: ``status`` (running, stopped), ``lock``, ``uptime``, ``name``."""
        answer: dict[str, Any] = self.api.call("GET", f"{self._path}/status/current")
        return answer

    def config(self) -> dict[str, Any]:
        """Return the container's configuration, without pending changes."""
        answer: dict[str, Any] = self.api.call("GET", f"{self._path}/config", {"current": 1})
        return answer

    def act(
        self,
        verb: str,
        *,
        params: dict[str, Any] | None = None,
        timeout_s: float = 180.0,
        on_progress: Callable[[str], None] | None = None,
    ) -> TaskResult:
        """Start, stop, shutdown or reboot, and wait until the task has ended.

        Raises:
            PveError: refused at once; CheckFailed: the task failed; CouldNotTell: no end in time.
        """
        upid = self.api.call("POST", f"{self._path}/status/{verb}", params)
        return self.wait(upid, timeout_s=timeout_s, on_progress=on_progress)

    def snapshots(self) -> list[dict[str, Any]]:
        """Return the snapshots, without the entry ``current`` that PVE adds."""
        answer = self.api.call("GET", f"{self._path}/snapshot") or []
        return [item for item in answer if item.get("name") != "current"]

    def snapshot(self, name: str, description: str, **waiting: Any) -> TaskResult:
        """Take a snapshot. PVE answers 'snapshot feature is not available' where the storage cannot."""
        upid = self.api.call(
            "POST", f"{self._path}/snapshot", {"snapname": name, "description": description}
        )
        return self.wait(upid, **waiting)

    def rollback(self, name: str, **waiting: Any) -> TaskResult:
        """Go back to a snapshot; the container is stopped by it."""
        return self.wait(self.api.call("POST", f"{self._path}/snapshot/{name}/rollback"), **waiting)

    def delete_snapshot(self, name: str, **waiting: Any) -> TaskResult:
        """Delete one snapshot."""
        return self.wait(self.api.call("DELETE", f"{self._path}/snapshot/{name}"), **waiting)

    def running_tasks(self) -> list[dict[str, Any]]:
        """Return the node's unfinished tasks of this container: who holds a lock, and since when."""
        tasks = self.api.call(
            "GET", f"/nodes/{self.node}/tasks", {"vmid": self.vmid, "source": "active"}
        )
        return [task for task in tasks or [] if not task.get("endtime")]

    def running_backups(self) -> list[dict[str, Any]]:
        """Return the node's unfinished backups of several guests: these name no container."""
        tasks = self.api.call(
            "GET", f"/nodes/{self.node}/tasks", {"typefilter": "vzdump", "source": "active"}
        )
        return [task for task in tasks or [] if not task.get("endtime") and not task.get("id")]

    def wait(
        self,
        upid: Any,
        *,
        timeout_s: float = 180.0,
        on_progress: Callable[[str], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> TaskResult:
        """Wait for a task. Only OK and WARNINGS count as done; a time-out is not success."""
        if not isinstance(upid, str) or not upid.startswith("UPID:"):
            raise CouldNotTell(
                f"container {self.vmid}: the node answered without a task id", code="no-upid"
            )
        deadline = clock() + timeout_s
        while True:
            state = self.api.call("GET", f"/nodes/{self.node}/tasks/{upid}/status")
            if state.get("status") == "stopped":
                return self._ended(upid, str(state.get("exitstatus") or ""))
            if clock() >= deadline:
                raise CouldNotTell(
                    f"container {self.vmid}: the task did not end within {timeout_s:.0f} s",
                    next_step=f"watch it on the node: pvesh get /nodes/{self.node}/tasks/{upid}/log",
                    code="task-timeout",
                    subject=upid,
                )
            if on_progress is not None:
                on_progress(f"{state.get('type', 'task')} of container {self.vmid} is running")
            sleep(0.3)

    def _ended(self, upid: str, exitstatus: str) -> TaskResult:
        lines = self.api.call("GET", f"/nodes/{self.node}/tasks/{upid}/log", {"limit": 500}) or []
        tail = tuple(str(line.get("t", "")) for line in lines)[-10:]
        if exitstatus == "OK":
            return TaskResult(upid, 0, tail)
        warned = WARNINGS.match(exitstatus)
        if warned:
            return TaskResult(upid, int(warned[1]), tail)
        text = "\n    ".join(line for line in tail if line) or "the task left no log"
        raise CheckFailed(
            f"container {self.vmid}: the task failed: {exitstatus or 'no exit status'}\n    {text}",
            next_step=_advice(500, exitstatus),
            code="task-failed",
            subject=upid,
        )
