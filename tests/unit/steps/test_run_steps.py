"""The steps of a run against a fake agent: what they ask, refuse, conclude and keep."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from opsctl.domain.fingerprint import Attempt, AttemptOutcome, Content
from opsctl.domain.launch import LaunchPlan
from opsctl.domain.preflight import Verdict
from opsctl.errors import SafetyRefusal, TransportError
from opsctl.facts import Host
from opsctl.site import Server
from opsctl.steps import look
from opsctl.steps.base import StepContext, StepOutcome, StepResult
from opsctl.steps.failure import refuse_going_down
from opsctl.steps.known_failure import KnownFailure
from opsctl.steps.launch import Launch
from opsctl.steps.launch_plan import full_environment
from opsctl.steps.lock import acquire, describe_holder
from opsctl.steps.look import overtaken_by
from opsctl.steps.preflight import own_holders, result_of, unused_patches
from opsctl.steps.ready import Ready
from opsctl.steps.record import Record, judge_outcome
from opsctl.steps.rollback import planned_back
from opsctl.steps.settle import failed_step
from tests.fakes import FakeAgent

PLAN = LaunchPlan(
    run="r2",
    server="one",
    argv=("/v/python", "-m", "sglang.launch_server", "--port", "30000", "--tp", "2"),
    port=30000,
    address="127.0.0.1",
    log="/l/one-r2.log",
    cwd="/",
    user=None,
    nofile=1024,
    public_env={"A": "1"},
    package="sglang",
    package_version="0.5.9",
    gpu_model="H200",
)
SERVER = Server(host="here", python="/v/python", model="/m")
HOST = Host("b", "here", "6.1", True, None, None, 0, "3.11", 100, 1.0)


@dataclass
class Session:
    agent: FakeAgent

    @property
    def owner_agent(self) -> FakeAgent:
        return self.agent

    @property
    def gpu_agent(self) -> FakeAgent:
        return self.agent


@dataclass
class Quiet:
    said: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)

    def progress(self, text: str) -> None:
        """Nothing is shown."""


@dataclass
class Ticks:
    at: float = 0.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


@dataclass
class Memory:
    kept: list[Attempt] = field(default_factory=list)

    def attempts(self) -> list[Attempt]:
        return list(self.kept)

    def add_attempt(self, attempt: Attempt) -> None:
        self.kept.append(attempt)

    def set_facts(self, run: str, facts: Any, fingerprint: str | None) -> None:
        """Nothing is asked about it here."""


def done(**data: Any) -> StepResult:
    return StepResult(StepOutcome.DONE, data=data)


def context(agent: FakeAgent, **changes: Any) -> StepContext:
    ready: dict[str, Any] = {
        "server": SERVER,
        "server_name": "one",
        "run_id": "r2",
        "session": Session(agent),
        "clock": Ticks(),
        "reporter": Quiet(),
        "memory": Memory(),
        "who": "me@here",
        "wall": lambda: 100.0,
        "results": {
            "preflight": done(launch=PLAN.to_json(), survey={"systemd": False, "uid": 0}),
            "stage": done(contents={}),
            "known-failure": done(launch=PLAN.to_json(), content=PLAN.content().to_json()),
        },
    }
    return StepContext(**{**ready, **changes})


def line(run: str, outcome: AttemptOutcome, content: Content, at: float = 1.0) -> dict[str, Any]:
    return Attempt(run, "one", at, outcome, content, "3f2a", "crashed at C=10").to_json()


def host_with(*lines: dict[str, Any]) -> FakeAgent:
    return FakeAgent({"attempts.read": {"attempts": list(lines), "damaged": 0}})


def test_a_failed_attempt_on_the_host_is_refused() -> None:
    """The ledger here is empty: the copy beside the server knows it."""
    agent = host_with(line("r1", AttemptOutcome.CRASHED, PLAN.content()))

    result = KnownFailure().run(context(agent))

    assert result.outcome is StepOutcome.REFUSED
    assert result.exit_code == 50
    assert "run r1: crashed at C=10" in result.findings[0].text
    assert "signature 3f2a" in result.findings[0].text


def test_the_order_of_the_host_s_lines_counts_and_not_the_clocks_that_stamped_them() -> None:
    """The pass came from a machine an hour ahead; the crash after it is the newer one."""
    agent = host_with(
        line("r0", AttemptOutcome.PASSED, PLAN.content(), 3600.0),
        line("r1", AttemptOutcome.CRASHED, PLAN.content(), 60.0),
    )
    assert KnownFailure().run(context(agent)).outcome is StepOutcome.REFUSED


def test_the_refusal_says_what_differs_from_the_last_pass() -> None:
    """Two sentences that an operator can act on."""
    passed = replace(PLAN.content(), package_version="0.5.8")
    agent = host_with(
        line("r0", AttemptOutcome.PASSED, passed, 0.5),
        line("r1", AttemptOutcome.CRASHED, PLAN.content()),
    )

    text = KnownFailure().run(context(agent)).findings[0].text

    assert "the last that passed (r0) differs: package sglang 0.5.8 became sglang 0.5.9" in text


def test_the_refusal_does_not_compare_with_another_model() -> None:
    """A wall of differences to something else helps nobody; that there is no good run like it does."""
    passed = replace(PLAN.content(), interpreter="/elsewhere/python", package_version="0.5.8")
    agent = host_with(
        line("r0", AttemptOutcome.PASSED, passed, 0.5),
        line("r1", AttemptOutcome.CRASHED, PLAN.content()),
    )

    text = KnownFailure().run(context(agent)).findings[0].text

    assert "no comparable run has passed (run r0 had another model or interpreter)" in text
    assert "0.5.8" not in text


def test_a_reason_repeats_it_and_is_kept() -> None:
    """--again goes on, and says why in the run."""
    agent = host_with(line("r1", AttemptOutcome.HUNG, PLAN.content()))

    result = KnownFailure(again="new cable").run(context(agent))

    assert result.is_good
    assert "again, because: new cable" in result.findings[0].text


def test_inconclusive_and_damaged_lines_block_nothing() -> None:
    """A cut run and half a line say nothing."""
    agent = host_with(line("r1", AttemptOutcome.INCONCLUSIVE, PLAN.content()), {"run": "r9"})

    result = KnownFailure().run(context(agent))

    assert result.is_good
    assert result.data["damaged_lines"] == 1


def test_a_lock_of_somebody_else_is_refused_with_who_since_when_and_why() -> None:
    """The second operator is told."""
    holder = {"who": "ann@desk", "since_s": 40.0, "reason": "driver", "run": "r7"}
    agent = FakeAgent({"lock.acquire": {"acquired": False, "name": "port-30000", "holder": holder}})

    with pytest.raises(SafetyRefusal) as caught:
        acquire(context(agent), agent, ["port-30000"], {})

    assert "ann@desk since 00:00:40 UTC (60 s) for: driver (run r7)" in caught.value.message
    assert len(agent.calls) == 1


def test_the_lock_of_our_own_former_agent_is_waited_for() -> None:
    """A resumed run meets the agent that it lost: that one finishes and lets go."""
    replies = [{"acquired": False, "name": "p", "holder": {"run": "r2"}}] * 3 + [{"acquired": True}]
    agent = FakeAgent({"lock.acquire": lambda request: replies.pop(0)})
    ctx = context(agent)

    acquire(ctx, agent, ["p"], {})

    assert replies == []
    assert ctx.clock.now() > 0


def test_a_former_agent_that_never_ends_is_refused_too() -> None:
    """The wait has an end."""
    reply = {"acquired": False, "name": "p", "holder": {"run": "r2"}}
    agent = FakeAgent({"lock.acquire": reply})

    with pytest.raises(SafetyRefusal):
        acquire(context(agent), agent, ["p"], {})


def test_a_holder_without_a_name_is_still_a_holder() -> None:
    """The lock counts, not what is written in it."""
    assert describe_holder({}, 1.0) == "another run, which has not written its name yet"


@pytest.mark.parametrize(
    ("records", "newer"),
    [
        ([], None),
        ([{"run": "r2", "asked_s": 60.0}], None),  # our own launch
        ([{"run": "r2-back", "asked_s": 60.0}], None),  # our own way back
        ([{"run": "r1", "asked_s": 40.0}], None),  # the one that we replace
        ([{"run": "r3", "asked_s": 60.0}], "r3"),
    ],
)
def test_a_launch_by_somebody_else_since_we_began_is_newer(
    records: list[dict[str, Any]], newer: str | None
) -> None:
    """A run that was frozen or cut must not stop what came after it."""
    found = overtaken_by(records, "r2", begun_s=50.0)

    assert (found or {}).get("run") == newer


def test_the_launch_notes_its_intent_before_it_asks() -> None:
    """If the reply is lost, the ledger says what was about to happen."""
    order: list[str] = []

    def start(request: dict[str, Any]) -> dict[str, Any]:
        order.append("start")
        return {"state": "running", "pid": 7, "changed": True, "via": "supervisor"}

    agent = FakeAgent({"launch.start": start, "launch.tidy": {}})
    ctx = context(agent, note=lambda code, body: order.append(code))

    result = Launch().run(ctx)

    assert order == ["launch-intent", "start"]
    assert result.outcome is StepOutcome.DONE


def test_a_launch_that_was_there_already_is_unchanged() -> None:
    """Found by the run's id: nothing was started."""
    agent = FakeAgent(
        {"launch.start": {"state": "running", "pid": 7, "changed": False}, "launch.tidy": {}}
    )

    assert Launch().run(context(agent)).outcome is StepOutcome.UNCHANGED


