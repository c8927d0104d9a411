"""What a command says on stderr while it works: lines that stay, and one line that is replaced."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from opsctl.cli import given

EVERY_S = 15.0  # without a terminal, progress is a line now and then
FIRST_S = 2.0  # and the first one comes when silence would be noticed


def can_redraw() -> bool:
    """Say whether stderr is a terminal whose lines can be drawn again."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Talk:
    """Reporter on stderr: live on a terminal, sparse in a pipe, silent when quiet."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._on_terminal = can_redraw()
        self._shown = False
        self._next = time.monotonic() + EVERY_S
        self._told = 0.0  # when somebody last showed progress, on the monotonic clock
        self._guard = threading.Lock()

    def say(self, text: str) -> None:
        """Print one line that stays."""
        if self._quiet:
            return
        with self._guard:
            self._wipe()
            click.echo(given.runnable(text), err=True)

    def progress(self, text: str) -> None:
        """Show the state of the moment, which the next one replaces."""
        self._told = time.monotonic()
        self._show(text)

    def _show(self, text: str) -> None:
        if self._quiet:
            return
        with self._guard:
            if self._on_terminal:
                self._wipe()
                width = shutil.get_terminal_size().columns - 1
                click.echo(f"  {text}"[:width], err=True, nl=False)
                self._shown = True
            elif time.monotonic() >= self._next:
                self._next = time.monotonic() + EVERY_S
                click.echo(f"  ... {text}", err=True)

    @contextmanager
    def ticking(self, text: str) -> Iterator[None]:
        """Show ``text`` with its seconds while the block runs, once it has run for a moment.

        Without a terminal the first line comes after two seconds. Who shows progress of its own inside the
        block is not overwritten.
        """
        over = threading.Event()
        begun = time.monotonic()

        def tick() -> None:
            first_s = 0.5 if self._on_terminal else FIRST_S
            if over.wait(first_s):
                return
            self._next = min(self._next, begun + FIRST_S)
            while True:
                now = time.monotonic()
                if now - self._told > FIRST_S:
                    self._show(f"{text}: {now - begun:.0f} s")
                if over.wait(0.5):
                    return

        thread = threading.Thread(target=tick, daemon=True, name="progress")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.end()

    def end(self) -> None:
        """Take the line of the moment away, before the result is printed."""
        with self._guard:
            self._wipe()

    def _wipe(self) -> None:
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._shown = False
