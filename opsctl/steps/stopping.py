"""Carrying a stop plan out: TERM, wait, TERM the rest, KILL what is left, and what became of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from opsctl.domain.process import Judged
from opsctl.domain.stop_plan import Outcome, StopPlan
from opsctl.errors import AgentError
from opsctl.facts import ProcessId
from opsctl.output import Finding
from opsctl.records import dataclass
from opsctl.steps.watching import ExitWatch

if TYPE_CHECKING:
    from opsctl.agent.client import Agent

FOLLOW_S = 2.0  # how long workers may take to follow their root
SECOND_GRACE_S = 5.0  # between TERM to the rest and KILL
HANGS = "timeout"  # the agent's word for a systemctl that does not end
KILL_WAIT_S = 10.0  # a killed process that is not gone by then hangs in the kernel

_REPLIES = {
    "gone": Outcome.ALREADY_GONE,
    "recycled": Outcome.RECYCLED,
    "denied": Outcome.DENIED,
    "zombie": Outcome.ZOMBIE,
}


@dataclass(frozen=True, slots=True)
class Timing:
    """When things happened, on the clock of the server's host, in seconds since the epoch."""

    first_signal_s: float | None
    last_exit_s: float | None
    last_heard_s: float | None = None  # the last exit again, on our own monotonic clock

    @property
    def ending_s(self) -> float | None:
        """Seconds from the first signal to the last exit: the server's own time."""
        if self.first_signal_s is None or self.last_exit_s is None:
            return None
        return max(0.0, self.last_exit_s - self.first_signal_s)