def test_secrets_are_resolved_for_the_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch's plan holds a word; the environment holds the value."""
    monkeypatch.setenv("REAL_TOKEN", "s3cr3t")
    server = Server(
        host="here",
        python="/v/python",
        model="/m",
        env={"TOKEN": {"env": "REAL_TOKEN"}, "A": "1"},  # type: ignore[dict-item]
    )
    plan = replace(PLAN, public_env={"TOKEN": "(secret)", "A": "1"})

    env = full_environment(context(FakeAgent(), server=server), plan)

    assert env["TOKEN"] == "s3cr3t"
    assert env["OPSCTL_RUN"] == "r2"
    assert "s3cr3t" not in str(plan.to_json())


@pytest.mark.parametrize(
    ("results", "outcome"),
    [
        ({"launch": done(), "ready": done(), "smoke": done()}, AttemptOutcome.PASSED),
        ({"launch": done(), "ready": done()}, AttemptOutcome.PASSED),
        ({"launch": done()}, AttemptOutcome.INCONCLUSIVE),
        (
            {
                "launch": done(),
                "ready": StepResult(StepOutcome.FAILED, data={"cause": "crashed"}, exit_code=60),
            },
            AttemptOutcome.CRASHED,
        ),
        (
            {
                "launch": done(),
                "ready": StepResult(StepOutcome.FAILED, data={"cause": "hung"}, exit_code=60),
            },
            AttemptOutcome.HUNG,
        ),
        (
            {
                "launch": done(),
                "ready": StepResult(StepOutcome.UNKNOWN, data={"cause": "slow"}, exit_code=60),
            },
            AttemptOutcome.INCONCLUSIVE,
        ),
        (
            {
                "launch": done(),
                "ready": StepResult(StepOutcome.FAILED, data={"cause": "stranger"}, exit_code=20),
            },
            AttemptOutcome.INCONCLUSIVE,
        ),
        (
            {
                "launch": done(),
                "ready": done(),
                "smoke": StepResult(
                    StepOutcome.FAILED, data={"cause": "wrong-answers"}, exit_code=70
                ),
            },
            AttemptOutcome.WRONG_ANSWERS,
        ),
        (
            {
                "launch": done(),
                "ready": done(),
                "smoke": StepResult(StepOutcome.UNKNOWN, exit_code=75),
            },
            AttemptOutcome.INCONCLUSIVE,
        ),
        (
            {"launch": StepResult(StepOutcome.UNKNOWN, exit_code=30)},
            AttemptOutcome.INCONCLUSIVE,
        ),
        (
            {
                "launch": done(),
                "ready": done(silent_patches=["spec-disable-v1"]),
                "smoke": done(summary="passed"),
            },
            AttemptOutcome.INCONCLUSIVE,
        ),
    ],
)
def test_only_what_the_server_did_is_conclusive(
    results: dict[str, StepResult], outcome: AttemptOutcome
) -> None:
    """Transport, client, a slow start and a stranger on the port prove nothing about the fix."""
    assert judge_outcome(results)[0] is outcome


