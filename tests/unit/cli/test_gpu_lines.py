"""GPU memory in print: what is free and the same is one line, what is not stands by itself."""

from __future__ import annotations

from typing import Any

from opsctl.cli.gpu_lines import gpu_lines

MIB = 1 << 20


def card(index: int | None, state: str = "free", used_mib: int = 0, **more: Any) -> dict[str, Any]:
    """Return a card as a document has it."""
    figures = {"used_bytes": used_mib * MIB, "limit_bytes": 256 * MIB}
    return {"index": index, "uuid": f"GPU-{index}", "state": state, **figures, **more}


def test_free_neighbours_are_one_line() -> None:
    """Eight idle cards need no eight lines; when the first and the last of them came free is kept."""
    cards = [
        card(number, before_bytes=9 * MIB, free_after_s=0.1 + number / 10) for number in range(8)
    ]

    lines = gpu_lines(cards)

    assert lines == [
        "  free     0-7 (8 GPUs): 9 MiB -> 0 MiB (limit 256 MiB), free after 0.10 to 0.80 s"
    ]


def test_a_card_that_is_not_free_keeps_its_own_line_and_uuid() -> None:
    """Busy, other figures, a gap in the numbers, no number: none of them is folded away."""
    cards = [card(0), card(1, "busy", 9), card(2, "busy", 9), card(3), card(5), card(6, used_mib=1)]

    lines = gpu_lines([*cards, card(None), card(None)])

    assert [line.split()[:3] for line in lines] == [
        ["free", "0", "GPU-0:"],
        ["busy", "1", "GPU-1:"],
        ["busy", "2", "GPU-2:"],
        ["free", "3", "GPU-3:"],
        ["free", "5", "GPU-5:"],
        ["free", "6", "GPU-6:"],
        ["free", "?", "GPU-None:"],
        ["free", "?", "GPU-None:"],
    ]
