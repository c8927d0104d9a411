"""What a compute probe's lines mean, also when they stop."""

from __future__ import annotations

from typing import Any

from opsctl.domain.gpu_compute import Compute, compute_findings, exit_code_of, read_turn
from opsctl.steps.gpu_compute import ComputeProbe
from tests.fakes import FakeAgent

UUIDS = ["GPU-a", "GPU-b", "GPU-c"]


def did(index: int, error: str = "") -> list[dict[str, Any]]:
    return [
        {"doing": "compute", "index": index},
        {"index": index, "ok": not error, "error": error, "seconds": 0.25},
    ]


def reply(*events: dict[str, Any], ended: str = "exit", code: int | None = 0) -> dict[str, Any]:
    return {
        "events": [{"doing": "import"}, *events],
        "ended": ended,
        "code": code,
        "stderr": "x\nboom",
    }


def test_all_cards_compute() -> None:
    """Every index has its verdict, and every copy is good: 0."""
    copies = [{"doing": "copy", "index": 0, "to": 1}, {"copy": [0, 1], "ok": True, "error": ""}]
    turn = read_turn(UUIDS, reply(*did(0), *did(1), *did(2), *copies, {"done": True}))

    assert [card.state for card in turn.cards.values()] == [Compute.OK] * 3
    assert exit_code_of(list(turn.cards.values()), turn.copies) == 0


def test_wrong_products_fail() -> None:
    """A card that answers with wrong numbers is worse than one that fails: 20, by UUID."""
    turn = read_turn(UUIDS, reply(*did(0, "3 of 262144 products are wrong"), {"done": True}))
    (finding,) = compute_findings(list(turn.cards.values()), [])

    assert exit_code_of(list(turn.cards.values()), []) == 20
    assert (finding.code, finding.subject) == ("does-not-compute", "GPU-a")


def test_the_card_at_which_it_hung_is_the_culprit() -> None:
    """The last thing that began and did not end."""
    turn = read_turn(
        UUIDS, reply(*did(0), {"doing": "compute", "index": 1}, ended="hung", code=None)
    )
    assert turn.culprit == 1
    assert turn.cards[1].state is Compute.HUNG


def test_a_crash_names_its_signal() -> None:
    """The child died in the driver."""
    turn = read_turn(UUIDS, reply({"doing": "compute", "index": 2}, ended="signal", code=-11))
    assert turn.cards[2].state is Compute.CRASHED
    assert "signal 11" in turn.cards[2].detail


def test_without_torch_nothing_is_measured() -> None:
    """21 and not 20: nothing was said about the cards."""
    agent = FakeAgent({"compute.probe": reply({"fatal": "torch cannot be imported: x"})})
    cards = ComputeProbe(agent, ["python3"], UUIDS, 5.0).run()

    assert {card.state for card in cards} == {Compute.NOT_MEASURED}
    assert exit_code_of(cards, []) == 21


def test_an_interpreter_that_ends_at_once_is_not_measured() -> None:
    """It never reached a card; the last line of stderr says why."""
    agent = FakeAgent({"compute.probe": reply(code=1)})
    cards = ComputeProbe(agent, ["python3"], UUIDS, 5.0).run()
    assert {card.state for card in cards} == {Compute.NOT_MEASURED}
    assert "boom" in cards[0].detail


def test_a_hanging_card_does_not_hide_the_others() -> None:
    """The rest is probed again without it, and copies leave it out."""
    hang = reply(*did(0), {"doing": "compute", "index": 1}, ended="hung", code=None)
    rest = reply(*did(2), {"done": True})

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        return hang if 1 in request["indices"] else rest

    agent = FakeAgent({"compute.probe": answer})
    cards = ComputeProbe(agent, ["python3"], UUIDS, 5.0).run()

    assert [card.state for card in cards] == [Compute.OK, Compute.HUNG, Compute.OK]
    assert [request["indices"] for request in agent.requests("compute.probe")] == [[0, 1, 2], [2]]
    assert agent.requests("compute.probe")[1]["peers"] == [0, 2]


def test_a_bad_copy_is_told() -> None:
    """Both ends compute; the way between them does not."""
    turn = read_turn(
        UUIDS, reply(*did(0), {"copy": [0, 1], "ok": False, "error": "differs"}, {"done": True})
    )
    assert exit_code_of(list(turn.cards.values()), turn.copies) == 20
    assert compute_findings([], turn.copies)[0].subject == "0->1"


def test_no_gpu_is_not_measured() -> None:
    """An empty set is not a healthy one."""
    assert exit_code_of([], []) == 21
