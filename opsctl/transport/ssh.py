"""SSH: one connection per host, one channel per command, argv quoted in this one place."""

from __future__ import annotations

import collections
import shlex
import threading
import time
from collections.abc import Sequence
from typing import Any

from opsctl.errors import TransportError
from opsctl.transport import ssh_connect
from opsctl.transport.base import READ_BYTES, STDERR_TAIL_BYTES, CommandResult
from opsctl.transport.light_import import fabric, paramiko
from opsctl.transport.ssh_connect import Target
from opsctl.transport.sudo import explain_sudo, with_sudo

OPEN_TIMEOUT_S = 15.0
MAX_STDERR_BYTES = 64 << 20
WRITE_TIMEOUT_S = 30.0


class SshTransport:
    """Runs commands on a host over one SSH connection, opened on first use.

    Args:
        target: where to; see ``ssh_connect.parse_target``.
        become: "sudo" to run everything as root through ``sudo -n``, else None.
    """

    def __init__(self, target: Target, become: str | None = None) -> None:
        self._target = target
        self._become = become
        self._lock = threading.Lock()
        self._connection: fabric.Connection | None = None

    @property
    def name(self) -> str:
        if self._connection is not None:
            return ssh_connect.describe(self._connection)
        user = f"{self._target.user}@" if self._target.user else ""
        port = f":{self._target.port}" if self._target.port else ""
        return f"ssh:{user}{self._target.host}{port}"

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> CommandResult:
        deadline = time.monotonic() + timeout_s
        channel = self._start(argv, MAX_STDERR_BYTES)
        parts: list[bytes] = []
        try:
            writer = threading.Thread(target=channel.feed, args=(stdin,), daemon=True)
            writer.start()
            while (left := deadline - time.monotonic()) > 0:
                data = channel.read(left)
                if data == b"":
                    break
                parts.append(data or b"")
            code = channel.exit_code(max(0.0, deadline - time.monotonic()))
            if code is None and time.monotonic() >= deadline:
                raise TransportError(
                    f"{self.name}: {argv[0]} did not end within {timeout_s:g} s; "
                    "it may still be running there",
                    next_step="look on the host before running it again",
                    code="command-timeout",
                    subject=self._target.host,
                )
            if code is None and not self._is_alive():
                raise TransportError(
                    f"{self.name}: the connection broke while {argv[0]} ran; how it ended is not known",
                    next_step="look on the host before running it again",
                    code="cut",
                    subject=self._target.host,
                )
            stderr = channel.stderr_all()
        finally:
            channel.close()
        refusal = self.explain(code, stderr)
        if refusal is not None:
            raise refusal
        return CommandResult(tuple(argv), code, b"".join(parts), stderr)

    def open(self, argv: Sequence[str]) -> SshChannel:
        return self._start(argv, STDERR_TAIL_BYTES)

    def _start(self, argv: Sequence[str], keep_stderr_bytes: int) -> SshChannel:
        words = with_sudo(argv) if self._become else list(argv)
        try:
            session = self._client().open_session(timeout=OPEN_TIMEOUT_S)
            channel = SshChannel(session, self.name, keep_stderr_bytes)
            session.exec_command(shlex.join(words).encode("utf-8", "surrogateescape"))
        except paramiko.ChannelException as error:
            raise TransportError(
                f"{self.name}: the host opens no further session ({error.text})",
                next_step="raise MaxSessions in its sshd_config (default 10), or run less at once",
                code="no-session",
                subject=self._target.host,
            ) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise TransportError(
                f"{self.name}: the connection broke before {argv[0]} was started ({error or 'EOF'})",
                next_step="run it again",
                code="cut",
                subject=self._target.host,
            ) from error
        return channel

    def explain(self, exit_code: int | None, stderr: bytes) -> TransportError | None:
        if not self._become:
            return None
        user = self._connection.user if self._connection else self._target.user
        return explain_sudo(self.name, user, exit_code, stderr)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                ssh_connect.close(self._connection)
                self._connection = None

    def _is_alive(self) -> bool:
        connection = self._connection
        transport = connection.client.get_transport() if connection is not None else None
        return transport is not None and transport.is_active()

    def _client(self) -> paramiko.Transport:
        """Return the live SSH transport, connecting first where needed."""
        with self._lock:
            if self._connection is None:
                self._connection = ssh_connect.connect(self._target)
            transport: Any = self._connection.client.get_transport()
        if transport is None or not transport.is_active():
            raise TransportError(
                f"{self.name}: the connection is lost",
                next_step="run it again; look first, something may have been done",
                code="cut",
                subject=self._target.host,
            )
        made: paramiko.Transport = transport
        return made


