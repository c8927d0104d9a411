"""Who stays on the cards when a server is stopped, and what is told to do about it."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.domain.gpu import MIB, Evict
from opsctl.domain.gpu_memory import UNSEEN, judge_memory
from opsctl.domain.held_after import held_after_stop, in_words, way_out

from .tables import GPU0, GPU1, gpu, report

MEMBER = {1: ("member", "scheduler")}


def staying(cards: list[Any], classes: dict[int, tuple[str, str]], **known: Any) -> Any:
    verdict = judge_memory(
        report(*cards), [card.uuid for card in cards], classes={**MEMBER, **classes}, **known
    )
    return held_after_stop(verdict, ending=[1])


@pytest.mark.parametrize("kind", ["foreign", "protected", "member"])
def test_who_does_not_end_with_the_stop_stays(kind: str) -> None:
    """A stranger, another container's process, a process of the server's own that nobody ends."""
    card = gpu(used=9000 * MIB, holders=[(1, 4904 * MIB), (7, 4096 * MIB)])

    found = staying([card], {7: (kind, "train.py")})

    assert [one.view.holder.pid for one in found] == [7]
    assert in_words(found) == (
        "the GPUs would not come free with the stop: "
        f"{kind} pid 7 (train.py) holds 4096 MiB on GPU 0 ({GPU0})"
    )


def test_a_small_holder_stays_as_well() -> None:
    """The margin is for a card's own idle use: the proof calls a card busy that any compute process uses."""
    card = gpu(used=30 * MIB, holders=[(7, 20 * MIB)])

    assert judge_memory(report(card), [GPU0]).exit_code == 20
    assert len(staying([card], {7: ("foreign", "x")})) == 1


@pytest.mark.parametrize(
    ("holder", "classes", "residents"),
    [
        ((1, 9000 * MIB), {}, ()),
        ((7, 300 * MIB), {7: ("protected", "MPS")}, (7,)),
        ((7, 10 * MIB, "G"), {7: ("protected", "Xorg")}, ()),
        ((7, None), {7: ("foreign", "x")}, ()),
        ((7, 300 * MIB), {7: ("foreign", UNSEEN)}, ()),
        ((7, 300 * MIB), {}, ()),
    ],
    ids=["the-server", "resident", "display", "unknown-size", "not-visible", "not-in-the-table"],
)
def test_who_ends_is_resident_or_is_not_known_is_left_to_the_proof(
    holder: Any, classes: dict[int, tuple[str, str]], residents: tuple[int, ...]
) -> None:
    """Refused is only what is certain: the proof tells the rest, as it always did."""
    card = gpu(used=9000 * MIB, holders=[holder])

    assert staying([card], classes, residents=frozenset(residents)) == ()


def test_one_holder_of_many_cards_is_named_once() -> None:
    """With all its memory; a neighbour by the command that stops it."""
    cards = [
        gpu(used=600 * MIB, holders=[(7, 600 * MIB)]),
        gpu(GPU1, 1, used=MIB, holders=[(7, MIB)]),
    ]

    (one,) = staying(cards, {7: ("foreign", "x")}, servers={7: "qwen"})

    assert "pid 7 of server qwen (x) holds 601 MiB on GPUs 0, 1" in one.describe()
    assert way_out([one], "glm5") == "opsctl stop qwen"


def test_the_way_out_is_a_command_that_works() -> None:
    """What `--evict` takes is its own number of the process, which may be another one than NVML's."""
    card = gpu(used=9 * MIB, holders=[(7, MIB), (8, MIB), (9, MIB)])
    classes = {7: ("foreign", "a"), 8: ("foreign", "b"), 9: ("protected", "c")}

    found = staying([card], classes, evictable={7: Evict("glm5", 70), 8: Evict("glm5", 80)})

    assert way_out(found, "glm5") == (
        "stop pid 70, 80 where it belongs; or, together with the server: "
        "opsctl stop glm5 --evict 70 --evict 80, then opsctl launch glm5; "
        "opsctl never signals pid 9: stop it where it belongs"
    )
    held = [
        one.next
        for one in judge_memory(
            report(card), [GPU0], classes=classes, evictable={7: Evict("glm5", 70)}
        ).all_findings
    ]
    assert held[0] == "stop it where it belongs, or: opsctl stop glm5 --evict 70"
    assert held[1] == "stop it where it belongs"