def test_a_patch_that_the_launch_would_not_run_stops_the_restart_before_the_stop() -> None:
    """The incident's patch under the other worker passes everything, and proves nothing: refused."""
    args = {"speculative-algorithm": "EAGLE3", "speculative-disable-batch-threshold": 5}
    asked = {**SERVER.model_dump(), "args": args, "patches": ["spec-disable-v1", "own-fix"]}
    other = context(FakeAgent(), server=Server(**asked))
    env = {"SGLANG_ENABLE_SPEC_V2": "0"}
    right = context(FakeAgent(), server=Server(**{**asked, "env": env}))

    (found,) = unused_patches(other, "0.5.12.post1")

    assert (found.code, found.subject) == ("patch-not-in-play", "spec-disable-v1")
    assert "0.5.12.post1 runs the overlap worker" in found.text
    assert unused_patches(right, "0.5.12.post1") == []
    assert unused_patches(other, None) == []


def test_nothing_is_recorded_when_nothing_was_launched() -> None:
    """A refusal before the stop is no attempt."""
    ctx = context(FakeAgent())

    result = Record().run(ctx)

    assert result.outcome is StepOutcome.UNCHANGED
    assert ctx.memory is not None
    assert ctx.memory.attempts() == []


def test_an_attempt_is_kept_here_and_there_and_one_failing_does_not_keep_the_other() -> None:
    """The host's disk is full: the ledger has it, and that is said."""
    from opsctl.errors import AgentError

    lost = AgentError("gone", code="agent-lost")
    agent = FakeAgent(
        {
            "attempts.append": AgentError("no space", code="attempts"),
            "gpu.read": lost,
            "gpu.scan": lost,
        }
    )
    ctx = context(agent)
    ctx.results |= {"launch": done(), "ready": done()}

    result = Record().run(ctx)

    assert ctx.memory is not None
    assert [one.outcome for one in ctx.memory.attempts()] == [AttemptOutcome.PASSED]
    assert result.outcome is StepOutcome.FAILED
    assert result.findings[0].code == "not-recorded"


