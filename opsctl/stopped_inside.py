"""The inside of a container that is stopped, to those who stop a server: nothing of it can run there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opsctl.errors import TransportError

if TYPE_CHECKING:
    from opsctl.agent.client import Agent, OnEvent

# what an agent inside would say of a place without processes
NOTHING: dict[str, dict[str, Any]] = {
    "launch.find": {"state": "absent"},
    "launch.records": {"records": []},
    "leftovers.read": {"leftovers": []},
    "lock.acquire": {
        "acquired": True
    },  # no run can work in there; the GPUs are locked on their host
    "process.scan": {"users": {}},
    "evidence.collect": {},
}


class StoppedInside:
    """Answers as an agent in an empty container; what only a running one can do is refused.

    Facts of the kernel are the node's: it is the same.
    """

    is_stopped = True

    def __init__(self, why: TransportError, node: Agent) -> None:
        self.why = why
        self._node = node

    def call(
        self,
        operation: str,
        request: dict[str, Any] | None = None,
        *,
        timeout_s: float = 10.0,
        on_event: OnEvent | None = None,
    ) -> dict[str, Any]:
        if operation == "host.read":
            return self._node.call(operation, request, timeout_s=timeout_s)
        if operation not in NOTHING:
            raise self.why
        return dict(NOTHING[operation])
