"""What every way to a host offers: one argv in, bytes out; and a live channel for the agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from opsctl.errors import TransportError
from opsctl.records import dataclass

STDERR_TAIL_BYTES = 16 * 1024
READ_BYTES = 64 * 1024  # larger buffers are mapped anew for each read, which costs 13 microseconds


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What one command produced. ``exit_code`` is None when the far side reported none."""

    argv: tuple[str, ...]
    exit_code: int | None
    stdout: bytes
    stderr: bytes


class Channel(Protocol):
    """A running command whose three streams are held by us."""

    def write(self, data: bytes) -> None:
        """Send all of ``data`` to the command's stdin. Raises TransportError when the way is cut."""

    def read(self, timeout_s: float) -> bytes | None:
        """Return the next bytes of stdout, b"" at its end, None when ``timeout_s`` passed without any."""

    def stderr_tail(self) -> bytes:
        """Return the last bytes (up to 16 KiB) that the command wrote to stderr so far."""

    def close_stdin(self) -> None:
        """Close the command's stdin; the agent ends on it."""

    def exit_code(self, timeout_s: float) -> int | None:
        """Return the command's exit code once it ended, None when that took longer or is not known."""

    def close(self) -> None:
        """Give the channel up, waiting at most a second."""


class Transport(Protocol):
    """Runs one argv on one host. No shell is involved on either side unless argv names one."""

    @property
    def name(self) -> str:
        """How messages name the host, e.g. ``ssh:root@192.0.2.6:22`` or ``pct:129 via pve1``."""

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> CommandResult:
        """Run ``argv`` to its end. Raises TransportError when the host cannot be reached or time is up."""

    def open(self, argv: Sequence[str]) -> Channel:
        """Start ``argv`` and return its live channel."""

    def explain(self, exit_code: int | None, stderr: bytes) -> TransportError | None:
        """Return the error that the way itself reported (sudo asks, container stopped), else None."""

    def close(self) -> None:
        """Close whatever the transport holds; safe to call twice."""