@pytest.mark.parametrize(
    ("name", "result", "failed"),
    [
        ("ready", StepResult(StepOutcome.FAILED, exit_code=60), "ready"),
        ("smoke", StepResult(StepOutcome.FAILED, exit_code=70), "smoke"),
        ("launch", StepResult(StepOutcome.FAILED, exit_code=60), "launch"),
        ("ready", StepResult(StepOutcome.UNKNOWN, exit_code=60), None),  # slow
        (
            "ready",
            StepResult(StepOutcome.FAILED, exit_code=20),
            None,
        ),  # --deadline, a stranger's port
        ("ready", StepResult(StepOutcome.FAILED, exit_code=130), None),  # Ctrl-C
        ("ready", StepResult(StepOutcome.FAILED, exit_code=30), None),  # the way broke
        ("smoke", StepResult(StepOutcome.UNKNOWN, exit_code=75), None),
        ("ready", StepResult(StepOutcome.DONE), None),
    ],
)
def test_only_a_proven_failure_is_settled(
    name: str, result: StepResult, failed: str | None
) -> None:
    """A cut way, a deadline, an interruption or a slow start stops nothing."""
    ctx = context(FakeAgent())
    ctx.results |= {"launch": done(), name: result}

    assert failed_step(ctx) == failed


def test_the_way_back_is_the_old_attempt_as_it_was() -> None:
    """Arguments, environment, patches and files are those that passed; run, log and unit are its own."""
    old = replace(
        PLAN.content(),
        arguments=("-m", "sglang.launch_server", "--tp", "4", 'speculation.json:{"1": 1}'),
        patches={"p": "aa"},
        environment={"B": "2"},
    )
    now = replace(PLAN, files={"speculation.json": '{"9": 9}'})
    ctx = context(FakeAgent())
    ctx.results["known-failure"] = done(launch=now.to_json())

    plan = planned_back(ctx, Attempt("r1", "one", 1.0, AttemptOutcome.PASSED, old))

    assert plan.run == "r2-back"
    assert plan.argv == ("/v/python", "-m", "sglang.launch_server", "--tp", "4")
    assert plan.files == {"speculation.json": '{"1": 1}'}
    assert plan.public_env == {"B": "2"}
    assert plan.patches == {"p": "aa"}
    assert plan.log.endswith("one-r2-back.log")


def ended(system: str | None) -> FakeAgent:
    """A host where the launched server is gone, and what its systemd says of itself."""
    return FakeAgent(
        {
            "launch.find": {"state": "exited", "exit": {"signal": 15}, "pid": 7},
            "log_read.since": {"offset": 0, "text": ""},
            "log_read.tail": {"text": ""},
            "units.system_state": {"state": system},
        }
    )


def test_an_end_that_came_with_a_shutdown_is_no_crash() -> None:
    """The container was shut down from outside: the run is cut, and nothing is learned about the server."""
    with pytest.raises(TransportError, match="is being shut down") as caught:
        Ready().run(context(ended("stopping")))

    assert caught.value.code == "going-down"
    assert "opsctl resume r2" in str(caught.value.next_step)


@pytest.mark.parametrize("system", ["running", "degraded", "offline", None])
def test_an_end_in_a_system_that_stays_up_is_a_crash(system: str | None) -> None:
    """Also where systemd is not pid 1 ("offline"), or not there at all."""
    result = Ready().run(context(ended(system)))

    assert (result.outcome, result.exit_code) == (StepOutcome.FAILED, 60)
    assert result.findings[0].code == "start-crashed"


