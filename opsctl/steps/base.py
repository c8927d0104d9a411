"""The contract of a step: a declared effect, a description before, a truthful result after."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from opsctl.agent.client import Agent as Agent  # steps import it from here
from opsctl.domain.fingerprint import Attempt
from opsctl.errors import CheckFailed, OpsctlError, TransportError
from opsctl.output import Finding
from opsctl.records import dataclass

if TYPE_CHECKING:
    from opsctl.site import Server


class Effect(StrEnum):
    """What a step may do to the world at most."""

    READ = "read"
    CHANGE = "change"
    DESTROY = "destroy"


class StepOutcome(StrEnum):
    """How a step ended. UNKNOWN: it may or may not have happened; only looking again can tell."""

    DONE = "done"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did. ``exit_code`` is the contract's code when the step is the reason why a run ends badly.

    ``data`` is JSON: it goes into the ledger, and under the step's name into the run's document.
    """

    outcome: StepOutcome
    changed: bool = False
    findings: tuple[Finding, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = 0

    @property
    def is_good(self) -> bool:
        return self.outcome in (StepOutcome.DONE, StepOutcome.UNCHANGED)


# the agent's errors after which the far side is not known
LOST = ("agent-lost", "operation-timeout")


def is_cut(error: OpsctlError) -> bool:
    """Say whether the way broke: what the far side did after that is not known."""
    return isinstance(error, TransportError) or error.code in LOST


class Clock(Protocol):
    """Time as an argument, so that no test sleeps."""

    def now(self) -> float:
        """Return monotonic seconds."""

    def sleep(self, seconds: float) -> None:
        """Wait; an operator's interruption ends the wait early."""


class Reporter(Protocol):
    """Where a step says what is going on, for people; nothing depends on it."""

    def say(self, text: str) -> None:
        """Print one line that stays."""

    def progress(self, text: str) -> None:
        """Show the state of the moment, which the next one replaces."""


def ticking(reporter: Reporter, text: str) -> AbstractContextManager[None]:
    """Show ``text`` with its seconds while a block runs, where the reporter can."""
    shown = getattr(reporter, "ticking", None)
    return nullcontext() if shown is None else cast("AbstractContextManager[None]", shown(text))


class Session(Protocol):
    """The agents of one server, opened on first use and kept for the whole run.

    ``agent`` is where the server runs (inside its container), ``owner_agent`` in the namespace that owns its
    processes (the container's node), ``gpu_agent`` on the machine that owns the GPUs; they may be one object.
    """

    @property
    def agent(self) -> Agent: ...

    @property
    def owner_agent(self) -> Agent: ...

    @property
    def gpu_agent(self) -> Agent: ...


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of a run's time, in the clock's seconds; None means no bound."""

    at: float | None = None

    def left(self, now: float, at_most: float) -> float:
        """Return the seconds that may still be spent, at most ``at_most``.

        Raises:
            CheckFailed: exit 20, when the time is over.
        """
        if self.at is None:
            return at_most
        if self.at <= now:
            raise CheckFailed(
                "the run's --deadline is over",
                code="deadline",
                next_step="look with `opsctl resume`; it does only what is still missing",
            )
        return min(at_most, self.at - now)


class Memory(Protocol):
    """What is known from earlier attempts, and where the next one is kept: the ledger."""

    def attempts(self) -> list[Attempt]: ...

    def add_attempt(self, attempt: Attempt) -> None: ...

    def set_facts(self, run: str, facts: Mapping[str, Any], fingerprint: str | None) -> None: ...


def _nothing_noted(code: str, body: Mapping[str, Any]) -> None:
    """Stand in where no run is written down: a dry run, a test."""


@dataclass(slots=True)
class StepContext:
    """What a step is given: the server and its agents, the run it belongs to, time, and what came before."""

    server: Server
    server_name: str
    run_id: str
    session: Session
    clock: Clock
    reporter: Reporter
    deadline: Deadline = field(default_factory=Deadline)
    memory: Memory | None = None
    values: Mapping[str, Any] = field(default_factory=dict)  # the playbook's inputs, typed
    who: str = ""
    begun_s: float = (
        0.0  # when the run began, seconds since the epoch, also for one that is continued
    )
    reason: str | None = None
    wall: Callable[[], float] = time.time  # seconds since the epoch
    confirm: Callable[[str], None] = lambda question: None  # raises SafetyRefusal on no
    ahead: tuple[Step, ...] = ()  # what the run would do after the question, for the question
    results: dict[str, StepResult] = field(default_factory=dict)  # by step name, in order
    note: Callable[[str, Mapping[str, Any]], None] = _nothing_noted
    """Write a fact down durably inside a step (an intent, an identity), before this returns."""
    kept: Path | None = None  # folder for what this run keeps on this machine
    patch_folder: Path | None = None  # the site's own patches, beside those that ship
    cancelled: threading.Event = field(default_factory=threading.Event)  # the first Ctrl-C sets it
    state_dir: Path | None = None  # where idle baselines are kept; None: nothing is learned
    live: dict[str, object] = field(
        default_factory=dict
    )  # what one step leaves running for the next

    def data_of(self, step: str) -> Mapping[str, Any]:
        """Return the data of an earlier step of this run; empty when it did not run."""
        result = self.results.get(step)
        return result.data if result else {}


class Step(Protocol):
    """One thing a run does. Immutable, does one thing, safe to run twice, tells the truth."""

    @property
    def name(self) -> str:
        """The name under which playbooks, the ledger and the document know the step."""

    @property
    def effect(self) -> Effect: ...

    def describe(self) -> str:
        """Say in half a sentence what it does, e.g. ``stop the server's processes by identity``."""

    def preview(self, ctx: StepContext) -> list[str]:
        """Return what ``run`` would do now, exactly, from real reads; changes nothing (for --dry-run)."""

    def run(self, ctx: StepContext) -> StepResult:
        """Do it. A bad end that is a finding is a result; a broken way (transport, agent) is raised."""


class MonotonicClock:
    """The real clock."""

    def __init__(self, cancelled: threading.Event | None = None) -> None:
        self._cancelled = cancelled or threading.Event()

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        self._cancelled.wait(seconds)
