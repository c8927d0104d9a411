"""What a compute probe said of each GPU: computes, computes wrongly, fails, hangs, or was not measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from opsctl.output import Finding
from opsctl.records import dataclass

FULL = "there is no room on it for the probe"


class Compute(StrEnum):
    """How one GPU did."""

    OK = "ok"
    FAILED = "failed"
    HUNG = "hung"
    CRASHED = "crashed"
    NOT_MEASURED = "not-measured"


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU of a probe; ``seconds`` is the time that its part took."""

    uuid: str
    state: Compute
    detail: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What one run of the probe settled. ``culprit`` is the GPU at which it hung or crashed."""

    cards: Mapping[int, Card]
    copies: tuple[tuple[int, int, str], ...]  # from, to, error ("" for a good copy)
    culprit: int | None
    fatal: str | None


def read_turn(uuids: Sequence[str], reply: Mapping[str, Any]) -> Turn:
    """Read one reply of the agent's ``compute.probe``.

    Args:
        uuids: the GPUs, in the order of the probe's indices.
        reply: ``events``, ``ended``, ``code``, ``stderr``.
    """
    cards: dict[int, Card] = {}
    copies: list[tuple[int, int, str]] = []
    doing: Mapping[str, Any] = {}
    fatal: str | None = None
    done = False
    for event in reply["events"]:
        if "fatal" in event:
            fatal = event["fatal"]
        elif "doing" in event:
            doing = event
        elif "copy" in event:
            copies.append((event["copy"][0], event["copy"][1], event["error"]))
            doing = {}
        elif "ok" in event:
            index = event["index"]
            cards[index] = _card(uuids[index], event)
            doing = {}
        elif event.get("done"):
            done = True
    if done or fatal:
        return Turn(cards, tuple(copies), None, fatal)
    how = _ending(reply)
    if doing.get("doing") == "copy":
        copies.append((doing["index"], doing["to"], how))
        return Turn(cards, tuple(copies), doing["index"], None)
    culprit = doing.get("index")
    if culprit is None:
        return Turn(cards, tuple(copies), None, f"the probe ended before it began: {how}")
    state = Compute.HUNG if reply["ended"] == "hung" else Compute.CRASHED
    cards[culprit] = Card(uuids[culprit], state, how)
    return Turn(cards, tuple(copies), culprit, None)


def _card(uuid: str, event: Mapping[str, Any]) -> Card:
    """Return what one card's lines say; a full card is no bad one."""
    seconds = round(event["seconds"], 3)
    if event["ok"]:
        return Card(uuid, Compute.OK, event["error"], seconds)
    if "out of memory" in event["error"].lower():
        text = f"{FULL}: {event['error']}"
        return Card(uuid, Compute.NOT_MEASURED, text, seconds)
    return Card(uuid, Compute.FAILED, event["error"], seconds)


def _ending(reply: Mapping[str, Any]) -> str:
    if reply["ended"] == "hung":
        return "no answer within the deadline"
    if reply["ended"] == "signal":
        return f"died of signal {-reply['code']}"
    last = str(reply["stderr"]).strip().splitlines()[-1:]
    return f"exit {reply['code']}" + (f": {last[0][:160]}" if last else "")


def exit_code_of(cards: Sequence[Card], copies: Sequence[tuple[int, int, str]]) -> int:
    """Return 0 when all compute, 20 when one does not, 21 when one was not measured."""
    bad = (Compute.FAILED, Compute.HUNG, Compute.CRASHED)
    if any(card.state in bad for card in cards) or any(error for _, _, error in copies):
        return 20
    if not cards or any(card.state is Compute.NOT_MEASURED for card in cards):
        return 21
    return 0


def compute_findings(
    cards: Sequence[Card], copies: Sequence[tuple[int, int, str]]
) -> list[Finding]:
    """Return a finding for each GPU and each copy that is not good."""
    found = []
    unmeasured: dict[str, list[str]] = {}  # what was the reason -> of which cards
    for card in cards:
        if card.state is Compute.NOT_MEASURED:
            unmeasured.setdefault(card.detail, []).append(card.uuid)
        elif card.state is not Compute.OK:
            text = f"answers NVML and does not compute ({card.state.value}): {card.detail}"
            step = "leave it out (gpus.select), look for its Xid in the kernel log, plan a reboot"
            found.append(Finding("does-not-compute", card.uuid, text, step))
    for reason, uuids in unmeasured.items():
        step = "mend what it says, then probe again"
        if reason.startswith(FULL):
            step = "stop what holds its memory, then probe again"
        elif "torch" in reason:
            step = "install torch for the server's `python`, or name the right one in the site file"
        subject = uuids[0] if len(uuids) == 1 else f"{len(uuids)} GPUs"
        found.append(Finding("not-measured", subject, reason, step))
    for one, other, error in copies:
        if error:
            text = f"a copy from GPU {one} to GPU {other} of the set is not good: {error}"
            step = "check NVLink and PCIe (nvidia-smi topo -m), IOMMU and ACS settings"
            found.append(Finding("bad-copy", f"{one}->{other}", text, step))
    return found
