"""Wait until the server is proven ready: workers by identity, health, and one real generation in time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from opsctl.agent.read import read_processes
from opsctl.domain.counted import counted
from opsctl.domain.launch import LaunchPlan
from opsctl.domain.process import shorten
from opsctl.domain.ready import (
    Answer,
    Limits,
    StartProgress,
    StartState,
    Workers,
    find_workers,
    judge_generation,
    judge_start,
)
from opsctl.errors import AgentError, Interrupted
from opsctl.output import Finding
from opsctl.patch_library import load_library
from opsctl.records import dataclass
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult
from opsctl.steps.failure import diagnose_log, refuse_going_down
from opsctl.steps.launch import planned

POLL_S = 0.1
TRY_EVERY_S = 1.0
HEALTH_TRIES = 5
HEALTH_TIMEOUT_S = 5.0
HEALTH_REST_S = 2 * HEALTH_TIMEOUT_S
PROMPT = "The capital of France is"
PROMPT_IDS = [3, 5, 7, 11]
NEW_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Ready:
    """Follow the start in the log, then ask one real question."""

    name = "ready"
    effect = Effect.READ
    half_done = "the server goes on starting; `opsctl resume` waits for it again"

    def describe(self) -> str:
        return "wait for workers, health and one real answer"

    def preview(self, ctx: StepContext) -> list[str]:
        ready = ctx.server.ready
        return [
            f"ready within {ready.timeout_s:.0f} s, with one real answer within {ready.generation_s:.0f} s"
        ]

    def run(self, ctx: StepContext) -> StepResult:
        return _Wait(ctx).run()


def awaited_lines(ctx: StepContext) -> dict[str, list[re.Pattern[str]]]:
    """Return, for each patch that stands in the package, the log lines of which one shows it in play."""
    recorded = ctx.data_of("known-failure").get("content") or {}
    standing = recorded.get("patches") or ctx.data_of("stage").get("contents") or {}
    if not standing:
        return {}
    library = load_library(ctx.patch_folder)
    lines = {
        one: [re.compile(v.proof.log, re.MULTILINE) for v in library[one].variants if v.proof.log]
        for one in standing
        if one in library
    }
    return {one: found for one, found in lines.items() if found}


def _silent(patch: str, lines: Sequence[re.Pattern[str]]) -> Finding:
    text = f"it is in the package, but its line '{lines[0].pattern}' is not in the server's log: not in play"
    return Finding("patch-silent", patch, text, "see what it needs: opsctl patch list")


class _Wait:
    """One wait: reads the log by offset, looks at the launch, probes one thing at a time."""

    def __init__(self, ctx: StepContext) -> None:
        self.ctx = ctx
        self.plan: LaunchPlan = planned(ctx)
        self.launch = ctx.data_of("launch")
        begun = float(self.launch.get("exec_at") or ctx.clock.now())
        self.progress = StartProgress(min(begun, ctx.clock.now()))
        self.limits = Limits(ctx.server.ready.timeout_s, ctx.server.ready.stall_s)
        self.offset = 0
        self.next_try = 0.0
        self.healthy = False
        self.tried_when_ready = False
        self.port_checked = False
        self.awaited = awaited_lines(ctx)

    def run(self) -> StepResult:
        ctx = self.ctx
        while True:
            self.read_log()
            found = self.find()
            now = ctx.clock.now()
            stranger = self.stranger(found)
            state, words = judge_start(found, self.progress, now, self.limits, stranger)
            if state is not StartState.WAITING:
                self.read_log()
                return self.failed(state, words)
            if ctx.cancelled.is_set():
                raise Interrupted("interrupted while the server was starting; it goes on starting")
            ctx.deadline.left(now, 1.0)
            ctx.reporter.progress(words)
            if self.is_time(now) and (result := self.prove(found)) is not None:
                return result
            ctx.clock.sleep(POLL_S)

    def read_log(self) -> None:
        """Take what is new in the log; a log that is not there yet is no error."""
        request = {"path": self.plan.log, "offset": self.offset}
        try:
            reply = self.ctx.session.agent.call("log_read.since", request, timeout_s=10.0)
        except AgentError as error:
            if error.code != "log":
                raise
            return
        self.offset = reply["offset"]
        self.awaited = {
            one: lines
            for one, lines in self.awaited.items()
            if not any(line.search(reply["text"]) for line in lines)
        }
        self.progress.feed(reply["text"].splitlines(), self.ctx.clock.now())

    def find(self) -> dict[str, Any]:
        request = {"state_dir": self.ctx.server.state_dir, "run": self.ctx.run_id}
        return self.ctx.session.agent.call("launch.find", request, timeout_s=20.0)

    def stranger(self, found: Mapping[str, Any]) -> str | None:
        """Look once, when the server says that it listens, whether it is the one that holds the port.

        A child that was forked a moment ago holds the same socket: what counts is that one of ours does.
        """
        if self.port_checked or not self.progress.says_it_listens or found["state"] != "running":
            return None
        self.port_checked = True
        request = {"port": self.plan.port}
        port = self.ctx.session.agent.call("preflight.port", request, timeout_s=10.0)
        pids = {process.pid for process in self.workers(found).members}
        holders = port["holders"]
        if not holders or any(one["pid"] in pids for one in holders):
            return None
        argv = shorten(holders[0]["argv"], 120)
        return f"port {self.plan.port} is answered by pid {holders[0]['pid']} ({argv}), not by this server"

    def is_time(self, now: float) -> bool:
        """Say whether a proof may be tried: as it says that it is ready, else once a second if healthy.

        One probe is in flight at a time; in many versions a health probe generates a token itself.
        """
        if not self.progress.says_it_listens and self.plan.package is not None:
            return False
        says_ready = self.progress.ready_line_at is not None
        if now < self.next_try and (self.tried_when_ready or not says_ready):
            return False
        self.next_try = now + TRY_EVERY_S
        self.tried_when_ready = says_ready
        return says_ready or self.health() is None

    def health(self) -> str | None:
        """Return what is wrong with the health endpoint, None when nothing is."""
        if self.healthy:
            return None
        reply = self.ask("GET", "/health", None, HEALTH_TIMEOUT_S)
        if reply["status"] is None and reply["seconds"] >= HEALTH_TIMEOUT_S * 0.9:
            # it may go on over there as load (sglang#35884): let it end before the next
            self.next_try = self.ctx.clock.now() + HEALTH_REST_S
        absent = (
            reply["status"] == 404 and self.plan.package is None
        )  # any other server may have none
        self.healthy = bool(reply["status"] == 200 or absent)
        return None if self.healthy else str(reply["error"] or f"status {reply['status']}")

    def prove(self, found: Mapping[str, Any]) -> StepResult | None:
        """Check the workers, ask one real question, ask for its health; None when it is too early.

        The question comes first: SGLang's own health endpoint takes a second (0.5.12), and it is the answer
        that ends the downtime.
        """
        workers = self.workers(found)
        if workers.missing:
            return None if self.progress.ready_line_at is None else self.incomplete(workers)
        answer = self.generate()
        answered_at = self.ctx.clock.now()
        if answer is not None and answer.problem is not None:
            if answer.not_understood:
                return self.not_proven(
                    f"healthy, but our question does not fit it: {answer.problem}"
                )
            if self.progress.ready_line_at is None:
                return None  # warming up: a later question counts
            return self.failed(StartState.HUNG, f"it says that it is ready, but {answer.problem}")
        problem = None
        for _ in range(HEALTH_TRIES):  # 503 may only mean busy (sglang#22511)
            problem = self.health()
            if problem is None:
                return self.done(workers, answer, answered_at)
            self.ctx.clock.sleep(1.0)
        return self.not_proven(f"it answers, and its health endpoint says: {problem}")

    def incomplete(self, workers: Workers) -> StepResult:
        missing = " and ".join(workers.missing)
        return self.failed(StartState.CRASHED, f"it says that it is ready, without {missing}")

    def not_proven(self, text: str) -> StepResult:
        finding = Finding("not-proven", self.ctx.server_name, text, "ask it by hand")
        return StepResult(StepOutcome.UNKNOWN, findings=(finding,), data=self.facts(), exit_code=21)

    def workers(self, found: Mapping[str, Any]) -> Workers:
        processes = read_processes(self.ctx.session.agent)
        return find_workers(processes, int(found["pid"]), self.plan.argv)

    def generate(self) -> Answer | None:
        """Ask for a few tokens; None for a server without a generation endpoint that we know."""
        limit = self.ctx.server.ready.generation_s
        if self.plan.package is not None:
            body: dict[str, Any] = {
                "sampling_params": {"max_new_tokens": NEW_TOKENS, "temperature": 0}
            }
            if "--skip-tokenizer-init" in self.plan.argv:
                body["input_ids"] = PROMPT_IDS
            else:
                body["text"] = PROMPT
            return judge_generation(self.ask("POST", "/generate", body, limit))
        models = self.ask("GET", "/v1/models", None, HEALTH_TIMEOUT_S)
        known = ((models["json"] or {}).get("data") or []) if models["status"] == 200 else []
        if not known:
            return None
        body = {
            "model": known[0]["id"],
            "prompt": PROMPT,
            "max_tokens": NEW_TOKENS,
            "temperature": 0,
        }
        return judge_generation(self.ask("POST", "/v1/completions", body, limit))

    def ask(
        self, method: str, path: str, body: dict[str, Any] | None, limit: float
    ) -> dict[str, Any]:
        key = self.ctx.server.api_key
        headers = {"Authorization": f"Bearer {key.resolve()}"} if key is not None else {}
        request = {
            "address": self.plan.address,
            "port": self.plan.port,
            "method": method,
            "path": path,
            "headers": headers,
            "body": body,
            "timeout_s": limit,
        }
        return self.ctx.session.agent.call("probe.request", request, timeout_s=limit + 5.0)

    def done(self, workers: Workers, answer: Answer | None, now: float) -> StepResult:
        self.read_log()
        data = self.facts() | {
            "ready_at": now,
            # without the line it was proven before it said so itself
            "ready_line_at": min(self.progress.ready_line_at or now, now),
            "seconds": round(now - self.progress.begun_at, 3),
            "workers": [asdict(member) for member in workers.members],
            "titles": list(workers.titles),
            "generation": asdict(answer) if answer else None,
        }
        words = "its port and its process; no generation endpoint is known for it"
        if answer is not None:
            said = f"{answer.tokens} tokens" if answer.tokens else repr(answer.text[:40])
            processes = counted(len(workers.members), "process", "processes")
            words = f"{processes}, one real answer ({said} in {answer.seconds:.2f} s)"
        data["summary"] = f"ready after {data['seconds']:.1f} s: {words}"
        self.remember(workers)
        data["silent_patches"] = sorted(self.awaited)
        findings = tuple(_silent(one, lines) for one, lines in self.awaited.items())
        return StepResult(StepOutcome.DONE, findings=findings, data=data)

    def remember(self, workers: Workers) -> None:
        """Leave the members' identities beside the launch record: the next stop knows them by it."""
        members = [asdict(member) for member in workers.members]
        request = {
            "state_dir": self.ctx.server.state_dir,
            "run": self.ctx.run_id,
            "members": members,
        }
        self.ctx.session.agent.call("launch.remember", request, timeout_s=10.0)

    def failed(self, state: StartState, words: str) -> StepResult:
        """Name the failure, with the log's first abnormal record and a verdict where there is one."""
        if state in (StartState.CRASHED, StartState.HUNG):
            refuse_going_down(self.ctx)
        data = self.facts() | {"cause": state.value}
        next_step = f"read the log: opsctl logs {self.ctx.server_name} --run {self.ctx.run_id}"
        if state in (StartState.CRASHED, StartState.HUNG):
            diagnosis = diagnose_log(self.ctx, self.plan.log, hung=state is StartState.HUNG)
            data["diagnosis"] = diagnosis
            if diagnosis and diagnosis.get("category"):
                words = f"{words}; {diagnosis['category']}: {diagnosis['explanation']}"
                next_step = "; ".join(diagnosis.get("next") or ()) or next_step
        finding = Finding(
            f"start-{state.value}", self.ctx.server_name, f"{state.value}: {words}", next_step
        )
        code = 20 if state is StartState.STRANGER else 60
        outcome = StepOutcome.UNKNOWN if state is StartState.SLOW else StepOutcome.FAILED
        return StepResult(outcome, findings=(finding,), data=data, exit_code=code)

    def facts(self) -> dict[str, Any]:
        progress = self.progress
        return {
            "stages": [{"stage": stage, "at_s": at_s} for stage, at_s in progress.stages],
            "last_line": progress.last_line,
            "ready_line_at": progress.ready_line_at,
            "begun_at": progress.begun_at,
        }
