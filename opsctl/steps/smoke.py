"""Quick smoke of the server that was just launched: its levels, with eyes on its processes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from opsctl.errors import SmokeFailed
from opsctl.output import Finding
from opsctl.records import dataclass
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult
from opsctl.steps.failure import refuse_going_down

if TYPE_CHECKING:
    from opsctl.session import ServerSession
    from opsctl.sglang.endpoint import Endpoint
    from opsctl.smoke.agent_watch import AgentWatch
    from opsctl.smoke.run import Options, SmokeReport

logger = logging.getLogger(__name__)

CAUSES = {"crashed": "crashed", "hung": "hung", "failed": "wrong-answers"}


@dataclass(frozen=True, slots=True)
class QuickSmoke:
    """Climb the server's own levels; a crash, a hang or a wrong answer fails the run."""

    name = "smoke"
    effect = Effect.READ
    half_done = "requests were cut; the server runs on"

    def describe(self) -> str:
        return "quick smoke at the server's levels"

    def preview(self, ctx: StepContext) -> list[str]:
        levels = ", ".join(str(level) for level in ctx.server.smoke.levels)
        sender = {"host": ", sent by the server's host", "tunnel": ", through its transport"}
        way = sender.get(ctx.server.smoke.from_ or "", "")
        tokens = f"{ctx.server.smoke.tokens} tokens each"
        return [f"streamed requests at {levels} in flight, {tokens}{way}"]

    def run(self, ctx: StepContext) -> StepResult:
        from opsctl.smoke.diagnosis import explain
        from opsctl.smoke.run import run_smoke
        from opsctl.smoke.target import open_target

        with open_target(cast("ServerSession", ctx.session)) as target:
            options = options_of(ctx, target.endpoint)
            report = run_smoke(
                options, watch=target.watch, on_event=progress_of(ctx), load=target.load
            )
            report.load["from"] = target.way
            bad = next((level for level in report.all_levels if level.outcome.is_bad), None)
            if bad is not None:
                report.diagnosis = explain(
                    report, bad, target.watch, ctx.server_name, way_out_of(ctx)
                )
                keep_log(ctx, target.watch)
        if report.exit_code:
            refuse_going_down(ctx)
        return result_of(ctx, report)


def way_out_of(ctx: StepContext) -> str | None:
    """Say what to do about a known-bad patch that the launch was done with; None where there is none."""
    from opsctl.patch_advice import advice

    known = ctx.data_of("known-failure")
    last = known.get("last_passed")
    passed = None
    if last:
        passed = {"run": last["run"], "patches": (last.get("content") or {}).get("patches") or {}}
    return advice(known.get("content") or {}, ctx.server_name, passed, ctx.patch_folder)


def keep_log(ctx: StepContext, watch: AgentWatch | None) -> None:
    """Keep what the log gained under the bad level, for `opsctl diagnose RUN`; best effort."""
    text = watch.text if watch is not None else ""
    if ctx.kept is None or not text:
        return
    try:
        ctx.kept.mkdir(parents=True, exist_ok=True, mode=0o700)
        (ctx.kept / "server.log").write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        logger.info("the server's log was not kept: %s", error)


def options_of(ctx: StepContext, endpoint: Endpoint) -> Options:
    """Return the smoke of a restart: the server's settings; requests of others are none of our business."""
    from opsctl.smoke.prompts import read_prompts
    from opsctl.smoke.run import Options

    settings = ctx.server.smoke
    speculation = ctx.server.speculation
    return Options(
        endpoint,
        levels=tuple(settings.levels),
        profile=settings.profile,
        requests=settings.requests,
        tokens=settings.tokens,
        own_prompts=read_prompts(settings.prompts) if settings.prompts is not None else (),
        startup_s=settings.timeout_s,
        allow_live=True,
        threshold=speculation.disable_above if speculation is not None else None,
    )


def progress_of(ctx: StepContext) -> Any:
    """Return the engine's event handler that says each level as it ends."""
    from opsctl.smoke.report import PlainView

    return PlainView(lambda line: ctx.reporter.say(f"    {line}"))


def result_of(ctx: StepContext, report: SmokeReport) -> StepResult:
    """Turn the report into the step's result, with bracket and diagnosis."""
    from opsctl.smoke.report import report_data

    data = report_data(report)
    outcome = report.outcome
    passed = [level.concurrency for level in report.levels if level.outcome.value == "passed"]
    data["summary"] = f"{outcome}: {len(passed)} of {len(report.wanted)} levels passed"
    if report.exit_code == 0:
        return StepResult(StepOutcome.DONE, findings=tuple(report.findings), data=data)
    data["cause"] = CAUSES.get(outcome)
    findings = [verdict_finding(ctx, report), *report.findings]
    known = outcome in CAUSES
    return StepResult(
        StepOutcome.FAILED if known else StepOutcome.UNKNOWN,
        findings=tuple(findings),
        data=data,
        exit_code=report.exit_code or SmokeFailed.exit_code,
    )


def verdict_finding(ctx: StepContext, report: SmokeReport) -> Finding:
    """Say at which level, and why as far as it is known."""
    bracket = report.bracket or {}
    where = f" at C={bracket['first_bad']}" if bracket.get("first_bad") else ""
    good = f" (C={bracket['last_good']} was good)" if bracket.get("last_good") else ""
    found = report.diagnosis or {}
    why = f": {found['explanation']}" if found.get("category") else ""
    steps = found.get("next") or ()
    next_step = steps[0] if steps else f"opsctl logs {ctx.server_name} --run {ctx.run_id}"
    return Finding(
        f"smoke-{report.outcome}", ctx.server_name, f"{report.outcome}{where}{good}{why}", next_step
    )
