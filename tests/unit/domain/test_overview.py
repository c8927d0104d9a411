"""The state of a server as the status screen claims it."""

from __future__ import annotations

import pytest

from opsctl.domain.overview import Judgement, ServerState, judge_state, role_of, with_ending
from opsctl.domain.process import Ambiguity, Judged, ProcessClass, Selection
from opsctl.domain.server import ServerIdentity
from opsctl.facts import Process, ProcessDetail, ProcessId

SERVER = ServerIdentity("glm5", 30000)


def process(pid: int, *argv: str, state: str = "S") -> Process:
    return Process(
        identity=ProcessId("boot", pid, pid * 10),
        ppid=1,
        state=state,
        uid=0,
        user="root",
        comm="python",
        argv=argv,
        cgroup="/",
        ns_pids=(pid,),
        pid_namespace="pid:[1]",
        exe="/usr/bin/python3",
        session=pid,
        age_s=5.0,
    )


ROOT = process(10, "python", "-m", "sglang.launch_server", "--model-path", "/m", "--port", "30000")
SCHEDULER = process(11, "sglang::scheduler_TP0", "", "")
DETOKENIZER = process(12, "sglang::detokenizer", "")


def members(*found: Process) -> tuple[Judged, ...]:
    return tuple(
        Judged(p.pid, p, ProcessClass.MEMBER, "planted", is_root=p.pid == 10) for p in found
    )


def detail(pid: int, *ports: int, readable: bool = True) -> ProcessDetail:
    return ProcessDetail(pid, (), ports if readable else None, None, None)


@pytest.mark.parametrize(
    ("found", "details", "state"),
    [
        ((ROOT, SCHEDULER, DETOKENIZER), [detail(10, 30000)], ServerState.LISTENING),
        ((ROOT, SCHEDULER, DETOKENIZER), [detail(10)], ServerState.UNKNOWN),
        (
            (ROOT, SCHEDULER, DETOKENIZER),
            [detail(10), detail(11), detail(12)],
            ServerState.STARTING,
        ),
        ((ROOT,), [detail(10, 30000)], ServerState.BROKEN),
        ((SCHEDULER,), [detail(11)], ServerState.BROKEN),
        (
            (ROOT, process(11, "sglang::scheduler_TP0", state="Z"), DETOKENIZER),
            [detail(10, 30000)],
            ServerState.BROKEN,
        ),
        ((process(10, "python", state="Z"),), [], ServerState.BROKEN),
        ((), [], ServerState.STOPPED),
    ],
)
def test_state_is_claimed_only_from_what_was_seen(
    found: tuple[Process, ...], details: list[ProcessDetail], state: ServerState
) -> None:
    """Dead workers are never 'listening', and unreadable ports are never 'starting'."""
    selection = Selection(SERVER, members(*found))

    judged = judge_state(selection, {d.pid: d for d in details}, 30000, sglang=True)

    assert judged.state is state


def test_orphaned_workers_are_no_starting_server() -> None:
    """A scheduler that lost its main process is the root of its tree, and still a broken server."""
    orphan = Judged(11, SCHEDULER, ProcessClass.MEMBER, "orphan", is_root=True)
    selection = Selection(SERVER, (orphan,))

    judged = judge_state(selection, {11: detail(11)}, 30000, sglang=True)

    assert judged.state is ServerState.BROKEN


def test_doubt_wins_over_everything() -> None:
    """A process that cannot be attributed makes the state ambiguous."""
    doubt = Ambiguity(11, SCHEDULER, "two servers could own it", ("glm5", "other"))
    selection = Selection(SERVER, members(ROOT), ambiguous=(doubt,))

    assert judge_state(selection, {}, 30000, sglang=True).state is ServerState.AMBIGUOUS


def test_an_open_port_says_how_to_see_that_it_answers() -> None:
    """Listening is no answer: the command that proves one stands beside it."""
    selection = Selection(SERVER, members(ROOT, SCHEDULER, DETOKENIZER))

    judged = judge_state(selection, {10: detail(10, 30000)}, 30000, sglang=True)

    assert judged.why.endswith("to see that it answers: opsctl smoke glm5 --levels 1")


UNIT = {"run": "r1", "via": "systemd"}
SUPERVISED = {"run": "r1", "via": "supervisor", "state": "exited"}
KILLED = "launch r1: it was ended by signal 9, by no stop of opsctl; why: opsctl logs glm5"


@pytest.mark.parametrize(
    ("launches", "words"),
    [
        ([], None),
        ([{**UNIT, "unit_state": None, "exit": {"signal": 9}}], None),
        ([{**UNIT, "unit_state": "active/running"}], None),
        ([{**UNIT, "unit_state": "failed/failed", "exit": {"signal": 9}}], KILLED),
        ([{**SUPERVISED, "exit": {"signal": 9, "at_s": 1.0}}], KILLED),
        ([{**SUPERVISED, "exit": {"signal": 9, "at_s": 1.0}, "forgotten": True}], None),
        ([{**SUPERVISED, "exit": {"reason": "its supervisor is gone as well"}}], None),
        ([{**SUPERVISED, "exit": {"reason": "the machine was rebooted"}}], None),
    ],
)
def test_a_server_that_ended_by_itself_is_not_told_as_a_stopped_one(
    launches: list[dict[str, object]], words: str | None
) -> None:
    """A unit that systemd still knows as failed was not ended by a stop, which lets it be forgotten.

    Without systemd the same holds for a launch whose end its supervisor wrote down.
    """
    stopped = Judgement(ServerState.STOPPED, "no process of it")

    judged = with_ending(stopped, launches, "glm5")

    assert judged.state is ServerState.STOPPED
    assert judged.why == "; ".join(part for part in ("no process of it", words) if part)


def test_a_foreign_listener_is_named() -> None:
    """A stopped server whose port another holds says who."""
    other = Judged(77, process(77, "nginx"), ProcessClass.FOREIGN, "listens on 30000")
    selection = Selection(SERVER, (), port_holders=(other,))

    judged = judge_state(selection, {}, 30000, sglang=True)

    assert judged.state is ServerState.STOPPED
    assert "pid 77" in judged.why


def test_roles_come_from_titles_and_entry_points() -> None:
    """The screen names ranks as SGLang does."""
    assert [role_of(p) for p in (ROOT, SCHEDULER, DETOKENIZER)] == [
        "server",
        "scheduler_TP0",
        "detokenizer",
    ]
