"""What a crash tells when no log explains it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from opsctl.domain.report import LevelReport, Outcome
from opsctl.sglang.endpoint import Endpoint
from opsctl.sglang.info import ServerInfo
from opsctl.smoke.agent_watch import AgentWatch
from opsctl.smoke.diagnosis import diagnose_level, explain
from opsctl.smoke.findings import add_findings
from opsctl.smoke.judge import Book
from opsctl.smoke.result import Options, SmokeReport

INFO = ServerInfo(kind="sglang", api="generate", graph_sizes=(1, 2, 4, 8), draft_tokens=16)
HEALTHY_LOG = "[2026-11-29 10:00:00] The server is fired up and ready to roll!\n"


def level(outcome: str = "crashed", **more: Any) -> LevelReport:
    made = LevelReport(10, Outcome(outcome), "nothing listens on port 30000 any more")
    made.sign = {"confirmed_by": "port", "in_flight": 10, "done_before": 3, "at_s": 1.25}
    made.errors = {"stream-cut": 9, "refused": 1}
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_crash_without_a_log_is_told_from_the_clients_side() -> None:
    """Unknown, but with bracket, transport errors, the limits that lie there, and where to give a log."""
    found = diagnose_level(level(), INFO, "", 5, last_good=5)

    assert found is not None
    assert (found["category"], found["signature"], found["basis"]) == ("unknown", None, "outside")
    for words in (
        "C=5 was good, C=10 is the first bad level",
        "9 stream-cut",
        "10 requests were in flight and 3 had ended, 1.2 s into the level",
        "speculation is off above 5",
        "the largest captured graph is 8",
        "10 requests x 16 draft tokens are 160",
        "no log was read",
    ):
        assert words in found["explanation"]
    assert "--log FILE" in found["next"][0]


@pytest.mark.parametrize(
    ("code", "advice"), [(-9, "killed process"), (-11, "SIGSEGV is a native crash")]
)
def test_exit_that_the_watch_saw_names_the_fault(code: int, advice: str) -> None:
    """A scheduler that ended by a signal and a log that is healthy to its end: child-died."""
    exits = [{"name": "sglang::scheduler_TP0", "exit": 7, "exit_code": code}]

    found = diagnose_level(level(), INFO, HEALTHY_LOG, None, exits=exits, log="/var/log/s.log")

    assert found is not None
    assert found["category"] == "child-died"
    assert found["signature"].startswith("child-died:")
    assert "the log /var/log/s.log was read and does not say why" in found["explanation"]
    assert any(advice in step for step in found["next"])


def test_signature_of_an_exit_is_that_of_the_signal_alone() -> None:
    """The same end on another rank and pid is the same fault; another signal is another one."""

    def signature(name: str, pid: int, code: int) -> str:
        exits = [{"name": name, "exit": pid, "exit_code": code}]
        found = diagnose_level(level(), INFO, "", None, exits=exits)
        assert found is not None
        return str(found["signature"])

    first = signature("sglang::scheduler_TP0", 7, -9)
    assert signature("sglang::scheduler_TP3", 99, -9) == first
    assert signature("sglang::scheduler_TP0", 7, -11) != first


def test_port_without_a_generation_is_a_zombie_seen_from_outside() -> None:
    """The port answers, no generation ends: said with the little confidence that it deserves."""
    found = diagnose_level(level(sign={"confirmed_by": "generation"}), INFO, "", None)

    assert found is not None
    assert found["category"] == "zombie-service"
    assert found["confidence"] <= 0.5


def test_hang_without_a_log_is_silent() -> None:
    """Nothing answered, nothing was said; the stacks are wanted before anything is killed."""
    found = diagnose_level(level("hung", sign={"confirmed_by": "generation"}), INFO, "", None)

    assert found is not None
    assert found["category"] == "silent-hang"
    assert any("py-spy" in step for step in found["next"])


def test_failed_answers_that_no_log_explains_have_no_diagnosis() -> None:
    """The level's own words say what is wrong; a crash is not invented."""
    assert diagnose_level(level("failed"), INFO, "", None) is None
    assert diagnose_level(level("failed"), INFO, HEALTHY_LOG, None) is None


def test_first_level_is_never_load() -> None:
    """It failed with one request at a time."""
    alone = level(concurrency=1)
    found = diagnose_level(alone, INFO, "", 5)

    assert found is not None
    assert "not load" in found["explanation"]
    assert "draft tokens are" not in found["explanation"]
    assert not any("--bisect" in step for step in found["next"])


def test_level_and_finding_name_what_raised_before_the_process_that_ended() -> None:
    """The detokenizer's end is collateral: the scheduler's record comes first, its name is filled in."""
    bad = level()
    bad.requests = 10
    bad.reason = "sglang::detokenizer, pid 1152, ended (signal 9)"
    report = SmokeReport(Options(Endpoint("127.0.0.1", 30000)), INFO, levels=[bad])
    add_findings(report, Book(0.5))
    log = (
        "[2026-11-30 01:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "sglang/srt/speculative/eagle_worker.py", line 5, in verify\n'
        "RuntimeError: The size of tensor a (160) must match the size of tensor b (10) "
        "at non-singleton dimension 0\n"
    )
    watch = AgentWatch(cast("Any", None), (), text=log)

    found = explain(report, bad, watch, "glm5")
    finding = next(one for one in report.findings if one.code == "level-crashed")

    assert found is not None
    assert "`opsctl smoke glm5 --bisect`" in found["next"][0]
    assert bad.reason.startswith("TP0: ")
    assert "The size of tensor a (160)" in bad.reason
    assert bad.reason.endswith("; sglang::detokenizer, pid 1152, ended (signal 9)")
    assert (finding.text, finding.next) == (bad.reason, "")
