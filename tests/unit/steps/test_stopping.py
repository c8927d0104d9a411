"""A pass over a plan against an agent that answers as told: order, escalation, outcomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from opsctl.domain.protection import Table
from opsctl.domain.selection import select
from opsctl.domain.stop_plan import UNTOLD, Outcome, UnitFact, plan_stop
from opsctl.errors import AgentError
from opsctl.facts import Process
from opsctl.steps import stopping
from opsctl.steps.picture import Picture
from opsctl.steps.stop import unit_facts
from opsctl.steps.stopping import Stopping
from tests.fakes import FakeAgent
from tests.unit.domain.tables import BOOT, LAUNCH, proc, server, system, title, view


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FOLLOW_S", "SECOND_GRACE_S", "KILL_WAIT_S"):
        monkeypatch.setattr(stopping, name, 0.05)


@dataclass
class Host:
    """An agent whose processes end when they get a signal that they obey."""

    obeys: Callable[[int, str], bool]
    replies: dict[int, str] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    sent: list[tuple[str, list[int]]] = field(default_factory=list)
    hear: Any = None
    gone: set[int] = field(default_factory=set)
    name: str = "fake"

    def call(
        self,
        operation: str,
        request: dict[str, Any] | None = None,
        *,
        timeout_s: float = 1.0,
        on_event: Any = None,
    ) -> dict[str, Any]:
        assert request is not None
        if operation == "process.watch":
            self.hear = on_event
            on_event({"watching": [entry["pid"] for entry in request["processes"]]})
            import time

            time.sleep(1.5)
            return {"gone": [], "left": []}
        if operation == "process.wait_gone":
            left = [entry["pid"] for entry in request["processes"]]
            states = [{"pid": pid, "state": self.states.get(pid, "S")} for pid in left]
            return {"gone": [], "left": states}
        assert operation == "process.signal_all"
        assert request["boot_id"] == BOOT
        pids = [entry["pid"] for entry in request["processes"]]
        self.sent.append((request["signal"], pids))
        return {"outcomes": [self._signal(pid, request["signal"]) for pid in pids]}

    def _signal(self, pid: int, name: str) -> dict[str, Any]:
        if pid in self.replies:
            return {"pid": pid, "outcome": self.replies[pid]}
        if self.obeys(pid, name):
            self.gone.add(pid)
            self.hear({"exit": pid, "clock_s": 100.0})
        return {"pid": pid, "outcome": "sent"}


def run(
    host: Host,
    *processes: Process,
    hard: bool = False,
    units: FakeAgent | None = None,
) -> Stopping:
    table = system(*processes)
    found = select(server(), table, {}, [], view())
    plan = plan_stop(found, Table.of(table))
    made = Stopping(host, units or FakeAgent(), plan, BOOT, 0.05, lambda text: None)
    made.hold()
    made.kill() if hard else made.terminate()
    made.finish()
    return made


ROOT = proc(4200, 1, LAUNCH)
ONE = title(4201, 4200, "sglang::scheduler_TP0")
TWO = title(4202, 4200, "sglang::scheduler_TP1")


def test_term_goes_to_the_root_alone_first() -> None:
    """The rest gets its own only when it outlives the root."""
    host = Host(lambda pid, name: True)
    done = run(host, ROOT, ONE)

    assert host.sent == [("TERM", [4200]), ("TERM", [4201])]
    assert done.outcomes == {4200: Outcome.TERMINATED, 4201: Outcome.TERMINATED}


def test_who_obeys_nothing_but_kill_is_killed_one_by_one() -> None:
    """TERM, TERM, KILL: only to those that are left."""
    host = Host(lambda pid, name: name == "KILL" or pid == 4200)
    done = run(host, ROOT, ONE, TWO)

    assert host.sent == [
        ("TERM", [4200]),
        ("TERM", [4201, 4202]),
        ("KILL", [4201, 4202]),
    ]
    assert done.outcomes[4200] is Outcome.TERMINATED
    assert done.outcomes[4201] is Outcome.KILLED


def test_a_hard_stop_sends_no_term() -> None:
    """KILL only, the root first."""
    host = Host(lambda pid, name: True)
    run(host, ROOT, ONE, hard=True)
    assert host.sent == [("KILL", [4200, 4201])]


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [("recycled", Outcome.RECYCLED), ("denied", Outcome.DENIED), ("zombie", Outcome.ZOMBIE)],
)
def test_the_agent_s_refusal_is_the_outcome(reply: str, outcome: Outcome) -> None:
    """Recycled, denied and dead are three outcomes; none is called terminated."""
    host = Host(lambda pid, name: True, replies={4200: reply})
    assert run(host, ROOT).outcomes == {4200: outcome}


def test_denied_is_not_gone() -> None:
    """EPERM says that it lives."""
    assert not Outcome.DENIED.is_gone
    assert not Outcome.STUCK.is_gone
    assert Outcome.RECYCLED.is_gone


@pytest.mark.parametrize(
    ("state", "outcome"),
    [("D", Outcome.STUCK), ("S", Outcome.ALIVE), ("R", Outcome.ALIVE), ("Z", Outcome.ZOMBIE)],
)
def test_what_outlives_kill_is_told_by_its_state(state: str, outcome: Outcome) -> None:
    """D is stuck in the kernel, Z is dead, the rest is alive."""
    host = Host(lambda pid, name: False, states={4200: state})
    assert run(host, ROOT).outcomes == {4200: outcome}


def test_a_zombie_of_the_plan_is_never_signalled() -> None:
    """It was dead when the plan was made."""
    host = Host(lambda pid, name: True)
    dead = proc(4203, 4200, (), state="Z", comm="sglang::schedul")
    done = run(host, ROOT, dead)
    assert host.sent == [("TERM", [4200])]
    assert done.outcomes[4203] is Outcome.ZOMBIE


def test_a_unit_is_stopped_by_systemd() -> None:
    """The root gets no TERM of ours: systemd sends it, and does not start it again."""
    units = FakeAgent({"units.stop": {"outcome": "asked", "detail": ""}})
    host = Host(lambda pid, name: name == "KILL")
    cgroup = "/system.slice/sglang.service"
    run(host, proc(4200, 1, LAUNCH, cgroup=cgroup), units=units)

    assert units.requests("units.stop") == [{"unit": "sglang.service"}]
    assert [name for name, _ in host.sent] == ["KILL"]


def test_a_unit_that_systemd_does_not_stop_is_signalled_and_told() -> None:
    """Denied by polkit: the processes are ended one by one, with a finding."""
    units = FakeAgent({"units.stop": {"outcome": "denied", "detail": "Access denied"}})
    host = Host(lambda pid, name: True)
    cgroup = "/system.slice/sglang.service"
    done = run(host, proc(4200, 1, LAUNCH, cgroup=cgroup), units=units)

    assert host.sent[0] == ("TERM", [4200])
    assert [finding.code for finding in done.findings] == ["unit-not-stopped"]


def test_a_systemd_that_hangs_does_not_keep_the_server_running() -> None:
    """Asked, and no answer: the processes are ended one by one, with a finding."""
    error = AgentError("host: units.stop: systemctl stop did not end within 15 s", code="timeout")
    host = Host(lambda pid, name: True)
    cgroup = "/system.slice/sglang.service"
    done = run(host, proc(4200, 1, LAUNCH, cgroup=cgroup), units=FakeAgent({"units.stop": error}))

    assert host.sent[0] == ("TERM", [4200])
    assert [finding.code for finding in done.findings] == ["unit-not-stopped"]


def test_an_agent_that_is_lost_ends_the_stop_before_its_first_signal() -> None:
    """That is no word of systemd's."""
    error = AgentError("host: the agent ended", code="agent-lost")
    host = Host(lambda pid, name: True)
    cgroup = "/system.slice/sglang.service"
    with pytest.raises(AgentError):
        run(host, proc(4200, 1, LAUNCH, cgroup=cgroup), units=FakeAgent({"units.stop": error}))
    assert host.sent == []


def test_a_plan_is_made_though_systemd_hangs() -> None:
    """What it would say of the unit is not told; an agent that is lost is another matter."""
    root = proc(4200, 1, LAUNCH, cgroup="/system.slice/sglang.service")
    found = select(server(), system(root), {}, [], view())
    picture = cast("Picture", SimpleNamespace(selection=found, unit_facts=dict))
    hangs = FakeAgent({"units.show": AgentError("it hangs", code="timeout")})
    lost = FakeAgent({"units.show": AgentError("it ended", code="agent-lost")})

    assert unit_facts(hangs, picture) == [UnitFact("sglang.service", UNTOLD)]
    with pytest.raises(AgentError):
        unit_facts(lost, picture)
