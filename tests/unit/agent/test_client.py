"""What a client believes its agent to have, where the way to it or our own files fail."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from opsctl.agent import client
from opsctl.agent.client import RemoteAgent
from opsctl.agent.shipping import missing_frames
from opsctl.cli.stop import _load_ahead
from opsctl.errors import AgentError, OpsctlError, TransportError
from opsctl.session import ServerSession


class Way:
    """A channel that notes what is written; it can be full, and then takes a part."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_full = False

    def write(self, data: bytes) -> None:
        self.written.append(data[:100] if self.is_full else data)
        if self.is_full:
            raise TransportError("the command reads nothing", code="write-timeout")

    def read(self, timeout_s: float) -> bytes | None:
        return b""

    def stderr_tail(self) -> bytes:
        return b""

    def close_stdin(self) -> None: ...

    def exit_code(self, timeout_s: float) -> int | None:
        return None

    def close(self) -> None: ...


@pytest.fixture
def way() -> Way:
    return Way()


@pytest.fixture
def agent(way: Way) -> RemoteAgent:
    made = RemoteAgent("host", way, b"", silence_s=30.0, ping_s=5.0)
    made.hello = {"magic": "00"}
    return made


def sent(way: Way) -> list[str]:
    """Return the names of the modules that went out whole."""
    lines = b"".join(way.written).splitlines()
    return [json.loads(line)["load"] for line in lines if b'"load"' in line]


def test_a_module_sent_ahead_is_not_sent_again(agent: RemoteAgent, way: Way) -> None:
    """With what it needs, each once."""
    agent.load(["launch.tidy", "launch.find"])
    agent.load(["launch.tidy"])

    assert sent(way) == ["procfs", "launch_find", "launch_tidy"]


def test_half_a_frame_is_followed_by_nothing(agent: RemoteAgent, way: Way) -> None:
    """What was cut is not there, and a call that came after it would be read as its rest."""
    way.is_full = True
    with pytest.raises(TransportError):
        agent.load(["launch.tidy"])
    way.is_full = False

    with pytest.raises(OpsctlError) as caught:
        agent.call("launch.tidy", {}, timeout_s=1.0)

    assert caught.value.code == "write-timeout"
    assert len(way.written) == 1


def test_what_could_not_be_read_here_is_sent_later(
    agent: RemoteAgent, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """opsctl is being upgraded: a module that was not sent is not taken for sent, nor what it needs."""
    whole = missing_frames

    def broken(module: str, loaded: set[str], magic: str | None) -> list[bytes]:
        whole(module, loaded, magic)
        raise AgentError("opsctl.agent.ops.launch_tidy is not installed here")

    monkeypatch.setattr(client, "missing_frames", broken)
    with pytest.raises(AgentError):
        agent.load(["launch.tidy"])
    monkeypatch.setattr(client, "missing_frames", whole)
    agent.load(["launch.tidy"])

    assert sent(way) == ["procfs", "launch_find", "launch_tidy"]


@pytest.mark.parametrize("problem", [TransportError("cut"), FileNotFoundError("ops"), KeyError(1)])
def test_no_failure_of_the_preparing_reaches_the_stop(problem: Exception) -> None:
    """Between TERM and KILL nothing that only saves time may end a stop."""

    class Session:
        @property
        def agent(self) -> Any:
            raise problem

    _load_ahead(cast("ServerSession", Session()))
