"""The memory proof and the exit watch over an agent's events."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.domain.gpu import MemoryVerdict
from opsctl.domain.gpu_memory import judge_memory
from opsctl.errors import AgentError
from opsctl.facts import GpuReport, MigInstance, ProcessId
from opsctl.steps.watching import ExitWatch, MemoryPoll
from tests.fakes import FakeAgent
from tests.unit.domain.tables import BOOT, GPU0, gpu, report

GIB = 1 << 30


def event(used: int | None, processes: list[Any] | None = None, **changes: Any) -> dict[str, Any]:
    body = {"uuid": GPU0, "used_bytes": used, "reserved_bytes": 0, "memory_version": 2}
    body |= {"mig_instances": [], "error": None, "read": "ok"}
    return {**body, "processes": processes or [], **changes}


def answer(outcome: str, *gpus: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"outcome": outcome, "state": "ok", "detail": None, "gpus": list(gpus), **changes}


def poll_of(
    agent: FakeAgent,
    classes: dict[int, tuple[str, str]] | None = None,
    residents: frozenset[int] = frozenset(),
) -> MemoryPoll:
    first = report(gpu(used=9 * GIB, holders=[(7, 9 * GIB)]))

    def judge(seen: GpuReport) -> MemoryVerdict:
        return judge_memory(seen, [GPU0], classes=classes, residents=residents)

    return MemoryPoll(agent, first, {GPU0: 64 << 20}, judge, 5.0)


def test_free_after_the_last_exit_is_proof() -> None:
    """A reading within the limit and without a holder, taken after the processes are gone."""
    agent = FakeAgent({"gpu.poll": answer("free", event(0))}, {"gpu.poll": [event(0)]})
    poll = poll_of(agent)
    poll.start()
    poll.processes_are_gone(5.0)

    verdict = poll.wait()

    assert verdict.exit_code == 0
    assert poll.proven_at_s is not None
    assert poll.first is not None
    assert poll.first.exit_code == 20


def test_free_before_the_last_exit_is_no_proof() -> None:
    """The memory may be taken again by what still runs: it is asked once more afterwards."""
    agent = FakeAgent({"gpu.poll": answer("free", event(0))}, {"gpu.poll": [event(0)]})
    poll = poll_of(agent)
    poll.start()
    while not agent.requests("gpu.poll"):
        pass
    asked = len(agent.requests("gpu.poll"))

    assert poll.proven_at_s is None
    poll.processes_are_gone(5.0)
    assert poll.wait().exit_code == 0
    assert len(agent.requests("gpu.poll")) > asked


def test_the_agent_s_free_is_not_believed_over_the_judgement() -> None:
    """What the client's rules do not accept stays busy until the deadline."""
    held = event(10, [[7, "C", 10]])
    agent = FakeAgent({"gpu.poll": answer("free", held)})
    poll = poll_of(agent)
    poll.start()
    poll.processes_are_gone(0.05)
    assert poll.wait().exit_code == 20
    assert poll.proven_at_s is None


def test_a_protected_holder_within_the_limit_is_free_although_the_agent_waits() -> None:
    """The agent's rule is stricter; the verdict is the client's."""
    mps = event(30 << 20, [[7, "M", 30 << 20]])
    agent = FakeAgent({"gpu.poll": answer("deadline", mps)}, {"gpu.poll": [mps]})
    poll = poll_of(agent, {7: ("protected", "the MPS server")}, frozenset({7}))
    poll.start()
    poll.processes_are_gone(5.0)
    assert poll.wait().exit_code == 0


@pytest.mark.parametrize(("used", "exit_code"), [(0, 0), (9 << 30, 20), (None, 21)])
def test_mig_instances_are_read_anew(used: int | None, exit_code: int) -> None:
    """Where only they tell what is used, those of before the stop prove nothing."""
    before = MigInstance("MIG-1", 20 << 30, 9 << 30 if used == 0 else 0, ())
    now = {"uuid": "MIG-1", "total_bytes": 20 << 30, "used_bytes": used, "processes": []}
    reading = event(None, mig_instances=[now])
    agent = FakeAgent({"gpu.poll": answer("deadline", reading)}, {"gpu.poll": [reading]})
    poll = poll_of(agent)
    card = gpu(used=None, mig_enabled=True, mig_instances=(before,))
    poll.report = report(card)
    poll.start()
    poll.processes_are_gone(0.3)

    assert poll.wait().exit_code == exit_code


@pytest.mark.parametrize("state", ["timeout", "mismatch", "driver-not-loaded"])
def test_nvml_that_fails_on_the_way_is_unknown(state: str) -> None:
    """Not the last good reading counts, but that there is none now."""
    agent = FakeAgent({"gpu.poll": answer("unreadable", state=state, detail="x")})
    poll = poll_of(agent)
    poll.start()
    poll.processes_are_gone(5.0)
    verdict = poll.wait()
    assert verdict.exit_code in (20, 21)
    assert any(finding.code == f"nvml-{state}" for finding in verdict.findings)
    assert poll.proven_at_s is None


def test_a_lost_agent_is_an_error_and_not_a_verdict() -> None:
    """Nothing is claimed when the way broke."""
    poll = poll_of(FakeAgent({"gpu.poll": AgentError("gone", code="agent-lost")}))
    poll.start()
    poll.processes_are_gone(5.0)
    with pytest.raises(AgentError):
        poll.wait()


def test_exits_are_heard_of_and_all_gone_is_claimed_only_then() -> None:
    """The watch says who is gone and when; the others are not."""
    events = [{"watching": [5, 6]}, {"exit": 5, "clock_s": 12.5}]
    agent = FakeAgent({"process.watch": {"gone": [5], "left": [6]}}, {"process.watch": events})
    watch = ExitWatch(agent, [ProcessId(BOOT, 5, 1), ProcessId(BOOT, 6, 1)], 1.0)
    watch.start()

    assert watch.wait([5], 1.0)
    assert not watch.wait([6], 0.01)
    assert not watch.all_gone
    assert watch.gone == {5: 12.5}


def test_a_watch_that_cannot_begin_stops_the_stop() -> None:
    """No signal is sent when the exits could not be seen."""
    agent = FakeAgent({"process.watch": AgentError("no", code="internal")})
    with pytest.raises(AgentError):
        ExitWatch(agent, [ProcessId(BOOT, 5, 1)], 1.0).start()
