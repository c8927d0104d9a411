"""Connecting over SSH: ssh_config, jump hosts, checked host keys; and what went wrong, in words."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opsctl.errors import TransportError
from opsctl.records import dataclass
from opsctl.transport import ssh_files
from opsctl.transport.light_import import fabric, paramiko
from opsctl.transport.ssh_host_key import HostKeyChanged, RefuseUnknownKey, Vouched, asking_for

KEEPALIVE_S = 10
ATTEMPTS = 3
# an unanswered byte ends the connection after this; the kernel's own limit is about 15 minutes
TCP_USER_TIMEOUT_MS = 30_000

# paramiko logs tracebacks of refused connections; what matters is raised, and said once
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect: ``user``, ``port`` None means: as ssh_config says."""

    host: str
    user: str | None = None
    port: int | None = None
    connect_timeout_s: float = 10.0
    ssh_config_path: str | None = None  # instead of ~/.ssh/config and /etc/ssh/ssh_config
    known_hosts: str | None = None  # instead of those that ssh_config names
    identity_file: str | None = None  # besides those that ssh_config names


class Retryable(Exception):
    """A connection that broke before anything was asked of the host; ``error`` is what to report."""

    def __init__(self, error: TransportError) -> None:
        super().__init__(error.message)
        self.error = error


def parse_target(text: str, **options: Any) -> Target:
    """Return the parts of ``[user@]host[:port]``; an IPv6 address takes brackets when a port follows."""
    user, _, rest = text.removeprefix("ssh://").rpartition("@")
    host, port = rest, ""
    if rest.startswith("["):
        host, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    elif rest.count(":") == 1:
        host, _, port = rest.partition(":")
    if not host or (port and not (port.isdigit() and 0 < int(port) < 65536)):
        raise TransportError(
            f"'{text}' is not a host", next_step="write [user@]host[:port]", subject=text
        )
    return Target(host, user or None, int(port) if port else None, **options)


def connect(target: Target) -> fabric.Connection:
    """Return an open connection; tried again only while the host breaks off before it was authenticated.

    Raises:
        TransportError: with the reason and the next step.
    """
    try:
        return _connect_once(target)
    except Retryable:
        pass
    import tenacity  # 30 ms of import, only needed when something went wrong

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Retryable),
        stop=tenacity.stop_after_attempt(ATTEMPTS - 1),
        wait=tenacity.wait_random_exponential(multiplier=0.3, max=2),
        before=lambda state: None,
        reraise=True,
    )
    try:
        return retrying(_connect_once, target)
    except Retryable as error:
        raise error.error from error


def _connect_once(target: Target) -> fabric.Connection:
    try:
        connection = _connection(target)
    except (paramiko.ConfigParseError, OSError, ValueError) as error:
        raise TransportError(
            f"the ssh configuration cannot be used: {error}",
            next_step=f"look at what `ssh -G {target.host}` says",
            subject=target.host,
        ) from error
    try:
        _open(connection, target.connect_timeout_s)
    except BaseException:
        close(connection)
        raise
    return connection


def close(connection: fabric.Connection) -> None:
    """Close a connection and its jump hosts; also one that was opened only in part."""
    while isinstance(connection, fabric.Connection):
        connection.client.close()
        connection = connection.gateway


def _connection(target: Target) -> fabric.Connection:
    config = ssh_files.config(target.ssh_config_path)
    base: paramiko.SSHConfig = config.base_ssh_config
    jumps = str(base.lookup(target.host).get("proxyjump", "none"))
    gateway: Any = False
    if jumps != "none":
        for hop in jumps.split(","):  # visited in the order written, as ssh(1) does
            jump = parse_target(hop.strip())
            jump = dataclasses.replace(
                jump, known_hosts=target.known_hosts, identity_file=target.identity_file
            )
            gateway = _single(config, jump, target.connect_timeout_s, gateway)
    elif "proxycommand" in base.lookup(target.host):
        gateway = base.lookup(target.host)["proxycommand"]
    return _single(config, target, target.connect_timeout_s, gateway)


def _single(
    config: fabric.Config, target: Target, timeout_s: float, gateway: Any
) -> fabric.Connection:
    kwargs: dict[str, Any] = {"banner_timeout": timeout_s, "auth_timeout": timeout_s * 2}
    looked_up = config.base_ssh_config.lookup(target.host)
    if looked_up.get("identitiesonly") == "yes":
        kwargs |= {"allow_agent": False, "look_for_keys": False}
    if target.identity_file:
        kwargs["key_filename"] = [str(Path(target.identity_file).expanduser())]
    connection = fabric.Connection(
        target.host, target.user, target.port, config, gateway, connect_kwargs=kwargs
    )
    files = looked_up.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2").split()
    if target.known_hosts:
        files = [target.known_hosts]
    files += looked_up.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts").split()
    known = ssh_files.known_hosts([Path(name).expanduser() for name in files])
    alias = looked_up.get("hostkeyalias")
    vouched = Vouched.of(known, connection.host, connection.port, alias)
    connection.client.set_missing_host_key_policy(RefuseUnknownKey(vouched, files[0]))
    connection.connect_kwargs["transport_factory"] = asking_for(vouched)
    return connection


def _open(connection: fabric.Connection, timeout_s: float) -> None:
    """Open one hop after the other, so that an error names the hop that it belongs to."""
    gateway = connection.gateway
    if isinstance(gateway, fabric.Connection):
        _open(gateway, timeout_s)
    name = describe(connection)
    with_errors(connection, lambda: _open_single(connection, timeout_s), name)
    transport = connection.client.get_transport()
    transport.set_keepalive(KEEPALIVE_S)