def test_a_launch_that_a_shutdown_refused_is_no_failure_of_it() -> None:
    """systemd takes no unit while it goes down."""
    agent = ended("stopping")
    agent.operations["launch.start"] = {"state": "failed-to-start", "exit": {"error": "refused"}}

    with pytest.raises(TransportError, match="is being shut down"):
        Launch().run(context(agent))


def test_a_system_that_stays_up_is_let_pass() -> None:
    """The question alone changes nothing."""
    refuse_going_down(context(ended("running")))


@pytest.mark.parametrize(
    ("holder", "is_ours"),
    [
        ({"argv": ["python3", "-m", "sglang.launch_server", "--port", "8000"]}, True),
        (
            {"argv": ["glm5", "-m", "sglang.launch_server", "--port", "8000"], "exe": "/v/python3"},
            True,
        ),
        (
            {"argv": ["glm5", "-m", "sglang.launch_server", "--port", "8000"], "exe": "/bin/cat"},
            False,
        ),
        ({"argv": ["python3", "-c", "spawn_main()"], "parents": [40, 7]}, True),
        ({"argv": ["python3", "-c", "spawn_main()"], "parents": [40, 8]}, False),
        ({"argv": ["python3", "-m", "http.server", "8000"]}, False),
    ],
)
def test_what_stands_on_the_port_is_ours_or_a_stranger(
    holder: dict[str, Any], is_ours: bool
) -> None:
    """By its line, also under another name; or as a worker of the launch that is recorded (uvicorn's)."""
    server = Server(host="h", port=8000, python="/v/python3", model="m")
    look_data = done(running=[{"pid": 7, "start_ticks": 1, "state": "running"}])
    ctx = context(FakeAgent({}), server=server, results={"look": look_data})
    holders = [{"pid": 50, "start_ticks": 5, "exe": "/v/python3", **holder}]

    assert own_holders(ctx, holders) == (frozenset({50}) if is_ours else frozenset())


def test_a_survey_is_kept_without_the_secrets_of_a_command_line() -> None:
    """A server that was started by hand with its key stands on the port: the ledger gets its line masked."""
    argv = ["python3", "-m", "sglang.launch_server", "--api-key", "sk-1"]
    surveyed = {"port": {"holders": [{"pid": 7, "start_ticks": 1, "argv": argv}]}, "uid": 0}

    kept = result_of(Verdict((), (), ()), PLAN, surveyed).data["survey"]

    assert kept["port"]["holders"] == [{"pid": 7, "start_ticks": 1, "argv": [*argv[:4], "***"]}]
    assert surveyed["port"]["holders"][0]["argv"] == argv


def test_a_preflight_says_when_the_parser_was_asked() -> None:
    """Its answer may be of an earlier run; then nothing that it reads has changed."""
    asked = [
        result_of(Verdict((), (), ()), PLAN, {}, kept_since_s=since_s).data["summary"]
        for since_s in (None, 1_795_996_044.0)
    ]
    assert [", flags accepted, port" in summary for summary in asked] == [True, False]
    assert "flags accepted (asked 2026-11-29 23:47:24 UTC; nothing that" in asked[1]


@pytest.mark.parametrize("skew_s", [-3600.0, 0.0, 3600.0])
@pytest.mark.parametrize(("asked_s", "overtaken"), [(85.0, False), (95.0, True)])
def test_the_host_s_clock_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, skew_s: float, asked_s: float, overtaken: bool
) -> None:
    """A launch of before this run began is none of after it, however far the host's clock is off."""
    monkeypatch.setattr(look, "read_host", lambda _: replace(HOST, clock_s=100.0 + skew_s))
    monkeypatch.setattr(look, "gpu_facts", lambda _: [])
    other = {"run": "r1", "state": "exited", "pid": 7, "asked_s": asked_s + skew_s}
    agent = FakeAgent({"launch.find": {"state": "absent"}, "launch.records": {"records": [other]}})
    ctx = context(agent, begun_s=90.0)

    if overtaken:
        with pytest.raises(SafetyRefusal) as caught:
            look.Look().run(ctx)
        assert caught.value.code == "overtaken"
    else:
        assert look.Look().run(ctx).is_good


def test_a_launch_that_went_with_its_machine_is_not_behind_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Started anew since: the stop, the patches and the launch are all still to be looked at."""
    monkeypatch.setattr(look, "read_host", lambda _: HOST)
    monkeypatch.setattr(look, "gpu_facts", lambda _: [])
    gone = {"state": "exited", "rebooted": True, "exit": {"reason": "the machine was rebooted"}}
    agent = FakeAgent({"launch.find": gone, "launch.records": {"records": []}})

    result = look.Look().run(context(agent))

    assert result.data["launched"] is None
    assert "started anew" in result.data["summary"]
