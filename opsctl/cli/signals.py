"""Ctrl-C in a run: once ends after the step in hand, twice ends at once; at a question it is a no."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from opsctl.steps.base import Reporter

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Raise KeyboardInterrupt on the first signal while the block asks: nothing is in hand."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled_by(handle):
        yield


@contextmanager
def polite_signals(cancelled: threading.Event, reporter: Reporter) -> Iterator[None]:
    """Set ``cancelled`` on the first signal, raise KeyboardInterrupt on the second."""

    def handle(number: int, frame: FrameType | None) -> None:
        if cancelled.is_set():
            raise KeyboardInterrupt
        cancelled.set()
        name = signal.Signals(number).name
        reporter.say(f"{name}: the step in hand is finished first; once more stops at once")

    with _handled_by(handle):
        yield


@contextmanager
def _handled_by(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let ``handle`` take the signals, and give them back to who had them."""
    before = {number: signal.signal(number, handle) for number in NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
