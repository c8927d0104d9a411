"""Crashed, hung, slow, a stranger's port, and ready are five different things."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.domain.ready import (
    Limits,
    StartProgress,
    StartState,
    describe_exit,
    find_workers,
    judge_generation,
    judge_start,
)
from opsctl.facts import Process, ProcessId

LIMITS = Limits(timeout_s=100.0, stall_s=30.0)
RUNNING = {"state": "running"}
SGLANG = ("python", "-m", "sglang.launch_server", "--tp", "2")


def progress(*lines: str, at: float = 0.0) -> StartProgress:
    made = StartProgress(begun_at=0.0)
    made.feed(lines, at)
    return made


def test_stages_are_followed_with_their_times() -> None:
    """The log's own lines say where the start stands."""
    made = progress("[t TP0] Load weight begin. avail mem=95.59 GB", at=1.0)
    made.feed(["[t TP0] Load weight end. elapsed=0.1 s"], 5.0)
    made.feed(["[t] The server is fired up and ready to roll!"], 9.0)

    assert made.stages == [("begin weights", 1.0), ("end weights", 5.0), ("ready", 9.0)]
    assert made.ready_line_at == 9.0
    assert made.says_it_listens


def test_a_running_start_waits() -> None:
    """At work, inside its limits."""
    state, words = judge_start(RUNNING, progress("Load weight begin."), 10.0, LIMITS)

    assert state is StartState.WAITING
    assert "loading weights" in words


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ({"code": 0, "signal": None}, "it exited with 0: a server that ends is not a success"),
        ({"code": 1, "signal": None}, "it exited with 1"),
        ({"code": None, "signal": 11, "core_dumped": True}, "signal 11, core dumped"),
        ({"error": "No such file"}, "could not be executed: No such file"),
        ({"reason": "the machine was rebooted"}, "the machine was rebooted"),
        (None, "nobody saw how"),
    ],
)
def test_an_end_is_a_crash_whatever_the_code(ended: dict[str, Any] | None, words: str) -> None:
    """Exit status 0 is not success."""
    state, said = judge_start({"state": "exited", "exit": ended}, progress(), 1.0, LIMITS)

    assert state is StartState.CRASHED
    assert words in said
    assert said == describe_exit(ended)


def test_no_progress_for_long_is_a_hang() -> None:
    """Health probes in the access log are no progress."""
    made = progress("Load weight begin.", at=5.0)
    made.feed(['INFO: 127.0.0.1 - "GET /health HTTP/1.1" 503'], 34.0)

    state, words = judge_start(RUNNING, made, 36.0, LIMITS)

    assert state is StartState.HUNG
    assert words == "no progress for 31 s, at: loading weights"


def test_still_at_work_after_the_limit_is_slow() -> None:
    """Slow is not hung: nothing is concluded about the fix."""
    state, _ = judge_start(RUNNING, progress("Capture cuda graph begin.", at=99.0), 101.0, LIMITS)

    assert state is StartState.SLOW


def test_another_process_on_the_port_is_a_stranger() -> None:
    """A good health answer from somebody else proves nothing."""
    state, _ = judge_start(RUNNING, progress(), 1.0, LIMITS, stranger="pid 9 (nginx)")

    assert state is StartState.STRANGER


def process(pid: int, ppid: int, title: str, state: str = "S", session: int = 10) -> Process:
    return Process(
        identity=ProcessId("boot", pid, pid * 10),
        ppid=ppid,
        state=state,
        uid=0,
        user="root",
        comm=title[:15],
        argv=(title,),
        cgroup="",
        ns_pids=(pid,),
        pid_namespace=None,
        exe=None,
        session=session,
        age_s=1.0,
    )


TREE = [
    process(10, 1, "python"),
    process(11, 10, "sglang::scheduler_TP0"),
    process(12, 1, "sglang::scheduler_TP1"),  # reparented, still of the session
    process(13, 10, "sglang::detokenizer"),
    process(99, 1, "sglang::scheduler_TP0", session=99),  # another server's
]


def test_all_workers_are_found_by_tree_and_session() -> None:
    """A scheduler under pid 1 still belongs to its server; another server's does not."""
    found = find_workers(TREE, 10, SGLANG)

    assert found.missing == ()
    assert [member.pid for member in found.members] == [10, 11, 12, 13]


@pytest.mark.parametrize(
    ("gone", "missing"),
    [
        (11, "1 of 2 schedulers"),
        (13, "the detokenizer"),
        (10, "the main process (pid 10)"),
    ],
)
def test_a_missing_worker_is_named(gone: int, missing: str) -> None:
    """Alive port, dead workers: the zombie service of case 021."""
    tree = [p if p.pid != gone else process(gone, 10, "x", state="Z") for p in TREE]

    assert missing in find_workers(tree, 10, SGLANG).missing


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ({"status": 200, "json": {"text": " Paris", "meta_info": {"completion_tokens": 8}}}, None),
        ({"status": 200, "json": {"output_ids": [1, 2], "meta_info": {}}}, None),
        (
            {
                "status": 200,
                "json": {"choices": [{"text": "x", "finish_reason": "length"}], "usage": {}},
            },
            None,
        ),
        ({"status": 200, "json": {"text": "", "meta_info": {}}}, "without text"),
        ({"status": 200, "json": {"error": {"message": "boom"}}}, "an error inside a 200"),
        ({"status": 500, "json": None, "text": "oops"}, "status 500"),
        ({"status": None, "error": "timeout: timed out"}, "no answer"),
        (
            {
                "status": 200,
                "json": {"text": "x", "meta_info": {"finish_reason": {"type": "abort"}}},
            },
            "finished with 'abort'",
        ),
    ],
)
def test_only_a_real_answer_proves_the_server(reply: dict[str, Any], problem: str | None) -> None:
    """Status 200 alone is nothing."""
    answer = judge_generation(reply)

    assert (answer.problem is None) == (problem is None)
    assert problem is None or problem in (answer.problem or "")


def test_a_question_that_does_not_fit_says_nothing_about_the_server() -> None:
    """A 404 on the route is our mistake, not a hang."""
    assert judge_generation({"status": 404, "json": None, "text": ""}).not_understood
    assert not judge_generation({"status": 503, "json": None, "text": ""}).not_understood
