"""How many of something, as people write it."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return ``1 process`` or ``2 processes``: the number and the word that goes with it."""
    return f"{number} {one if number == 1 else many or one + 's'}"
