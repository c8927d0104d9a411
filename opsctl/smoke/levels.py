"""Which levels a run drives, and how long each is. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.errors import UsageError
from opsctl.records import dataclass
from opsctl.sglang.info import ServerInfo

STEPS = (1, 2, 5, 10, 20, 40, 64, 128, 256, 512)
QUICK_TOP = 64  # without --levels a quick run climbs no further
GRAPH_TAIL = 2  # captured sizes near the end of the list that become levels


@dataclass(frozen=True, slots=True)
class Profile:
    """How long and how deep a level is."""

    name: str
    per_slot: int  # requests per slot
    least: int  # requests per level at least
    tokens: int
    idle_s: float  # watched idle time before a level counts as passed
    down: bool  # climb down again
    mixed: bool  # one mixed level at the top
    check_every: int  # every n-th request is one of the pool, compared across levels
    pool: int

    def requests(self, concurrency: int, wanted: int | None = None) -> int:
        """Return how many requests a level has; never fewer than slots."""
        if wanted is not None:
            return max(wanted, concurrency)
        return max(self.least, self.per_slot * concurrency)


# Rule 11 of the field cases: a server can answer 80 to 140 requests and then hang (sglang 22779).
PROFILES = {
    "quick": Profile("quick", 3, 0, 32, 0.3, False, False, 1, 8),
    "full": Profile("full", 3, 200, 128, 3.0, True, True, 4, 50),
}


def parse_levels(text: str) -> tuple[int, ...]:
    """Return the levels of ``1,2,5,10``.

    Raises:
        UsageError: when one is no number, below 1, or not above the one before.
    """
    levels: list[int] = []
    for word in text.replace(" ", "").split(","):
        try:
            level = int(word)
        except ValueError:
            raise UsageError(
                f"'{word}' in --levels is not a number", next_step="write --levels 1,2,5,10"
            ) from None
        if level < 1:
            raise UsageError(f"level {level} is not possible: the lowest is 1")
        if levels and level <= levels[-1]:
            raise UsageError(
                f"the levels must ascend: {level} comes after {levels[-1]}",
                next_step=f"write --levels {','.join(map(str, sorted({*levels, level})))}",
            )
        levels.append(level)
    return tuple(levels)


def derive_levels(info: ServerInfo, profile: Profile, threshold: int | None) -> tuple[int, ...]:
    """Return the levels that this server asks for.

    Besides the usual steps: the captured graph sizes near the end of their list, one above the
    largest, the speculation threshold and one above, the most running requests and one above.
    """
    top = info.max_running or STEPS[3]
    if profile.name == "quick":
        top = min(top, QUICK_TOP)
    top = min(top, STEPS[-1])
    wanted = {step for step in STEPS if step <= top} | {1}
    special: list[int] = list(info.graph_sizes[-GRAPH_TAIL:])
    if info.graph_sizes:
        special.append(info.graph_sizes[-1] + 1)
    if threshold is not None:
        special += [threshold, threshold + 1]
    if info.max_running is not None:
        special += [info.max_running, info.max_running + 1]
    wanted |= {level for level in special if 1 <= level <= top + 1}
    return tuple(sorted(wanted))


def way_down(levels: Sequence[int]) -> tuple[int, ...]:
    """Return the levels of the way back: without the top, which was just driven."""
    return tuple(reversed(levels[:-1]))
