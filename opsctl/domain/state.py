"""In which state a run leaves things, in one sentence; pure."""

from __future__ import annotations

from collections.abc import Mapping

GOOD = ("done", "unchanged")


def describe_state(outcomes: Mapping[str, str], *, running: bool = True) -> str:
    """Say what a run has left behind.

    Args:
        outcomes: step name to outcome; a step that has begun and not ended has ``unknown``.
        running: a server of an earlier launch was seen running before the first change.
    """
    begun = {name: outcome for name, outcome in outcomes.items() if outcome != "skipped"}
    launch, ready, stop = (begun.get(name) for name in ("launch", "ready", "stop"))
    if ready in GOOD:
        return "the new server runs, and it answered"
    if launch in GOOD:
        return "the new server was launched, and it is not proven ready"
    if launch == "unknown":
        return "it is not known whether the new server was launched"
    if launch is not None:
        before = "the old server is stopped, and " if stop == "done" else ""
        return f"{before}the new server did not start"
    if stop == "unchanged":
        return "no server was running, and no new one was launched"
    if stop == "done":
        return "the old server is stopped, and no new one was launched"
    if stop is not None and stop != "refused":
        return "the old server may be partly stopped"
    if running:
        return "the running server was not touched"
    return "nothing was stopped, and nothing was launched"
