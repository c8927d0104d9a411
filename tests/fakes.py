"""Fakes at the two seams of opsctl: Transport and Agent. Nothing else is ever faked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from opsctl.agent.client import OnEvent
from opsctl.errors import TransportError
from opsctl.transport.base import Channel, CommandResult

Operation = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass
class FakeTransport:
    """Answers each command from a handler and records every argv, so that tests read as data."""

    handler: Callable[[tuple[str, ...], bytes], CommandResult]
    name: str = "fake"
    calls: list[tuple[str, ...]] = field(default_factory=list)
    channel: Callable[[tuple[str, ...]], Channel] | None = None
    explanation: TransportError | None = None
    closed: bool = False

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> CommandResult:
        self.calls.append(tuple(argv))
        return self.handler(tuple(argv), stdin)

    def open(self, argv: Sequence[str]) -> Channel:
        self.calls.append(tuple(argv))
        assert self.channel is not None, "this fake has no live channels"
        return self.channel(tuple(argv))

    def explain(self, exit_code: int | None, stderr: bytes) -> TransportError | None:
        return self.explanation

    def close(self) -> None:
        self.closed = True


def answer(stdout: bytes = b"", stderr: bytes = b"", exit_code: int | None = 0) -> FakeTransport:
    """Return a transport that answers every command alike."""
    return FakeTransport(lambda argv, _: CommandResult(argv, exit_code, stdout, stderr))


@dataclass
class FakeAgent:
    """Answers operations from a table and records each call.

    ``operations`` maps "process.scan" to a function of the request, to the facts themselves, or to an
    exception to raise. ``events`` maps an operation to what it streams before it answers.
    """

    operations: dict[str, Operation | dict[str, Any] | Exception] = field(default_factory=dict)
    events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    name: str = "fake"
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def call(
        self,
        operation: str,
        request: dict[str, Any] | None = None,
        *,
        timeout_s: float = 10.0,
        on_event: OnEvent | None = None,
    ) -> dict[str, Any]:
        self.calls.append((operation, request or {}))
        found = self.operations[operation]
        if on_event is not None:
            for event in self.events.get(operation, []):
                on_event(event)
        if isinstance(found, Exception):
            raise found
        return found(request or {}) if callable(found) else found

    def requests(self, operation: str) -> list[dict[str, Any]]:
        """Return the requests of every call of ``operation``, in order."""
        return [request for name, request in self.calls if name == operation]
