"""Agents that are started while the caller does something else: real processes on this machine."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from opsctl.agent.client import RemoteAgent
from opsctl.errors import TransportError
from opsctl.session import Hosts
from opsctl.site import Host, Site
from tests.wire.stopping import is_alive, wait_for

pytestmark = pytest.mark.wire

HERE = Site(hosts={"here": Host(local=True), "closed": Host(ssh="nobody@127.0.0.1:1")})


def test_an_agent_that_was_begun_is_the_one_that_is_used() -> None:
    """It is started once, and handed to ``then`` as well."""
    hosts = Hosts(HERE)
    seen: list[tuple[str, RemoteAgent]] = []
    told = threading.Event()

    def then(name: str, agent: RemoteAgent) -> None:
        seen.append((name, agent))
        told.set()

    try:
        hosts.begin(["here", "here"], then)
        agent = hosts.agent("here")
        assert told.wait(20)
        assert seen == [("here", agent)]
        assert hosts.agent("here") is agent
        assert agent.call("agent.noop") == {}
    finally:
        hosts.close()


def test_a_host_that_cannot_be_reached_is_told_to_who_asks_for_it(tmp_path: Path) -> None:
    """Beginning raises nothing, the first use does, and a later one tries again."""
    hosts = Hosts(HERE)
    try:
        hosts.begin(["closed", "here"])
        assert hosts.agent("here").call("agent.noop") == {}
        for _ in range(2):
            with pytest.raises(TransportError, match="nothing listens on 127"):
                hosts.agent("closed")
    finally:
        hosts.close()


def test_an_agent_that_nobody_used_is_ended() -> None:
    """A command that is refused after it began leaves nothing on the host."""
    hosts = Hosts(HERE)
    pids: list[int] = []
    hosts.begin(["here"], lambda name, agent: pids.append(agent.hello["pid"]))
    wait_for(lambda: pids)
    assert is_alive(pids[0])
    hosts.close()
    wait_for(lambda: not is_alive(pids[0]))