class SshChannel:
    """A running remote command; a thread drains stderr, for both streams share one window.

    Args:
        keep_bytes: how much of stderr is kept at least; what is older may be dropped.
    """

    def __init__(
        self, session: paramiko.Channel, name: str, keep_bytes: int = STDERR_TAIL_BYTES
    ) -> None:
        self._session = session
        self._name = name
        self._keep_bytes = keep_bytes
        self._stderr: collections.deque[bytes] = collections.deque()
        self._stderr_bytes = 0
        self._drained = threading.Event()
        session.settimeout(1.0)
        threading.Thread(target=self._drain_stderr, daemon=True, name="ssh-stderr").start()

    def write(self, data: bytes) -> None:
        deadline = time.monotonic() + WRITE_TIMEOUT_S
        while data:
            try:
                sent = self._session.send(data)
            except TimeoutError as error:  # a reader's shorter time-out: nothing was sent
                if time.monotonic() > deadline:
                    raise TransportError(
                        f"{self._name}: the command reads nothing", code="write-timeout"
                    ) from error
                continue
            except (OSError, EOFError, paramiko.SSHException) as error:
                raise TransportError(
                    f"{self._name}: the connection broke while the command was written to",
                    code="cut",
                ) from error
            if sent == 0:
                raise TransportError(
                    f"{self._name}: the command ended while it was written to", code="cut"
                )
            data = data[sent:]

    def feed(self, data: bytes) -> None:
        """Write ``data`` and close stdin; a command that does not want its input is no error."""
        try:
            self.write(data)
        except TransportError:
            return
        self.close_stdin()

    def read(self, timeout_s: float) -> bytes | None:
        self._session.settimeout(max(timeout_s, 0.0))
        try:
            return self._session.recv(READ_BYTES)
        except TimeoutError:
            return None
        except (OSError, EOFError):
            return b""

    def stderr_tail(self) -> bytes:
        return self.stderr_all()[-STDERR_TAIL_BYTES:]

    def stderr_all(self) -> bytes:
        """Return all of stderr, waiting a moment for its end when stdout has ended."""
        if self._session.eof_received or self._session.closed:
            self._drained.wait(1.0)
        return b"".join(self._stderr)

    def close_stdin(self) -> None:
        try:
            self._session.shutdown_write()
        except (OSError, EOFError, paramiko.SSHException):
            pass  # the channel is gone, and its stdin with it

    def exit_code(self, timeout_s: float) -> int | None:
        self._session.status_event.wait(timeout_s)
        if not self._session.exit_status_ready() or self._session.exit_status < 0:
            return None
        return self._session.exit_status

    def close(self) -> None:
        try:
            self._session.close()
        except (OSError, EOFError, paramiko.SSHException):
            pass  # the connection is gone already

    def _drain_stderr(self) -> None:
        try:
            while True:
                try:
                    data = self._session.recv_stderr(READ_BYTES)
                except TimeoutError:
                    continue
                except (OSError, EOFError):
                    return
                if not data:
                    return
                self._stderr.append(data)
                self._stderr_bytes += len(data)
                while self._stderr_bytes - len(self._stderr[0]) > self._keep_bytes:
                    self._stderr_bytes -= len(self._stderr.popleft())
        finally:
            self._drained.set()
