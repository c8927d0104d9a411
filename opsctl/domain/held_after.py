"""Who would still hold a server's GPUs once it is stopped: decided before the first signal; pure."""

from __future__ import annotations

from collections.abc import Iterable

from opsctl.domain.gpu import COMPUTE_KINDS, MIB, GpuVerdict, HolderView, MemoryVerdict
from opsctl.domain.gpu_memory import UNSEEN
from opsctl.records import dataclass

CODE = "held-by-others"


@dataclass(frozen=True, slots=True)
class Staying:
    """A holder that the stop leaves alone, with every GPU of the server on which it holds memory."""

    view: HolderView
    cards: tuple[str, ...]  # index, or the UUID where NVML gives none
    uuids: tuple[str, ...]
    used_bytes: int

    def describe(self) -> str:
        view = self.view
        if view.server is not None:
            who = f"pid {view.holder.pid} of server {view.server}"
        else:
            who = f"{view.kind} pid {view.holder.pid}"
        several = "s" if len(self.cards) > 1 else ""
        where = f"GPU{several} {', '.join(self.cards)} ({', '.join(self.uuids)})"
        return f"{who} ({view.label}) holds {self.used_bytes // MIB} MiB on {where}"


def held_after_stop(verdict: MemoryVerdict, ending: Iterable[int]) -> tuple[Staying, ...]:
    """Return the holders for whose sake the memory proof after the stop cannot succeed.

    The same holders that ``judge_memory`` calls busy: of which NVML tells what they hold, and which are known
    for what they are. A daemon or a display, a holder of unknown size, and one that the process table did not
    show are none: the proof itself says what it sees of them.

    Args:
        verdict: on the server's GPUs as they are now.
        ending: pids of the GPU host that end with the stop.
    """
    gone = frozenset(ending)
    found: dict[int, list[tuple[GpuVerdict, HolderView]]] = {}
    for card in verdict.gpus:
        for view in card.holders:
            if view.holder.pid not in gone and _stands_in_the_way(view):
                found.setdefault(view.holder.pid, []).append((card, view))
    return tuple(
        Staying(
            holds[0][1],
            tuple(card.uuid if card.index is None else str(card.index) for card, _ in holds),
            tuple(card.uuid for card, _ in holds),
            sum(view.holder.used_bytes or 0 for _, view in holds),
        )
        for holds in found.values()
    )


def _stands_in_the_way(view: HolderView) -> bool:
    if view.kind is None or view.label == UNSEEN or view.is_resident:
        return False
    return view.holder.kind in COMPUTE_KINDS and view.holder.used_bytes is not None


def _is_never_signalled(view: HolderView) -> bool:
    return view.kind != "member" and view.evict is None


def in_words(staying: Iterable[Staying], at_most: int = 3) -> str:
    """Return what is in the way, in one sentence."""
    named = [one.describe() for one in staying]
    more = f"; and {len(named) - at_most} more" if len(named) > at_most else ""
    return f"the GPUs would not come free with the stop: {'; '.join(named[:at_most])}{more}"


def way_out(staying: Iterable[Staying], server: str) -> str:
    """Return what to do, as commands that work, for every kind of holder among them."""
    held = list(staying)
    others = list(dict.fromkeys(one.view.server for one in held if one.view.server))
    strangers = [one.view for one in held if one.view.server is None]
    pids = [view.evict.pid for view in strangers if view.evict is not None]
    steps = [f"opsctl stop {other}" for other in others]
    if any(view.kind == "member" for view in strangers):
        steps.append(f"opsctl stop {server}")
    if pids:
        stop = f"opsctl stop {server} --evict {pids[0]}"
        more = "".join(f" --evict {pid}" for pid in pids[1:])
        names = ", ".join(str(pid) for pid in pids)
        steps.append(
            f"stop pid {names} where it belongs; or, together with the server: "
            f"{stop}{more}, then opsctl launch {server}"
        )
    never = [str(view.holder.pid) for view in strangers if _is_never_signalled(view)]
    if never:
        steps.append(f"opsctl never signals pid {', '.join(never)}: stop it where it belongs")
    return "; ".join(steps)
