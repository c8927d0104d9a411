"""Two things that are watched while a stop goes on: exits of processes, and memory of GPUs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from opsctl.agent.read import gpu_processes, mig_instances
from opsctl.domain.gpu import MemoryVerdict
from opsctl.errors import AgentError, OpsctlError
from opsctl.facts import GpuRead, GpuReport, ProcessId
from opsctl.records import dataclass

if TYPE_CHECKING:
    from opsctl.agent.client import Agent

POLL_INTERVAL_S = 0.02
FOREIGN_PATIENCE_S = 3.0
_HELD_TIMEOUT_S = 20.0


@dataclass(slots=True)
class ExitWatch:
    """Holds every planned process before the first signal, and hears of each exit.

    Attributes:
        gone: pid -> wall clock of its exit on the host; None where it was gone before the watch began.
        last_heard_s: monotonic clock here when the newest exit was heard of.
    """

    agent: Agent
    targets: Sequence[ProcessId]
    timeout_s: float
    gone: dict[int, float | None] = field(default_factory=dict)
    last_heard_s: float | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _watching: bool = False
    _ended: bool = False
    _error: OpsctlError | None = None

    def start(self) -> None:
        """Begin, and return once the processes are held, so that no exit can be missed.

        Raises:
            AgentError: the watch could not begin; nothing should be signalled then.
        """
        threading.Thread(target=self._run, daemon=True, name="exit-watch").start()
        with self._changed:
            self._changed.wait_for(lambda: self._watching or self._ended, _HELD_TIMEOUT_S)
            if self._error is not None:
                raise self._error
            if not (self._watching or self._ended):
                raise AgentError("the watch on the server's processes did not begin")

    def wait(self, pids: Iterable[int], timeout_s: float) -> bool:
        """Wait until all of ``pids`` are gone; say whether they are.

        Raises:
            OpsctlError: the agent was lost, so nothing is known any more.
        """
        wanted = set(pids)
        with self._changed:
            self._changed.wait_for(
                lambda: wanted <= self.gone.keys() or self._ended, max(0.0, timeout_s)
            )
            if self._error is not None and not wanted <= self.gone.keys():
                raise self._error
            return wanted <= self.gone.keys()

    @property
    def all_gone(self) -> bool:
        return {target.pid for target in self.targets} <= self.gone.keys()

    def _run(self) -> None:
        request = {
            "processes": [{"pid": t.pid, "start_ticks": t.start_ticks} for t in self.targets],
            "timeout_s": self.timeout_s,
        }
        try:
            self.agent.call(
                "process.watch", request, timeout_s=self.timeout_s + 10.0, on_event=self._hear
            )
        except OpsctlError as error:
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _hear(self, event: dict[str, Any]) -> None:
        with self._changed:
            if "watching" in event:
                self._watching = True
            elif "exit" in event:
                self.gone[event["exit"]] = event["clock_s"]
                self.last_heard_s = time.monotonic()
            self._changed.notify_all()


class _Proven(Exception):
    """Ends a poll from inside its event: the verdict is 'free' although the agent's rule is not met."""


