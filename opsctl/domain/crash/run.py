"""One life of a server inside a log, and what of it counts as a fault."""

from __future__ import annotations

import re
from dataclasses import field

from opsctl.domain.crash.model import Activity, Evidence, Launch, Record
from opsctl.domain.crash.rules import CAUSE, NOTICE, WRAPPER
from opsctl.records import dataclass

DEATHS = frozenset({"segfault", "sigquit", "killed"})
_WEAK = frozenset({"peer-gone", "stream-cut", "unknown-error", "killed", "request-error"})
_UNKNOWN = frozenset({"unknown-error", "request-error"})
_HARD = frozenset(
    {"device-assert", "illegal", "kv-leak", "detokenizer", "xid-software", "shm-exists"}
)
_OUR_PROCESS = re.compile(
    r"python|sglang|schedul|detoken|vllm|ray|pt_main|uvicorn|gunicorn|launch|engine", re.IGNORECASE
)
_VICTIM = re.compile(r"Killed? process \d+ \(([^)]*)\)|task=([\w:.-]+)|process \d+, ?name=(\S+)")
_ASKED_TO_END = re.compile(r"exit code:? -(?:15|2)\b")


@dataclass(slots=True)
class Run:
    """One life of the server inside a log."""

    launch: Launch = field(default_factory=Launch)
    evidence: list[Evidence] = field(default_factory=list)
    activity: Activity = field(default_factory=Activity)
    after_death: Activity = field(default_factory=Activity)
    served_after: int = 0  # line of the last answer or batch
    alive_after: int = 0  # line of the last batch, or of "ready"
    ready: bool = False
    opened: bool = False
    stages: int = 0
    open_stage: tuple[str, Record] | None = None
    stopped: bool = False
    traces: int = 0

    @property
    def began(self) -> bool:
        """True when anything of this life was seen."""
        return bool(self.evidence or self.ready or self.stages or self.activity.serves)

    @property
    def is_prelude(self) -> bool:
        """True when all that was seen is an error of unknown meaning: imports complain before a launch."""
        quiet = not (self.ready or self.stages or self.activity.serves or self.stopped)
        return quiet and all(piece.rule in _UNKNOWN for piece in self.evidence)

    def faults(self) -> list[Evidence]:
        """Return the evidence of faults, without what the server outlived."""
        return [
            piece for piece in self.evidence if piece.weight < NOTICE and not self.forgives(piece)
        ]

    def stop(self) -> bool:
        """Note that somebody stopped the server on purpose; False when it had failed before.

        A signal to the whole group can end a child, and be told, before the main process says that it got
        it too: what stands there with the exit code of SIGTERM or SIGINT is part of the stop.
        """
        faults = [piece for piece in self.faults() if piece.rule not in _WEAK]
        asked = any(_ASKED_TO_END.search(piece.text) for piece in faults)
        if faults and not (asked and all(piece.rule in DEATHS for piece in faults)):
            return False
        self.evidence = [piece for piece in self.evidence if piece not in faults]
        self.stopped = True
        return True

    def forgives(self, piece: Evidence) -> bool:
        """Return True for something that happened once and that the server outlived."""
        if piece.rule == "request-too-long":
            return (
                self.activity.serves and not piece.record.client
            )  # one wrong request among good ones
        if piece.rule == "oom-killer":
            return _is_stranger(piece) and not self._died()
        if (
            piece.rule == "peer-gone"
            and piece.owner is None
            and not (self.stages or self.activity.serves)
        ):
            return (
                piece.record.time is None
            )  # a client's or a tool's line: nothing of a server is here
        if (
            piece.weight in (CAUSE, WRAPPER)
            and piece.owner in (None, "http")
            and piece.rule not in _HARD
        ):
            return (
                self.alive_after > piece.record.line
            )  # a warning or one request's error: it went on
        if piece.rule in _WEAK:
            went_on = (
                self.served_after
                if piece.rule not in _UNKNOWN
                else max(self.served_after, self.alive_after)
            )
            return went_on > piece.record.line and piece.owner != "scheduler"
        return False

    def _died(self) -> bool:
        return any(piece.rule in DEATHS or piece.owner == "scheduler" for piece in self.evidence)


def _is_stranger(piece: Evidence) -> bool:
    found = _VICTIM.search(piece.text)
    name = next((group for group in found.groups() if group), None) if found else None
    return name is not None and _OUR_PROCESS.search(name) is None