@dataclass(slots=True)
class Stopping:
    """One pass over one plan.

    Attributes:
        agent: where the processes' namespace is owned.
        unit_agent: where the server's systemd runs (inside its container, if it has one).
        meanwhile: called once TERM is sent, for what can be made ready while they end.
        clock_offset_s: the host's wall clock minus ours, for the times.
    """

    agent: Agent
    unit_agent: Agent
    plan: StopPlan
    boot_id: str
    grace_s: float
    say: Callable[[str], None]
    meanwhile: Callable[[], None] = lambda: None
    clock_offset_s: float = 0.0
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    watch: ExitWatch | None = None
    _last_signal: dict[int, str] = field(default_factory=dict)
    _first_signal_s: float | None = None

    def hold(self) -> None:
        """Hold every target before the first signal, so that no exit is missed."""
        living = [target for target in self.plan.targets if not _is_dead(target)]
        for target in self.plan.targets:
            if _is_dead(target):
                self.outcomes[target.pid] = Outcome.ZOMBIE
        total_s = self.grace_s + FOLLOW_S + SECOND_GRACE_S + KILL_WAIT_S + 60.0
        self.watch = ExitWatch(self.agent, [_identity(target) for target in living], total_s)
        if living:
            self.watch.start()

    def terminate(self) -> None:
        """TERM to the roots (or a stop of their units), then to the rest; KILL what is left."""
        in_units = self._stop_units()
        first = [t for t in (*self.plan.roots, *self.plan.evicted) if t.pid not in in_units]
        self._signal("TERM", first)
        self.meanwhile()
        roots = [target.pid for target in self.plan.roots] or [t.pid for t in self.plan.targets]
        if self._wait(roots, self.grace_s):
            self._wait(self._pids(), FOLLOW_S)
        rest = self._left()
        if rest:
            self.say(f"{len(rest)} processes outlive their root: TERM to each")
            self._signal("TERM", [target for target in rest if target.pid not in self._last_signal])
            self._wait(self._pids(), min(SECOND_GRACE_S, max(1.0, self.grace_s)))
        self._kill_left()

    def kill(self) -> None:
        """KILL at once, root first; a unit is stopped too, so that it is not started again."""
        self._stop_units()
        self._kill_left()

    def finish(self) -> Timing:
        """Find out what became of each target, and when."""
        left = self._left()
        if left:
            request = {
                "processes": [_wire(target) for target in left],
                "timeout_s": 0.0,
            }
            reply = self.agent.call("process.wait_gone", request, timeout_s=10.0)
            states = {entry["pid"]: entry["state"] for entry in reply["left"]}
            for target in left:
                self._conclude_left(target, states.get(target.pid, "gone"))
        gone = self.watch.gone if self.watch else {}
        for pid, at_s in gone.items():
            self.outcomes.setdefault(pid, self._ending_of(pid, at_s))
        times = [at_s for at_s in gone.values() if at_s is not None]
        heard_s = self.watch.last_heard_s if self.watch else None
        return Timing(self._first_signal_s, max(times, default=None), heard_s)

    @property
    def ended(self) -> frozenset[ProcessId]:
        """Return who was seen to end while it was held, which is the kernel's own word."""
        gone = self.watch.gone if self.watch else {}
        return frozenset(
            _identity(target) for target in self.plan.targets if gone.get(target.pid) is not None
        )

    def _conclude_left(self, target: Judged, state: str | None) -> None:
        if state in ("gone", None):
            self.outcomes.setdefault(target.pid, self._ending_of(target.pid, 0.0))
        elif state in ("Z", "X"):
            self.outcomes.setdefault(target.pid, Outcome.ZOMBIE)
        elif state == "D":
            self.outcomes[target.pid] = Outcome.STUCK
        else:
            self.outcomes.setdefault(target.pid, Outcome.ALIVE)

    def _ending_of(self, pid: int, at_s: float | None) -> Outcome:
        signal = self._last_signal.get(pid)
        if at_s is None and signal is None:
            return Outcome.ALREADY_GONE
        if signal is None:
            return Outcome.ENDED_BY_ITSELF
        return Outcome.KILLED if signal == "KILL" else Outcome.TERMINATED

    def _stop_units(self) -> set[int]:
        """Ask systemd to stop the server's units; returns the pids that it takes care of."""
        cared_for: set[int] = set()
        for unit in self.plan.units:
            self._mark_first_signal()
            reply = self._ask_to_stop(unit)
            if reply["outcome"] == "asked":
                self.say(f"asked systemd to stop {unit}")
                for root in self.plan.roots:
                    if root.process and unit in root.process.cgroup.split("/"):
                        cared_for.add(root.pid)
                        self._last_signal[root.pid] = "TERM"
            else:
                text = f"systemd did not stop it: {reply['detail'] or reply['outcome']}"
                step = f"its processes are signalled one by one; check `systemctl status {unit}`"
                self.findings.append(Finding("unit-not-stopped", unit, text, step))
        return cared_for

    def _ask_to_stop(self, unit: str) -> dict[str, Any]:
        try:
            return self.unit_agent.call("units.stop", {"unit": unit}, timeout_s=20.0)
        except AgentError as error:
            if error.code != HANGS:
                raise
            return {"outcome": "failed", "detail": error.message}

    def _kill_left(self) -> None:
        left = self._left()
        if not left:
            return
        self.say(f"KILL to {len(left)} processes, one by one")
        self._signal("KILL", left)
        self._wait(self._pids(), KILL_WAIT_S)

    def _signal(self, name: str, targets: Sequence[Judged]) -> None:
        """Send one signal to each, only while it is the process that was planned."""
        if not targets:
            return
        self._mark_first_signal()
        request = {
            "processes": [_wire(target) for target in targets],
            "boot_id": self.boot_id,
            "signal": name,
        }
        reply = self.agent.call("process.signal_all", request, timeout_s=20.0)
        for entry in reply["outcomes"]:
            if entry["outcome"] == "sent":
                self._last_signal[entry["pid"]] = name
                self.outcomes.pop(entry["pid"], None)
            elif entry["outcome"] != "gone" or entry["pid"] not in self._last_signal:
                self.outcomes[entry["pid"]] = _REPLIES[entry["outcome"]]

    def _mark_first_signal(self) -> None:
        if self._first_signal_s is None:
            self._first_signal_s = time.time() + self.clock_offset_s

    def _wait(self, pids: Iterable[int], timeout_s: float) -> bool:
        assert self.watch is not None
        known = {target.pid for target in self.watch.targets}
        open_pids = [
            pid
            for pid in pids
            if pid in known and self.outcomes.get(pid) not in (Outcome.DENIED, Outcome.RECYCLED)
        ]
        return self.watch.wait(open_pids, timeout_s)

    def _pids(self) -> list[int]:
        return [target.pid for target in self.plan.targets]

    def _left(self) -> list[Judged]:
        gone = self.watch.gone if self.watch else {}
        settled = (Outcome.ZOMBIE, Outcome.RECYCLED, Outcome.ALREADY_GONE)
        return [
            target
            for target in self.plan.targets
            if target.pid not in gone and self.outcomes.get(target.pid) not in settled
        ]


def _is_dead(target: Judged) -> bool:
    return target.process is not None and target.process.is_dead


def _identity(target: Judged) -> ProcessId:
    assert target.process is not None, "only visible processes are targets"
    return target.process.identity


def _wire(target: Judged) -> dict[str, int]:
    identity = _identity(target)
    return {"pid": identity.pid, "start_ticks": identity.start_ticks}
