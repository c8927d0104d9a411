"""Run opsctl and kill it with SIGKILL at one named point: `python -m tests.wire.cut_run POINT WORDS...`.

POINT is ``begin:STEP``, ``act:STEP`` or ``end:STEP`` (right after the intent was written, before the outcome
is written, right after it was written), or ``call:OPERATION:MS`` (that many milliseconds after the first such
operation was sent to an agent). ``stop:STEP`` and ``hold:OPERATION:MS`` are ``begin`` and ``call`` with
SIGSTOP instead, for a test that does something meanwhile and lets it go on.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from opsctl import cli
from opsctl.agent.client import RemoteAgent
from opsctl.ledger import Ledger

FATAL = {"stop": signal.SIGSTOP, "hold": signal.SIGSTOP}


def die(kind: str) -> None:
    os.kill(os.getpid(), FATAL.get(kind, signal.SIGKILL))


def arm(point: str) -> None:
    """Wrap the ledger or the agent so that the process dies at ``point``."""
    kind, _, name = point.partition(":")
    if kind in ("call", "hold"):
        arm_call(kind, *name.rsplit(":", 1))
        return
    begin, end = Ledger.begin_step, Ledger.end_step
    names: dict[tuple[str, int], str] = {}

    def begin_step(self: Ledger, run: str, position: int, step: str, *rest: Any) -> int:
        turn = begin(self, run, position, step, *rest)
        names[run, position] = step
        if kind in ("begin", "stop") and step == name:
            die(kind)
        return turn

    def end_step(self: Ledger, run: str, position: int, *rest: Any, **keys: Any) -> None:
        is_it = names.get((run, position)) == name
        if kind == "act" and is_it:
            die(kind)
        end(self, run, position, *rest, **keys)
        if kind == "end" and is_it:
            die(kind)

    Ledger.begin_step = begin_step  # type: ignore[method-assign]
    Ledger.end_step = end_step  # type: ignore[method-assign]


def arm_call(kind: str, operation: str, delay_ms: str) -> None:
    call = RemoteAgent.call
    done: list[str] = []

    def cut_call(self: RemoteAgent, wanted: str, *rest: Any, **keys: Any) -> Any:
        if wanted == operation and not done:
            done.append(wanted)
            threading.Timer(float(delay_ms) / 1000, die, (kind,)).start()
        return call(self, wanted, *rest, **keys)

    RemoteAgent.call = cut_call  # type: ignore[method-assign]


if __name__ == "__main__":
    arm(sys.argv[1])
    sys.exit(cli.run(sys.argv[2:]))
