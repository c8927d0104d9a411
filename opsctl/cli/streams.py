"""stdout and stderr that cannot break a run: a closed one, a reader that left, a full disk, foreign bytes.

A stop that dies between TERM and KILL because it was piped into ``head`` is worse than any lost line.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, TextIO


class ResultLostError(OSError):
    """The result could not be written to stdout; raised once, what follows goes nowhere."""


class Stdout(io.FileIO):
    """stdout's descriptor, which remembers why it took no more."""

    lost: OSError | None = None

    def write(self, data: Any) -> int | None:  # type: ignore[override, unused-ignore]
        """Write, or say once that nobody reads any more."""
        if self.lost is not None:
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            self.lost = error
            raise ResultLostError(error.errno, error.strerror) from error


class Stderr(io.FileIO):
    """stderr's descriptor: talk that cannot be written is no reason to stop in the middle."""

    def write(self, data: Any) -> int | None:  # type: ignore[override, unused-ignore]
        """Write, or do without."""
        try:
            return super().write(data)
        except OSError:
            return len(data)


def guard() -> Stdout:
    """Replace stdout and stderr of this process. First, so that no file gets one of their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    out = Stdout(1, "w", closefd=False)
    sys.stdout = _text(out, sys.stdout)
    sys.stderr = _text(Stderr(2, "w", closefd=False), sys.stderr)
    return out


def _text(raw: io.FileIO, like: TextIO | None) -> TextIO:
    """Return a text stream with the encoding of the old one; what that cannot say is escaped."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(like, "encoding", None) or "utf-8",
        errors="backslashreplace",
        line_buffering=raw.fileno() == 2 or raw.isatty(),
    )


def is_lost() -> bool:
    """Say whether nobody takes the result any more: then there is nothing to repeat."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, Stdout) and raw.lost is not None


def settle(out: Stdout, code: int) -> int:
    """Write what is left, and return the exit code: the run's own; 1 if its result is lost on a full disk."""
    try:
        sys.stdout.flush()
    except OSError:
        pass
    if out.lost is None or out.lost.errno == errno.EPIPE:
        return code  # whoever reads has seen enough
    print(f"opsctl: the result could not be written: {out.lost.strerror}", file=sys.stderr)
    return code or 1
