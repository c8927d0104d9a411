"""GPU memory as stop and gpu verify print it: cards that are proven free and show the same are one line."""

from __future__ import annotations

from typing import Any

from opsctl.cli.render import mib


def gpu_lines(cards: list[dict[str, Any]]) -> list[str]:
    """Return one line per card: before, after, when it became free; free neighbours alike are one line."""
    lines: list[str] = []
    for alike in _alike(cards):
        card = alike[0]
        before = f"{mib(card['before_bytes'])} -> " if "before_bytes" in card else ""
        when = _free_after(alike) if card["state"] == "free" else ""
        index = "?" if card["index"] is None else card["index"]
        which = f"{index} {card['uuid']}"
        if len(alike) > 1:
            which = f"{index}-{alike[-1]['index']} ({len(alike)} GPUs)"
        lines.append(
            f"  {card['state']:<8} {which}: {before}{mib(card['used_bytes'])} "
            f"(limit {mib(card['limit_bytes'])}){when}"
        )
    return lines


def _alike(cards: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group free cards with the same figures and consecutive numbers; any other stands by itself."""

    def follows(one: dict[str, Any], other: dict[str, Any]) -> bool:
        same = ("state", "used_bytes", "limit_bytes", "before_bytes")
        return (
            one["state"] == "free"
            and None not in (one["index"], other["index"])
            and other["index"] == one["index"] + 1
            and all(one.get(key) == other.get(key) for key in same)
        )

    groups: list[list[dict[str, Any]]] = []
    for card in cards:
        if groups and follows(groups[-1][-1], card):
            groups[-1].append(card)
        else:
            groups.append([card])
    return groups


def _free_after(cards: list[dict[str, Any]]) -> str:
    """Say when these cards became free: the first and the last of them."""
    times = sorted(
        {f"{after:.2f}" for card in cards if (after := card.get("free_after_s"))}, key=float
    )
    return f", free after {' to '.join(dict.fromkeys((times[0], times[-1])))} s" if times else ""
