"""One smoke run: look, warm up, climb level by level, judge each, stop at the first bad one."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opsctl.domain.report import LevelReport, Outcome
from opsctl.errors import SafetyRefusal, UsageError
from opsctl.sglang.info import (
    ROUTES,
    ServerInfo,
    read_info,
    read_metrics,
    read_running,
    wrong_key,
)
from opsctl.smoke.diagnosis import diagnose_level, name_cause
from opsctl.smoke.findings import add_findings, batches_of, metrics_change
from opsctl.smoke.judge import Book
from opsctl.smoke.levels import PROFILES, Profile, derive_levels, way_down
from opsctl.smoke.load import Job, Level, Limits, RawLevel, Sign, raise_descriptor_limit
from opsctl.smoke.measure import Request, measure, read_request
from opsctl.smoke.prompts import Prompt, PromptMaker, make_prompts, request_body
from opsctl.smoke.result import Options, SmokeReport
from opsctl.smoke.watch import Verdict, Watch, confirm, is_listening

if TYPE_CHECKING:
    from opsctl.smoke.host_load import HostLevel, HostLoad

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
LIVE_READINGS = 2
LIVE_GAP_S = 0.1
NAME_WAIT_S = 0.5
PORT_DEATH_S = 3.0  # SGLang takes 0.7 s from the end of a scheduler to that of its port
MIXED = ("short", "long", "prefix", "plain")
ABORT_AFTER_CHUNKS = 3

OnEvent = Callable[[str, dict[str, Any]], None]


def run_smoke(
    options: Options,
    *,
    watch: Watch | None = None,
    on_event: OnEvent | None = None,
    load: HostLoad | None = None,
) -> SmokeReport:
    """Run one smoke test and return what was found; Ctrl-C ends it with what was measured so far.

    Args:
        options: what to send, and how it is judged.
        watch: eyes on the server's processes and log.
        on_event: told of each step.
        load: the load generator on the server's host; None sends from here.

    Raises:
        TransportError: the server could not be asked anything.
        UsageError: a wrong key, model or size.
        SafetyRefusal: the server answers others' requests.
    """
    import uvloop

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS} if main else {}
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Smoke(options, watch=watch, on_event=on_event, load=load).run())
    finally:
        for number, handler in before.items():  # a run of a playbook has handlers of its own
            signal.signal(number, handler)


def plan_smoke(options: Options) -> SmokeReport:
    """Return a report without a level: what a run would do, from real reads."""
    return asyncio.run(Smoke(options).look())


class Smoke:
    """The sequence of one run."""

    def __init__(
        self,
        options: Options,
        *,
        watch: Watch | None = None,
        on_event: OnEvent | None = None,
        load: HostLoad | None = None,
    ) -> None:
        self.options = options
        self.profile: Profile = PROFILES[options.profile]
        self.tokens = options.tokens or self.profile.tokens
        self._watch = watch
        self._on_event = on_event or (lambda kind, payload: None)
        self._load = load
        self._level: Level | HostLevel | None = None
        self._interrupted = asyncio.Event()
        self._process_sign: Sign | None = None
        self._idle_sign: Sign | None = None  # what came while no level ran
        self._book = Book(options.drift)

    async def run(self) -> SmokeReport:
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        self._catch_signals(loop)
        report = await self.look()
        if self._watch is not None:
            self._watch.start(lambda sign: _hand_over(loop, self._take_sign, sign))
        try:
            await self._climb(report)
            if self._watch is not None and any(
                level.outcome in (Outcome.CRASHED, Outcome.HUNG) for level in report.all_levels
            ):
                self._on_event("evidence", {})
                report.evidence = await asyncio.to_thread(self._watch.evidence)
            await self._look_at_the_port(report)
        finally:
            if self._watch is not None:
                self._watch.stop()
        report.interrupted = self._interrupted.is_set()
        report.answers = dict(self._book.answers)
        report.seconds = time.monotonic() - started
        add_findings(report, self._book)
        return report

    async def look(self) -> SmokeReport:
        """Read what the server says of itself and decide the levels; nothing is generated."""
        info = await read_info(self.options.endpoint, self.options.api, self.options.model)
        report = SmokeReport(self.options, info)
        report.load = {"from": "here"} if self._load is None else self._load.describe()
        await self._refuse_live(info)
        self._prepare(report)
        return report

    def interrupt(self) -> None:
        """Stop as soon as the streams in hand have ended."""
        self._interrupted.set()
        if self._level is not None:
            self._level.interrupt()

    def _catch_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                loop.add_signal_handler(number, self.interrupt)

    def _take_sign(self, sign: Sign) -> None:
        if self._process_sign is None and sign.source == "process":
            self._process_sign = sign
        if self._level is not None:
            self._level.trouble(sign)
        elif self._idle_sign is None:
            self._idle_sign = sign

    async def _refuse_live(self, info: ServerInfo) -> None:
        if self.options.allow_live:
            return
        for reading in range(LIVE_READINGS):
            if reading:
                await asyncio.sleep(LIVE_GAP_S)
            running = await read_running(self.options.endpoint, info)
            if not running:
                return
        raise SafetyRefusal(
            f"the server is answering {running} other request{'s' if running != 1 else ''} now; "
            "a smoke test would load, and could crash, a server in use",
            next_step="drain it first, or give --allow-live",
            code="live-server",
            subject=self.options.endpoint.url,
        )

    def _prepare(self, report: SmokeReport) -> None:
        options, info = self.options, report.info
        self._prompts: PromptMaker = make_prompts(
            info,
            seed=options.seed,
            kind=options.prompt_kind,
            prompt_tokens=options.prompt_tokens,
            tokens=self.tokens,
            own=options.own_prompts,
        )
        report.wanted = options.levels or derive_levels(info, self.profile, options.threshold)
        self._descriptors = raise_descriptor_limit(max(report.wanted))
        self._book.dummy_weights = info.dummy_weights
        if options.reference is not None:
            self._book.answers = dict(options.reference)
            self._book.foreign = True
        self._on_event("start", {"info": info, "levels": report.wanted, "tokens": self.tokens})

    async def _climb(self, report: SmokeReport) -> None:
        failed = await self._warm_up(report)
        if failed is not None:
            report.levels.append(failed)
            return
        for concurrency in report.wanted:
            if self._interrupted.is_set():
                return
            level = await self._drive(report, concurrency, "up")
            report.levels.append(level)
            if self._ends_climb(level):
                return
        if self.profile.mixed if self.options.mixed is None else self.options.mixed:
            report.mixed = await self._drive(report, report.wanted[-1], "mixed")
            if report.mixed.outcome is not Outcome.PASSED:
                return
        if self.profile.down if self.options.down is None else self.options.down:
            for concurrency in way_down(report.wanted):
                if self._interrupted.is_set():
                    return
                report.down.append(await self._drive(report, concurrency, "down"))
                if self._ends_climb(report.down[-1]):
                    return

    def _ends_climb(self, level: LevelReport) -> bool:
        if self._interrupted.is_set() or level.outcome in (Outcome.CRASHED, Outcome.HUNG):
            return True
        if level.outcome is Outcome.FAILED:
            return not self.options.go_on
        return level.outcome is Outcome.NOT_MEASURED and "late by" not in level.reason

    async def _warm_up(self, report: SmokeReport) -> LevelReport | None:
        """Send a few requests one by one; return a level only when they failed."""
        begun = time.monotonic()
        prompts = [self._prompts.pool(0), self._prompts.pool(0)]
        if report.wanted[0] > 1:
            prompts += [self._prompts.pool(index) for index in (1, 2, 3)]
        jobs = [self._job(report.info, prompt) for prompt in prompts]
        startup = self.options.startup_s
        raw = await self._run_level("warmup", 1, jobs, report, Limits(startup, startup))
        level, requests = self._measure(raw, report)
        level.concurrency = report.wanted[0]
        level.phase = "warm-up"
        self._raise_bad_request(report.info, requests)
        if not self._book.foreign:
            self._book.check_repeat(requests)
            self._book.learn(requests)
        self._book.judge(level, requests)
        self._book.loops_first = None
        report.warmup_s = time.monotonic() - begun
        await self._confirm(level, raw, report)
        if self._interrupted.is_set():
            return None
        return None if level.outcome is Outcome.PASSED or not _is_final(level) else level

    def _raise_bad_request(self, info: ServerInfo, requests: list[Request]) -> None:
        for request in requests:
            if request.failure == "wrong-key":
                raise wrong_key(self.options.endpoint, request.status)
            if request.failure == "not-found":
                raise UsageError(
                    f"the server does not know {ROUTES[info.api]} or the model "
                    f"'{info.model or 'default'}': {request.detail}",
                    next_step="name the model with --model, or the API with --api",
                    code="not-found",
                    subject=self.options.endpoint.url,
                )

    async def _drive(self, report: SmokeReport, concurrency: int, phase: str) -> LevelReport:
        """Run one level with its idle time, and judge it."""
        if self._load is None and self._descriptors < concurrency + 16:
            return LevelReport(
                concurrency,
                Outcome.NOT_MEASURED,
                f"this machine allows {self._descriptors} open files and the level needs "
                f"{concurrency + 16}; raise the hard limit (ulimit -Hn)",
                phase,
                self.profile.name,
            )
        count = self.profile.requests(concurrency, self.options.requests)
        name = f"{phase}{concurrency}"
        self._on_event("level", {"concurrency": concurrency, "phase": phase, "requests": count})
        before = await read_metrics(self.options.endpoint) if self._reads_metrics(report) else None

        def make_job(index: int) -> Job:
            return self._job(report.info, self._prompt(report.info, phase, name, index))

        if self._watch is not None:
            await asyncio.to_thread(self._watch.level_log)
        limits = Limits(self.options.stall_s, max(self.options.startup_s, self.options.stall_s))
        raw = await self._run_level(name, concurrency, (count, make_job), report, limits)
        level, requests = self._measure(raw, report)
        level.phase = phase
        level.profile = self.profile.name
        self._book.judge(level, requests)
        if level.outcome is Outcome.PASSED and not self._book.foreign:
            self._book.learn(requests)
        await self._confirm(level, raw, report)
        if level.outcome in (Outcome.PASSED, Outcome.FAILED):
            await self._stay_idle(level, raw, report)
        if before is not None and level.outcome not in (Outcome.CRASHED, Outcome.HUNG):
            level.server = metrics_change(before, await read_metrics(self.options.endpoint))
        if self._watch is not None:
            log = await asyncio.to_thread(self._watch.level_log)
            level.server |= batches_of(log)
            if level.outcome in (Outcome.CRASHED, Outcome.HUNG) and log.strip():
                name_cause(level, diagnose_level(level, report.info, log, self.options.threshold))
        self._on_event("level-end", {"level": level, "requests": requests})
        return level

    def _reads_metrics(self, report: SmokeReport) -> bool:
        known = report.info.kind != "unknown" or report.info.metrics
        return known and not report.info.stalls

    def _prompt(self, info: ServerInfo, phase: str, name: str, index: int) -> Prompt:
        shapes = self.options.shapes
        if phase == "mixed" and not shapes:
            shapes = (*MIXED, "constrained") if info.grammar else MIXED
        if shapes:
            shape = shapes[index % len(shapes)]
            if shape != "plain":
                return self._prompts.shaped(shape, name, index)
        every = self.profile.check_every
        if index % every == 0:
            return self._prompts.pool(index // every % self.profile.pool)
        return self._prompts.fresh(name, index)

    def _job(self, info: ServerInfo, prompt: Prompt) -> Job:
        body = request_body(info, prompt, self.tokens)
        request = self.options.endpoint.request("POST", ROUTES[info.api], body)
        abort = ABORT_AFTER_CHUNKS if prompt.shape == "abort" else 0
        return Job(prompt, request, self.tokens, abort)

    async def _run_level(
        self,
        name: str,
        concurrency: int,
        jobs: list[Job] | tuple[int, Callable[[int], Job]],
        report: SmokeReport,
        limits: Limits,
    ) -> RawLevel:
        count, make = (len(jobs), jobs.__getitem__) if isinstance(jobs, list) else jobs
        least_s = 0.0 if name == "warmup" else self.options.seconds
        if self._load is not None:
            self._level = self._load.level(
                name,
                concurrency,
                count,
                make,
                limits=limits,
                min_seconds=least_s,
                on_tick=lambda raw, told: self._on_event("tick", {"raw": raw, "progress": told}),
            )
        else:
            self._level = Level(
                self.options.endpoint,
                name,
                concurrency,
                count,
                make,
                api=report.info.api,
                limits=limits,
                min_seconds=least_s,
                on_tick=lambda raw: self._on_event("tick", {"raw": raw}),
            )
        if self._process_sign is not None:
            self._level.trouble(self._process_sign)
        if self._interrupted.is_set():
            self._level.interrupt()
        try:
            return await self._level.run()
        finally:
            self._level = None

    def _measure(self, raw: RawLevel, report: SmokeReport) -> tuple[LevelReport, list[Request]]:
        requests = [read_request(e, report.info.api) for e in raw.exchanges if e.ended]
        return measure(raw, requests, dict(self.options.slo)), requests

    async def _confirm(self, level: LevelReport, raw: RawLevel, report: SmokeReport) -> None:
        """Give a sign of death its meaning; a level full of errors is looked at the same way."""
        sign = raw.sign
        if sign is None and level.outcome is Outcome.FAILED and level.ok == 0:
            sign = Sign("http", raw.ended_s, level.reason)
        if sign is None:
            return
        verdict = await self._look_closer(level, raw, report, sign)
        if raw.sign is None and verdict.outcome is Outcome.FAILED:
            return  # the level's own words are better
        level.outcome, level.reason = verdict.outcome, verdict.reason

    async def _look_closer(
        self, level: LevelReport, raw: RawLevel, report: SmokeReport, sign: Sign
    ) -> Verdict:
        """Return what a sign means, and keep it with its level."""
        self._on_event("confirm", {"sign": sign})
        seen_s = time.monotonic()
        probe = self._job(report.info, self._prompts.pool(0)).request
        verdict = await confirm(
            self.options.endpoint,
            report.info.api,
            probe,
            sign,
            lambda: self._process_sign,
        )
        verdict = await self._name_the_dead(sign, verdict)
        level.sign = {
            "source": sign.source,
            "detail": sign.detail,
            "at_s": round(sign.at_s - raw.started_s, 3),
            "monotonic_s": round(sign.at_s, 6),
            "done_before": sum(1 for e in raw.exchanges if e.ended and e.end_s < sign.at_s - 1e-3),
            "in_flight": sum(
                1 for e in raw.exchanges if e.sent_s <= sign.at_s and e.end_s >= sign.at_s - 1e-3
            ),
            "confirmed_by": verdict.confirmed_by,
            "confirmed_after_s": round(time.monotonic() - seen_s, 3),
        }
        return verdict

    async def _name_the_dead(self, sign: Sign, verdict: Verdict) -> Verdict:
        """Wait a moment for the process watch: a name and a signal say more than a closed port."""
        if self._watch is None or verdict.outcome is not Outcome.CRASHED:
            return verdict
        until = time.monotonic() + NAME_WAIT_S
        while self._process_sign is None and time.monotonic() < until:
            await asyncio.sleep(0.02)
        dead = self._process_sign
        if dead is None or dead.detail in verdict.reason:
            return verdict
        first = "" if sign.source == "process" else f"; {sign.detail}"
        return Verdict(verdict.outcome, f"{dead.detail}{first}", "process")

    async def _look_at_the_port(self, report: SmokeReport) -> None:
        """Say of a dead server whether its port outlived it: a main process may take a moment to follow."""
        for level in report.all_levels:
            if level.sign is None or level.outcome is not Outcome.CRASHED:
                continue
            until = time.monotonic() + PORT_DEATH_S
            while (alive := await is_listening(self.options.endpoint)) and time.monotonic() < until:
                await asyncio.sleep(0.1)
            level.sign["port_alive"] = alive

    async def _stay_idle(self, level: LevelReport, raw: RawLevel, report: SmokeReport) -> None:
        """Watch the server become idle: pools are checked then, and some servers die of it."""
        idle_s = self.profile.idle_s if self.options.idle_s is None else self.options.idle_s
        until = time.monotonic() + idle_s
        while time.monotonic() < until and not self._interrupted.is_set():
            if self._process_sign is not None or self._idle_sign is not None:
                break
            await asyncio.sleep(min(0.05, idle_s))
        sign = self._idle_sign or self._process_sign
        self._idle_sign = None
        if sign is None and not await is_listening(self.options.endpoint):
            sign = Sign("port", time.monotonic(), "connection refused")
        if sign is None:
            return
        verdict = await self._look_closer(level, raw, report, sign)
        level.outcome = verdict.outcome
        level.reason = f"after the load, while idle: {verdict.reason}"


def _hand_over(loop: asyncio.AbstractEventLoop, take: Callable[[Sign], None], sign: Sign) -> None:
    loop.call_soon_threadsafe(take, sign)


def _is_final(level: LevelReport) -> bool:
    """A slow client during the warm-up proves nothing; anything else ends the run."""
    return not (level.outcome is Outcome.NOT_MEASURED and "late by" in level.reason)


__all__ = ["Options", "Smoke", "SmokeReport", "plan_smoke", "run_smoke"]
