"""Signals by identity, at the last moment before they are sent."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator

import pytest

from opsctl.agent.ops import procfs, signalling
from opsctl.agent.remote import Error


class FakeContext:
    """What an operation gets, without an agent."""

    Error = Error

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.events: list[dict[str, object]] = []

    def emit(self, event: dict[str, object]) -> None:
        self.events.append(event)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def request_for(process: subprocess.Popen[bytes]) -> dict[str, object]:
    return {
        "pid": process.pid,
        "start_ticks": procfs.start_ticks(process.pid),
        "boot_id": procfs.boot_id(),
        "signal": "KILL",
    }


def test_nothing_is_signalled_once_the_client_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    """The lease ended between the request and the signal."""
    context = FakeContext()
    context.cancelled.set()

    with pytest.raises(Error) as caught:
        signalling.signal(request_for(sleeper), context)  # type: ignore[arg-type]

    assert caught.value.kind == "cancelled"
    assert sleeper.poll() is None


def test_without_pidfds_the_reply_says_so(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.8: one last look, then kill(2); a younger process is left alone there, too."""
    monkeypatch.setattr(signalling, "HAS_PIDFD", False)
    request = request_for(sleeper)
    younger = {**request, "start_ticks": 1}

    assert signalling.signal(younger, FakeContext()) == {"outcome": "recycled", "via": "kill"}  # type: ignore[arg-type]
    assert sleeper.poll() is None
    assert signalling.signal(request, FakeContext()) == {"outcome": "sent", "via": "kill"}  # type: ignore[arg-type]
    assert sleeper.wait(5) == -9


@pytest.mark.parametrize("pidfd", [True, False])
def test_a_watch_tells_each_exit_once(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, pidfd: bool
) -> None:
    """With its exit code for a child of ours, and at once for one that was gone before."""
    monkeypatch.setattr(signalling, "HAS_PIDFD", pidfd and signalling.HAS_PIDFD)
    target = request_for(sleeper)
    gone = {"pid": sleeper.pid, "start_ticks": 1}
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    context = FakeContext()

    facts = signalling.watch({"processes": [target, gone], "timeout_s": 5}, context)  # type: ignore[arg-type]

    exits = [event for event in context.events if "exit" in event]
    assert [event["exit_code"] for event in exits] == [-9, -9]
    assert facts["left"] == []


def test_a_signal_without_a_name_is_refused() -> None:
    """A typing mistake is told, not guessed."""
    with pytest.raises(Error, match="no signal named 'TREM'"):
        signalling.signal_number("TREM", FakeContext())  # type: ignore[arg-type]
    assert signalling.signal_number("SIGTERM", FakeContext()) == 15  # type: ignore[arg-type]


def test_a_withdrawn_wait_is_no_answer(sleeper: subprocess.Popen[bytes]) -> None:
    """Its time is up on the agent's clock before it is on ours: the process is not "left", nobody knows."""
    context = FakeContext()
    context.cancelled.set()
    request = {"processes": [request_for(sleeper)], "timeout_s": 60.0}

    with pytest.raises(Error) as caught:
        signalling.wait_gone(request, context)  # type: ignore[arg-type]

    assert caught.value.kind == "operation-timeout"


@pytest.mark.parametrize(
    ("error", "outcome"), [(ProcessLookupError, "gone"), (PermissionError, "denied")]
)
def test_not_allowed_is_not_gone(
    monkeypatch: pytest.MonkeyPatch, error: type[OSError], outcome: str
) -> None:
    """What may not be signalled still runs, and still holds its memory."""

    def refuse(pid: int, number: int) -> None:
        raise error

    monkeypatch.setattr(os, "kill", refuse)

    assert signalling.deliver(None, 4242, 15) == outcome
