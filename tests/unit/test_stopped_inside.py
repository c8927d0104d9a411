"""A stopped container is an empty one to those who stop a server, and closed to everybody else."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.errors import TransportError
from opsctl.plan import build
from opsctl.playbook import find, load
from opsctl.session import Hosts, ServerSession
from opsctl.site import Site

SITE = Site.model_validate(
    {
        "hosts": {"node": {"ssh": "root@192.0.2.1"}, "ct": {"pct": 129, "via": "node"}},
        "servers": {"glm5": {"host": "ct", "command": ["/bin/true"]}},
    }
)


class Node:
    """The node's agent: it says who it is."""

    def call(self, operation: str, request: Any = None, **_: Any) -> dict[str, Any]:
        return {"of": "node", "operation": operation}


def session(monkeypatch: pytest.MonkeyPatch, code: str) -> ServerSession:
    def agent(_: Hosts, name: str) -> Any:
        if name == "node":
            return Node()
        raise TransportError("the container is not running", code=code)

    monkeypatch.setattr(Hosts, "agent", agent)
    return ServerSession(Hosts(SITE), "glm5")


def test_a_stop_finds_an_empty_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launch, no leftover; the kernel's facts are the node's; what needs a running one is refused."""
    found = session(monkeypatch, "container-stopped")
    found.may_be_stopped = True

    assert found.agent.call("launch.records", {"port": 1}) == {"records": []}
    assert found.agent.call("host.read")["of"] == "node"
    with pytest.raises(TransportError, match="not running"):
        found.agent.call("launch.start", {})


@pytest.mark.parametrize(("code", "may"), [("container-stopped", False), ("connect", True)])
def test_any_other_trouble_is_raised(monkeypatch: pytest.MonkeyPatch, code: str, may: bool) -> None:
    """A run that launches, and a way that is broken for another reason: nothing is taken for empty."""
    found = session(monkeypatch, code)
    found.may_be_stopped = may

    with pytest.raises(TransportError):
        _ = found.agent


@pytest.mark.parametrize(
    ("name", "wanted"), [("stop", True), ("free-gpus", True), ("restart", False), ("launch", False)]
)
def test_only_playbooks_that_launch_nothing_may_find_it_stopped(name: str, wanted: bool) -> None:
    """The others start the container first."""
    assert build(load(find(name)), {}).only_stops is wanted
