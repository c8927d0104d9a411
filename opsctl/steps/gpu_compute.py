"""Probe the GPUs with the server's own interpreter: one hanging card does not hide the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from opsctl.domain.gpu_compute import Card, Compute, read_turn
from opsctl.records import dataclass

if TYPE_CHECKING:
    from opsctl.agent.client import Agent

# A product of 512 x 512 and 64 MiB: enough to run a kernel and touch memory, small beside a server.
SIZE, BYTES = 512, 64 << 20


@dataclass(slots=True)
class ComputeProbe:
    """Runs the check until each GPU has its verdict.

    Attributes:
        interpreter: argv of the server's Python.
        timeout_s: for one run; a card that hangs costs one such run.
    """

    agent: Agent
    interpreter: Sequence[str]
    uuids: Sequence[str]
    timeout_s: float
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    device: str = "cuda"
    cards: dict[int, Card] = field(default_factory=dict)
    copies: list[tuple[int, int, str]] = field(default_factory=list)

    def run(self) -> list[Card]:
        """Probe, and after a hang or a crash probe the rest; returns one card per GPU.

        Raises:
            AgentError: the interpreter could not be started.
        """
        left = list(range(len(self.uuids)))
        while left:
            healthy = [index for index in left if index not in self.cards]
            turn = read_turn(self.uuids, self._ask(healthy))
            self.cards.update(turn.cards)
            self.copies = list(turn.copies)
            if turn.fatal is not None:
                self._leave(healthy, turn.fatal)
                break
            if turn.culprit is None:
                self._leave(healthy, "the interpreter does not see this GPU")
                break
            left = [index for index in healthy if index not in self.cards]
        return [self.cards[index] for index in sorted(self.cards)]

    def _leave(self, indices: Sequence[int], why: str) -> None:
        for index in indices:
            card = Card(self.uuids[index], Compute.NOT_MEASURED, why)
            self.cards.setdefault(index, card)

    def _ask(self, indices: Sequence[int]) -> dict[str, Any]:
        known_bad = {index for index, card in self.cards.items() if card.state is not Compute.OK}
        request = {
            "interpreter": list(self.interpreter),
            "visible": list(self.uuids),
            "indices": list(indices),
            "peers": [index for index in range(len(self.uuids)) if index not in known_bad],
            "bytes": BYTES,
            "size": SIZE,
            "timeout_s": self.timeout_s,
            "cwd": self.cwd,
            "env": dict(self.env),
            "device": self.device,
        }
        return self.agent.call("compute.probe", request, timeout_s=self.timeout_s + 15.0)
