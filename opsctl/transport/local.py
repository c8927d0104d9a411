"""This machine: child processes in a session of their own, so that a Ctrl-C here does not reach them."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Sequence

from opsctl.errors import TransportError
from opsctl.transport.base import READ_BYTES, STDERR_TAIL_BYTES, CommandResult
from opsctl.transport.sudo import explain_sudo, with_sudo

WRITE_TIMEOUT_S = 30.0


class LocalTransport:
    """Runs commands on the machine that opsctl itself runs on.

    Args:
        become: "sudo" to run everything as root through ``sudo -n``, else None.
    """

    def __init__(self, become: str | None = None) -> None:
        self._become = become

    @property
    def name(self) -> str:
        return "local"

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> CommandResult:
        process = self._start(argv)
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise TransportError(
                f"{self.name}: {argv[0]} did not end within {timeout_s:g} s and was killed",
                code="command-timeout",
                subject=self.name,
            ) from error
        code = _shell_exit_code(process.returncode)
        refusal = self.explain(code, stderr)
        if refusal is not None:
            raise refusal
        return CommandResult(tuple(argv), code, stdout, stderr)

    def open(self, argv: Sequence[str]) -> LocalChannel:
        return LocalChannel(self._start(argv), self.name)

    def explain(self, exit_code: int | None, stderr: bytes) -> TransportError | None:
        return explain_sudo(self.name, None, exit_code, stderr) if self._become else None

    def close(self) -> None:
        """Nothing is held between commands."""

    def _start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        try:
            return subprocess.Popen(
                with_sudo(argv) if self._become else list(argv),
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                start_new_session=True,
            )
        except OSError as error:
            raise TransportError(
                f"{self.name}: cannot run {argv[0]}: {error.strerror}",
                next_step=f"install {argv[0]} or correct its path",
                code="command-not-found",
                subject=self.name,
            ) from error


class LocalChannel:
    """A running child whose streams are pipes; one thread reads, any thread writes under its own lock."""

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._name = name
        self._in, self._out, self._err = process.stdin, process.stdout, process.stderr
        self._tail = b""
        self._poll = select.poll()
        for stream in (self._out, self._err):
            os.set_blocking(stream.fileno(), False)
            self._poll.register(stream.fileno(), select.POLLIN)
        os.set_blocking(self._in.fileno(), False)

    def write(self, data: bytes) -> None:
        deadline = time.monotonic() + WRITE_TIMEOUT_S
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._in.fileno(), view) :]
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([], [self._in], [], left)[1]:
                    raise TransportError(
                        f"{self._name}: the command reads nothing", code="write-timeout"
                    ) from None
            except (OSError, ValueError) as error:
                raise TransportError(
                    f"{self._name}: the command ended while it was written to", code="cut"
                ) from error

    def read(self, timeout_s: float) -> bytes | None:
        deadline = time.monotonic() + timeout_s
        try:
            return self._read(deadline)
        except (OSError, ValueError):
            if self._out.closed or self._err.closed:  # by another thread, under this read
                return b""
            raise

    def _read(self, deadline: float) -> bytes | None:
        while True:
            left_ms = max(0.0, deadline - time.monotonic()) * 1000
            ready = [fd for fd, _ in self._poll.poll(left_ms)]
            if self._err.fileno() in ready:
                self._drain_stderr()
            if self._out.fileno() in ready:
                return os.read(self._out.fileno(), READ_BYTES)
            if not ready and time.monotonic() >= deadline:
                return None

    def stderr_tail(self) -> bytes:
        self._drain_stderr()
        return self._tail

    def close_stdin(self) -> None:
        try:
            self._in.close()
        except OSError:
            pass  # the child is gone already; what was still buffered is lost with it

    def exit_code(self, timeout_s: float) -> int | None:
        try:
            return _shell_exit_code(self._process.wait(timeout_s))
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        self.close_stdin()
        if self.exit_code(1.0) is None:
            try:
                os.killpg(self._process.pid, 9)
            except (ProcessLookupError, PermissionError):
                pass  # gone meanwhile, or a sudo that is not ours to signal: end of stdin ends it
            self.exit_code(0.2)
        self._out.close()
        self._err.close()

    def _drain_stderr(self) -> None:
        """Take what stderr holds, without waiting; at its end stop listening to it."""
        if self._err.closed:
            return
        try:
            while data := os.read(self._err.fileno(), READ_BYTES):
                self._tail = (self._tail + data)[-STDERR_TAIL_BYTES:]
        except BlockingIOError:
            return
        try:
            self._poll.unregister(self._err.fileno())
        except KeyError:
            pass  # its end was seen before


def _shell_exit_code(returncode: int) -> int:
    """Return 128+N for a child killed by signal N, as a shell and sshd report it."""
    return returncode if returncode >= 0 else 128 - returncode