def _open_single(connection: fabric.Connection, timeout_s: float) -> None:
    if not connection.gateway:
        connection.connect_kwargs["sock"] = _tcp(connection.host, connection.port, timeout_s)
    connection.connect_timeout = timeout_s
    connection.open()


class PromptSocket(socket.socket):
    """A socket that acknowledges at once, and whose reader is told at once when it is closed."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receive, and acknowledge now.

        sshd keeps Nagle's algorithm on for a session without a terminal (OpenSSH 9.2): its second small
        packet waits for the acknowledgement of the first, which Linux delays by 40 ms. Without this a
        session takes 44 ms to open instead of 1, and an event that closely follows another is as late.
        """
        data = super().recv(size, flags)
        if hasattr(socket, "TCP_QUICKACK"):  # Linux forgets it with what is sent next
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return data

    def close(self) -> None:
        """Close; paramiko waits for its reader, which would see it only at its next time-out of 0.1 s."""
        try:
            self.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # never connected, or closed by the other side
        super().close()


def _tcp(host: str, port: int, timeout_s: float) -> socket.socket:
    """Return a socket without Nagle's delay: that alone takes a command from 44 to 2.4 ms (paramiko 3.5)."""
    made = PromptSocket(fileno=socket.create_connection((host, port), timeout_s).detach())
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)
    return made


def describe(connection: fabric.Connection) -> str:
    """Return ``ssh:user@host:port``, and through which host."""
    host = f"[{connection.host}]" if ":" in connection.host else connection.host
    name = f"ssh:{connection.user}@{host}:{connection.port}"
    if isinstance(connection.gateway, fabric.Connection):
        return f"{name} through {connection.gateway.host}"
    return name


def _offered(connection: fabric.Connection, problem: paramiko.AuthenticationException) -> str:
    """Return which keys were offered, and what the host accepts where it says so."""
    files = [str(file) for file in connection.connect_kwargs.get("key_filename", [])]
    defaults = connection.connect_kwargs.get("look_for_keys", True)
    agent = ["the keys of your agent and of ~/.ssh"] if defaults else []
    text = f"offered {', '.join(files + agent)}"
    if isinstance(problem, paramiko.BadAuthenticationType):
        text += f"; the host accepts {', '.join(problem.allowed_types)}"
    return text


def with_errors(
    connection: fabric.Connection, act: Callable[[], None], name: str | None = None
) -> None:
    """Run ``act`` and turn each way of failing to connect into one sentence with a next step."""
    name = name or describe(connection)
    host, port, user = connection.host, connection.port, connection.user
    by_hand = f"try by hand: ssh -p {port} {user}@{host} true"

    def error(text: str, next_step: str, code: str) -> TransportError:
        return TransportError(f"{name}: {text}", next_step=next_step, code=code, subject=host)

    try:
        act()
    except HostKeyChanged as problem:
        raise error(problem.text, problem.next_step, "host-key-changed") from problem
    except paramiko.PasswordRequiredException as problem:
        raise error(
            "the private key is encrypted", "load it first: ssh-add", "key-encrypted"
        ) from problem
    except paramiko.AuthenticationException as problem:
        raise error(
            f"no key was accepted for {user}: {_offered(connection, problem)}",
            f"add your public key there: ssh-copy-id -p {port} {user}@{host}",
            "auth-refused",
        ) from problem
    except paramiko.ChannelException as problem:
        through = getattr(connection.gateway, "host", "the jump host")
        raise error(
            f"{through} cannot reach {host}:{port} ({problem.text})",
            f"on {through}: nc -vz {host} {port}",
            "jump-refused",
        ) from problem
    except paramiko.ProxyCommandFailure as problem:
        raise error(f"the ProxyCommand failed: {problem}", by_hand, "proxy-command") from problem
    except paramiko.SSHException as problem:
        if "No authentication methods" in str(problem):
            raise error(
                "there is no key to offer: no agent, no key file",
                "load a key (ssh-add) or name one as IdentityFile in ~/.ssh/config",
                "no-key",
            ) from problem
        cause = f": {problem.__cause__}" if problem.__cause__ else ""
        raise Retryable(
            error(f"no SSH session could be set up: {problem}{cause}", by_hand, "ssh")
        ) from problem
    except socket.gaierror as problem:
        raise error(
            f"the name {host} cannot be resolved ({problem.strerror})",
            "correct the host's name in the site file or in ~/.ssh/config",
            "unknown-name",
        ) from problem
    except TimeoutError as problem:
        raise error(
            f"no answer from {host} port {port} within the connect time",
            "is the host up, the address right, a firewall in between? " + by_hand,
            "connect-timeout",
        ) from problem
    except ConnectionRefusedError as problem:
        raise error(
            f"nothing listens on {host} port {port}",
            f"is sshd running there, on that port? {by_hand}",
            "refused",
        ) from problem
    except (ConnectionResetError, BrokenPipeError, EOFError) as problem:
        raise Retryable(
            error("the host broke the connection off", by_hand, "connection-reset")
        ) from problem
    except OSError as problem:
        reason = problem.strerror or os.strerror(problem.errno or 0)
        raise error(f"no way to {host} port {port}: {reason}", by_hand, "unreachable") from problem
