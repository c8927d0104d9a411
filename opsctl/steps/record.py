"""Keep the attempt: in the ledger, and as one line beside the server, so that any machine knows it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from opsctl.domain.fingerprint import Attempt, AttemptOutcome, Content
from opsctl.errors import OpsctlError
from opsctl.output import Finding
from opsctl.records import dataclass
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult, is_cut
from opsctl.steps.known_failure import facts_of
from opsctl.steps.look import gpu_facts

logger = logging.getLogger(__name__)

CONCLUSIVE_EXIT_CODES = (60, 70)


@dataclass(frozen=True, slots=True)
class Record:
    """Write down how the attempt ended; nothing, when nothing was launched."""

    name = "record"
    effect = Effect.CHANGE

    def describe(self) -> str:
        return "record the attempt in the ledger and beside the server"

    def preview(self, ctx: StepContext) -> list[str]:
        return ["append one line to the host's attempts.jsonl"]

    def run(self, ctx: StepContext) -> StepResult:
        attempt = attempt_of(ctx)
        if attempt is None:
            return StepResult(StepOutcome.UNCHANGED, data={"summary": "nothing was launched"})
        keep_facts(ctx)
        findings: list[Finding] = []
        cut = False
        for keep, where in ((keep_here, "ledger"), (keep_there, ctx.server.host)):
            try:
                keep(ctx, attempt)
            except OpsctlError as error:
                cut = cut or is_cut(error)
                text = f"the attempt was not recorded: {error.message}"
                findings.append(Finding("not-recorded", where, text, "run `opsctl resume` later"))
        signature = f", signature {attempt.signature}" if attempt.signature else ""
        data: dict[str, Any] = {
            "attempt": attempt.to_json(),
            "summary": f"attempt {attempt.fingerprint}: {attempt.outcome.value}{signature}",
        }
        if findings:
            data["cut"] = cut  # the run stays open then
            return StepResult(StepOutcome.FAILED, findings=tuple(findings), data=data, exit_code=40)
        return StepResult(StepOutcome.DONE, changed=True, data=data)


def keep_facts(ctx: StepContext) -> None:
    """Add what the world looks like after the run to what it looked like before; best effort."""
    if ctx.memory is None:
        return
    known = ctx.data_of("known-failure")
    after: dict[str, Any] = {"workers": ctx.data_of("ready").get("workers")}
    try:
        after["gpus"] = gpu_facts(ctx)
        facts = {**facts_of(ctx, known), "after": after}
        ctx.memory.set_facts(ctx.run_id, facts, known.get("fingerprint"))
    except OpsctlError as error:
        logger.info("the facts after the run were not kept: %s", error.message)


def keep_here(ctx: StepContext, attempt: Attempt) -> None:
    if ctx.memory is not None:
        ctx.memory.add_attempt(attempt)


def keep_there(ctx: StepContext, attempt: Attempt) -> None:
    request = {"state_dir": ctx.server.state_dir, "attempt": attempt.to_json()}
    ctx.session.agent.call("attempts.append", request, timeout_s=15.0)


def attempt_of(ctx: StepContext) -> Attempt | None:
    """Return the attempt of this run, or None when no server was launched by it."""
    launch = ctx.results.get("launch")
    content = ctx.data_of("known-failure").get("content")
    if launch is None or content is None:
        return None
    outcome, detail = judge_outcome(ctx.results)
    return Attempt(
        run=ctx.run_id,
        server=ctx.server_name,
        at_s=ctx.wall(),
        outcome=outcome,
        content=Content.from_json(content),
        signature=signature_of(ctx.results),
        detail=detail,
        who=ctx.who,
        smoked_to=smoked_to(ctx.results),
    )


def smoked_to(results: Mapping[str, StepResult]) -> int | None:
    """Return the level that decided: the first bad one, else the highest that passed; None: no smoke."""
    data = results["smoke"].data if "smoke" in results else {}
    bad = (data.get("bracket") or {}).get("first_bad")
    good = [one["concurrency"] for one in data.get("levels") or () if one["outcome"] == "passed"]
    return int(bad) if bad is not None else max(good, default=None)


def judge_outcome(results: Mapping[str, StepResult]) -> tuple[AttemptOutcome, str]:
    """Say what the run proves about its content.

    Conclusive are a pass, a crash, a hang and wrong answers, seen in launch, ready and smoke. A step of which
    the end is not known, a broken way, a slow start and trouble of the client or of a GPU prove nothing.
    No more does a pass with a patch that stands in the package and was not in play.
    """
    for name in ("launch", "ready", "smoke"):
        result = results.get(name)
        if result is None or result.is_good:
            continue
        detail = result.findings[0].text if result.findings else result.outcome.value
        cause = result.data.get("cause")
        if (
            result.outcome is not StepOutcome.FAILED
            or result.exit_code not in CONCLUSIVE_EXIT_CODES
        ):
            return AttemptOutcome.INCONCLUSIVE, f"{name}: {detail}"
        known = {
            "crashed": AttemptOutcome.CRASHED,
            "hung": AttemptOutcome.HUNG,
            "wrong-answers": AttemptOutcome.WRONG_ANSWERS,
        }
        return known.get(str(cause), AttemptOutcome.INCONCLUSIVE), f"{name}: {detail}"
    ready = results.get("ready")
    if ready is None or not ready.is_good:
        return AttemptOutcome.INCONCLUSIVE, "the run ended before the server was ready"
    silent = ready.data.get("silent_patches")
    if silent:
        return AttemptOutcome.INCONCLUSIVE, f"ready, with patches not in play: {', '.join(silent)}"
    smoke = results.get("smoke")
    if smoke is None:
        return AttemptOutcome.PASSED, "ready; no smoke was asked for"
    return AttemptOutcome.PASSED, str(smoke.data.get("summary") or "smoke passed")


def signature_of(results: Mapping[str, StepResult]) -> str | None:
    """Return the crash signature that ready or smoke found."""
    for name in ("smoke", "ready"):
        result = results.get(name)
        diagnosis: Any = (result.data.get("diagnosis") if result else None) or {}
        if diagnosis.get("signature"):
            return str(diagnosis["signature"])
    return None
