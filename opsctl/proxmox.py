"""The API of Proxmox VE: over TLS (proxmoxer) or, without a token, through `pvesh` on the node."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import tenacity

from opsctl.errors import ConfigError, OpsctlError, TransportError
from opsctl.transport.base import Transport

REQUEST_TIMEOUT_S = (
    30.0  # PVE waits 10 s for a config lock, 5 s (proxmoxer's default) gives up before it answers
)
CHANGE_TIMEOUT_S = (
    900.0  # pvesh stays until the task has ended; a snapshot of a large disk takes long
)
BUSY = re.compile(r"got timeout|can't lock file|no quorum|got no worker upid", re.IGNORECASE)
LOCKED = re.compile(r"(?:CT|VM) is locked(?: \((?P<why>[\w-]+)\))?")
NO_CONFIG = re.compile(r"Configuration file '\S*' does not exist")
FORBIDDEN = re.compile(r"Permission check failed \((?P<path>/\S*), (?P<privileges>[\w.|]+)\)")
# the proxy on one node could not reach the other; nothing of the call has happened
NODE_AWAY = frozenset({502, 503, 504, 595, 596, 597, 598, 599})


class PveError(OpsctlError):
    """The node answered, and the answer is no."""

    exit_code = 20
    code = "pve-refused"

    def __init__(self, status: int, text: str, *, subject: str, who: str = "") -> None:
        said = f"{who} is not allowed: {text}" if status == 403 and who else text
        if status == 401 and who and who not in text:
            said = f"the login of {who} was refused: {text}"
        super().__init__(f"{subject}: {said}", next_step=advise(status, text, who), subject=subject)
        self.status = status
        self.text = text
        if status in (401, 403):
            self.exit_code = 30  # not allowed to look is not "looked, and it is bad"
            self.code = "pve-login" if status == 401 else "pve-forbidden"


def advise(status: int, text: str, who: str = "") -> str | None:
    """Return what to do about a refusal of the node."""
    if status == 401:
        return _advise_login(who)
    if status == 403:
        return _advise_privileges(text, who)
    if LOCKED.search(text):
        return "wait for the task that holds the lock (`opsctl ct status SERVER`); opsctl never clears a lock"
    if NO_CONFIG.search(text):
        return "list the node's containers: pct list; it may have been migrated to another node"
    if "quorum" in text:
        return "the cluster cannot write its configuration now: pvecm status, on the node"
    if BUSY.search(text):
        return (
            "another task has its hands on this container: opsctl ct status SERVER, then try again"
        )
    return None


def _advise_login(who: str) -> str:
    if "!" in who:
        user = who.split("!")[0]
        return f"check token_id and its secret; on the node: pveum user token list {user}"
    return "check user and password, and the realm behind the @"


def _advise_privileges(text: str, who: str) -> str:
    if "root@pam" in text:
        return "only root@pam itself may, logged in with its password: no token, no other user"
    found = FORBIDDEN.search(text)
    if found is None or not who:
        return "see docs/proxmox.md for the privileges that opsctl needs, and on which paths"
    path, privilege = found["path"], found["privileges"].split("|")[0]
    kind = "tokens" if "!" in who else "users"
    also = " (and to its user, if the token is privilege-separated)" if "!" in who else ""
    return (
        f"give it a role with {privilege} on {path}{also}; on the node: "
        f"pveum acl modify {path} --{kind} '{who}' --roles ROLE"
    )


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
        self._who = token_id or user or ""
        self._may_log_in = password is not None
        arguments: dict[str, Any] = {
            "port": parts.port or 8006,
            "timeout": timeout_s,
            "verify_ssl": str(ca_file) if ca_file else fingerprint is None,
            "proxies": {"no_proxy": parts.hostname},  # for the login, which has no session
        }
        if token is not None:
            who, _, token_name = (token_id or "").partition("!")
            if not token_name:
                raise ConfigError("token_id is written user@realm!name")
            arguments |= {"user": who, "token_name": token_name, "token_value": token}
        else:
            arguments |= {"user": user, "password": password}
        self._host, self._arguments, self._fingerprint = parts.hostname, arguments, fingerprint
        self._api = self._connect()

    def _connect(self) -> Any:
        """Log in where there is a password, which proxmoxer does at once."""
        from proxmoxer import ProxmoxAPI

        def once() -> Any:
            with self._told():
                return ProxmoxAPI(self._host, **self._arguments)

        api = _retrying()(once)
        api._store["session"].trust_env = False  # a proxy variable must not redirect the API
        if self._fingerprint:
            api._store["session"].mount("https://", _pinned(self._fingerprint))
        return api

    def call(self, method: str, path: str, params: dict[str, Any] | None = None) -> Any:
        """Do one call; log in again, once, where the ticket is no longer good.

        proxmoxer renews a ticket after an hour with the ticket itself. That fails when it has expired
        meanwhile (2 h; a laptop's sleep counts for the node and not for our clock) or the node forgot it.
        A call that is answered with 401 has done nothing.
        """

        def once() -> Any:
            resource = self._api(path.strip("/"))
            with self._told():
                return getattr(resource, method.lower())(**(params or {}))

        try:
            return _retrying(method)(once)
        except PveError as error:
            if error.status != 401 or not self._may_log_in:
                raise
        self.close()
        self._api = self._connect()
        return _retrying(method)(once)

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
            status = int(error.status_code)
            if status in NODE_AWAY:
                raise TransportError(
                    f"{self.name}: it cannot reach the container's node ({status} {text})",
                    next_step="is that node up? on this one: pvecm status",
                    code="pve-node-away",
                    subject=self.name,
                ) from None
            raise PveError(status, text, subject=self.name, who=self._who) from None
        except AuthenticationError:
            text = f"the login of {self._who} was refused"
            raise PveError(401, text, subject=self.name, who=self._who) from None
        except requests.exceptions.SSLError as error:
            step = "name the node's CA (/etc/pve/pve-root-ca.pem) as ca_file, or its fingerprint"
            if self._fingerprint:
                step = "compare with the node's own: pvenode cert info; correct the fingerprint if they agree"
            raise TransportError(
                f"{self.name}: the certificate is not trusted ({self._clean(_root(error))})",
                next_step=step,
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
        return _retrying(method)(self._once, method, path, params or {})

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


def _retrying(method: str = "POST") -> tenacity.Retrying:
    """Try again what cannot have happened yet, and reads that were cut; at most four times in all.

    Not yet happened: no connection, or a lock that was busy.
    """
    return tenacity.Retrying(
        stop=tenacity.stop_after_attempt(4) | tenacity.stop_after_delay(45),
        wait=tenacity.wait_exponential(multiplier=0.5, max=5),
        retry=tenacity.retry_if_exception(lambda error: _may_retry(method, error)),
        reraise=True,
    )


def _may_retry(method: str, error: BaseException) -> bool:
    if isinstance(error, PveError):
        return bool(BUSY.search(error.text))
    again = {"pve-unreachable", *(("pve-cut", "pve-node-away") if method == "GET" else ())}
    return isinstance(error, TransportError) and error.code in again