@dataclass(slots=True)
class MemoryPoll:
    """Polls the GPUs at 20 ms from before the first signal until they are proven free.

    Attributes:
        report: what was read before; its cards are updated by each event.
        judge: the decision, made here and not by the agent.
        verdict: the newest.
        free_after_s: GPU UUID -> seconds after the poll began when it became free (and stayed so).
        proven_at_s: monotonic clock here when all was proven free; ``proven_wall_s`` since the epoch.
    """

    agent: Agent
    report: GpuReport
    limits: dict[str, int]
    judge: Callable[[GpuReport], MemoryVerdict]
    timeout_s: float
    residents: frozenset[int] = frozenset()  # by NVML's pid: there on an idle card too
    waits_for_foreign: bool = False
    first: MemoryVerdict | None = None
    verdict: MemoryVerdict | None = None
    free_after_s: dict[str, float] = field(default_factory=dict)
    proven_at_s: float | None = None
    proven_wall_s: float | None = None
    _began_s: float = 0.0
    _end_s: float = 0.0
    _processes_gone: threading.Event = field(default_factory=threading.Event)
    _done: threading.Event = field(default_factory=threading.Event)
    _error: OpsctlError | None = None

    def start(self) -> None:
        """Begin to poll in the background."""
        self._began_s = time.monotonic()
        self._end_s = self._began_s + self.timeout_s
        self.first = self.verdict = self.judge(self.report)
        threading.Thread(target=self._run, daemon=True, name="memory-poll").start()

    def processes_are_gone(self, timeout_s: float) -> None:
        """Say that the last process has exited: the deadline of the proof counts from here."""
        self._end_s = time.monotonic() + timeout_s
        self._processes_gone.set()

    def shorten(self, timeout_s: float) -> None:
        """Wait no longer than this from now."""
        self._end_s = min(self._end_s, time.monotonic() + timeout_s)

    def wait(self) -> MemoryVerdict:
        """Return the verdict as soon as it is 'free', or the newest at the deadline.

        When only foreign processes hold the cards, there is nothing to wait for but them: the
        verdict comes after ``FOREIGN_PATIENCE_S``.

        Raises:
            OpsctlError: the agent was lost.
        """
        blocked_since_s: float | None = None
        while not self._done.wait(0.2):
            if time.monotonic() > self._end_s + 20.0:
                break
            if self.waits_for_foreign or not self._only_foreign_holds():
                blocked_since_s = None
                continue
            blocked_since_s = blocked_since_s or time.monotonic()
            if time.monotonic() - blocked_since_s >= FOREIGN_PATIENCE_S:
                self._end_s = 0.0
                break
        if self._error is not None:
            raise self._error
        assert self.verdict is not None
        return self.verdict

    def _only_foreign_holds(self) -> bool:
        """Say whether each card that is not free is held by somebody whom the stop leaves alone.

        A daemon's memory is no such hold: it is in the baseline, or will be.
        """
        verdict = self.verdict
        if not self._processes_gone.is_set() or verdict is None:
            return False
        blocked = [card for card in verdict.gpus if card.state != "free"]
        return bool(blocked) and all(
            any(
                view.kind in ("foreign", "protected")
                and view.holder.kind != "G"
                and not view.is_resident
                for view in card.holders
            )
            and not any(view.kind == "member" for view in card.holders)
            for card in blocked
        )

    def _run(self) -> None:
        try:
            while time.monotonic() < self._end_s and not self._poll_once():
                pass
        except OpsctlError as error:
            self._error = error
        self._done.set()

    def _poll_once(self) -> bool:
        """Poll until free; free counts as proof once the processes are gone. Says whether to end."""
        left_s = max(0.1, self._end_s - time.monotonic())
        # Asked before the poll begins: a reading from before the last exit proves nothing.
        was_gone = self._processes_gone.is_set()
        request = {
            "limits": self.limits,
            "timeout_s": min(left_s, 10.0 if was_gone else 1.0),
            "interval_s": POLL_INTERVAL_S,
        }
        try:
            answer = self.agent.call(
                "gpu.poll", request, timeout_s=left_s + 30.0, on_event=self._hear
            )
        except _Proven:
            return True
        if answer["outcome"] == "unreadable":
            self._take_unreadable(answer)
            return True
        for event in answer["gpus"]:
            self._take(event)
        if self._is_proof():
            return True
        if answer["outcome"] == "free":
            self._processes_gone.wait(max(0.0, self._end_s - time.monotonic()))
        return False

    def _hear(self, event: dict[str, Any]) -> None:
        self._take(event)
        if self._is_proof():
            raise _Proven

    def _is_proof(self) -> bool:
        proven = (
            self._processes_gone.is_set()
            and self.verdict is not None
            and self.verdict.exit_code == 0
        )
        if proven and self.proven_at_s is None:
            self.proven_at_s, self.proven_wall_s = time.monotonic(), time.time()
        return proven

    def _take(self, event: dict[str, Any]) -> None:
        gpus = tuple(
            replace(
                gpu,
                read=GpuRead.OK if event["used_bytes"] is not None else _read_of(event),
                used_bytes=event["used_bytes"],
                reserved_bytes=event["reserved_bytes"],
                memory_version=event["memory_version"],
                processes=gpu_processes(event["processes"]),
                mig_instances=mig_instances(event["mig_instances"]),
                error=event["error"],
            )
            if gpu.uuid == event["uuid"]
            else gpu
            for gpu in self.report.gpus
        )
        self.report = replace(self.report, gpus=gpus)
        self.verdict = self.judge(self.report)
        elapsed_s = time.monotonic() - self._began_s
        for card in self.verdict.gpus:
            if card.state == "free":
                self.free_after_s.setdefault(card.uuid, elapsed_s)
            else:
                self.free_after_s.pop(card.uuid, None)

    def _take_unreadable(self, answer: dict[str, Any]) -> None:
        self.report = replace(self.report, state=answer["state"], detail=answer["detail"])
        self.verdict = self.judge(self.report)


def _read_of(event: dict[str, Any]) -> GpuRead:
    return GpuRead(event["read"]) if "read" in event else GpuRead.UNKNOWN
