"""Prove that the memory of the server's GPUs is free, or say what is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, cast

from opsctl.domain.counted import counted
from opsctl.domain.gpu import IDLE_MARGIN_BYTES, MIB, Baseline, GpuVerdict, MemoryVerdict
from opsctl.domain.gpu_health import learn_baselines
from opsctl.domain.gpu_memory import UNSEEN, judge_memory
from opsctl.domain.held_after import CODE as HELD_BY_OTHERS
from opsctl.domain.held_after import Staying, held_after_stop, in_words, way_out
from opsctl.errors import SafetyRefusal
from opsctl.facts import GpuReport
from opsctl.output import Finding
from opsctl.records import dataclass
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult
from opsctl.steps.baselines import load_baselines, save_baselines
from opsctl.steps.picture import Picture, take_picture
from opsctl.steps.reading import StopSession
from opsctl.steps.tidying import end_tidying
from opsctl.steps.watching import MemoryPoll

LAST_EXIT_KEY = "last-exit"
POLL_KEY = "memory-poll"
PICTURE_KEY = "stop-picture"
AGAIN_S = 1.0  # a holder that is just ending is looked at once more before it counts
NO_GPU_STATES = ("no-library", "driver-not-loaded", "no-devices")


@dataclass(frozen=True, slots=True)
class ProveGpuMemory:
    """Wait until every GPU of the server's set is at its baseline and holds no compute process."""

    timeout_s: float | None = None  # None: the site's stop.memory_timeout_s
    name = "gpu-memory"
    effect = Effect.READ

    def describe(self) -> str:
        return "prove that the server's GPU memory is free"

    def preview(self, ctx: StepContext) -> list[str]:
        """Say how long it would wait; before a launch, refuse where waiting is of no use."""
        if any(step.name == "launch" for step in ctx.ahead) and not was_launched(ctx):
            refuse_what_stays(ctx)
        limit = self._timeout_s(ctx)
        return [f"wait up to {limit:g} s until each GPU is at its idle baseline and holds nobody"]

    def run(self, ctx: StepContext) -> StepResult:
        poll = ctx.live.pop(POLL_KEY, None)
        if not isinstance(poll, MemoryPoll):
            kept = ctx.live.pop(PICTURE_KEY, None)
            picture = cast(Picture, kept[1]) if isinstance(kept, tuple) else picture_of(ctx)
            if has_no_gpus(ctx, picture.report):
                return no_gpus_result(ctx)
            poll = start_poll(ctx, picture, self._timeout_s(ctx))
            poll.processes_are_gone(self._timeout_s(ctx))
        elif self.timeout_s is not None:
            poll.shorten(self._timeout_s(ctx))
        before = poll.first
        verdict, residents = poll.wait(), poll.residents
        if any(view.label == UNSEEN for card in verdict.gpus for view in card.holders):
            picture = picture_of(ctx)  # it came after the plan: what is it?
            residents = picture.resident_gpu_pids
            verdict = judge_of(ctx, picture)(poll.report)
        learned, not_kept = learn(ctx, poll.report, verdict, residents)
        data = memory_data(verdict, before, poll.free_after_s)
        data["proven_after_exit_s"] = _since(ctx.live.pop(LAST_EXIT_KEY, None), poll.proven_at_s)
        data["proven_at"] = poll.proven_wall_s
        data["learned"] = sorted(learned)
        data["summary"] = memory_summary(verdict)
        good = verdict.exit_code == 0
        if not good:
            end_tidying(ctx)  # the run may end here
        return StepResult(
            StepOutcome.UNCHANGED if good else StepOutcome.FAILED,
            findings=(*verdict.all_findings, *not_kept),
            data=data,
            exit_code=verdict.exit_code,
        )

    def _timeout_s(self, ctx: StepContext) -> float:
        wanted = ctx.server.stop.memory_timeout_s if self.timeout_s is None else self.timeout_s
        return ctx.deadline.left(ctx.clock.now(), wanted)


def was_launched(ctx: StepContext) -> bool:
    """Say whether this run's own server was launched: what made room for it is behind us."""
    return bool(ctx.data_of("look").get("launched"))


def refuse_what_stays(ctx: StepContext) -> None:
    """Refuse, before anything is signalled, where others hold the GPUs that the next server needs.

    Raises:
        SafetyRefusal: exit 50, with each holder by name.
    """
    stops = any(step.name == "stop" for step in ctx.ahead)
    staying = what_stays(ctx, stops=stops)
    if staying:
        raise SafetyRefusal(
            in_words(staying),
            next_step=way_out(staying, ctx.server_name),
            code=HELD_BY_OTHERS,
            subject=ctx.server_name,
        )


def what_stays(ctx: StepContext, *, stops: bool = True) -> tuple[Staying, ...]:
    """Return who would still hold the server's GPUs after its stop; who is just ending does not count.

    ``stops``: whether the server's own processes end before the proof.
    """
    kept = ctx.live.get(PICTURE_KEY)
    fresh = isinstance(kept, tuple) and ctx.clock.now() - kept[0] <= AGAIN_S
    picture = cast(Picture, kept[1]) if fresh and isinstance(kept, tuple) else picture_of(ctx)
    first = _staying(ctx, picture, stops=stops)
    if not first:
        return ()
    ctx.clock.sleep(AGAIN_S)
    seen = {one.view.holder.pid for one in first}
    again = _staying(ctx, picture_of(ctx), stops=stops)
    return tuple(one for one in again if one.view.holder.pid in seen)


def _staying(ctx: StepContext, picture: Picture, *, stops: bool) -> tuple[Staying, ...]:
    if has_no_gpus(ctx, picture.report) or not picture.view.holders_here:
        return ()  # holders of another machine cannot be told from the server's own
    named = {pid for step in ctx.ahead for pid in getattr(step, "evict", ())}
    ending = {gpu_pid for gpu_pid, evict in picture.evictable.items() if evict.pid in named}
    if stops:
        ending |= {pid for pid, (kind, _) in picture.gpu_classes.items() if kind == "member"}
    return held_after_stop(judge_of(ctx, picture)(picture.report), ending)


def _since(began_s: object, ended_s: float | None) -> float | None:
    if not isinstance(began_s, float) or ended_s is None:
        return None
    return round(max(0.0, ended_s - began_s), 4)


def picture_of(ctx: StepContext) -> Picture:
    """Read everything anew."""
    return take_picture(cast(StopSession, ctx.session))


def has_no_gpus(ctx: StepContext, report: GpuReport) -> bool:
    """Say whether this is a machine without NVIDIA GPUs, and the site expects none."""
    wanted = ctx.server.gpus
    unasked = wanted.expect is None and wanted.select == "all" and wanted.host is None
    absent = report.state in NO_GPU_STATES and report.kernel_module_version is None
    return unasked and absent


def no_gpus_result(ctx: StepContext) -> StepResult:
    text = "no nvidia kernel module is loaded there, so there is no GPU memory to prove"
    step = "if it should have GPUs, set gpus.expect in the site file: then this is exit 21"
    finding = Finding("no-gpus", ctx.server_name, text, step)
    data: dict[str, Any] = {"gpus": [], "summary": "no GPUs there"}
    return StepResult(StepOutcome.UNCHANGED, findings=(finding,), data=data)


def judge_of(ctx: StepContext, picture: Picture) -> Callable[[GpuReport], MemoryVerdict]:
    """Return the decision on one report, with the server's set, baselines and classes filled in."""
    baselines = load_baselines(ctx.state_dir)
    margin = margin_of(ctx)

    def judge(report: GpuReport) -> MemoryVerdict:
        return judge_memory(
            report,
            picture.uuids,
            expect=ctx.server.gpus.expect,
            baselines=baselines,
            classes=picture.gpu_classes,
            servers=picture.gpu_servers,
            residents=picture.resident_gpu_pids,
            evictable=picture.evictable,
            margin_bytes=margin,
            found=picture.found,
        )

    return judge


def margin_of(ctx: StepContext) -> int:
    """Return the site's margin over the baseline, in bytes."""
    return ctx.server.stop.margin_mib * MIB


def start_poll(ctx: StepContext, picture: Picture, timeout_s: float) -> MemoryPoll:
    """Begin to poll the server's GPUs."""
    session = cast(StopSession, ctx.session)
    judge = judge_of(ctx, picture)
    limits = {card.uuid: card.limit_bytes for card in judge(picture.report).gpus}
    poll = MemoryPoll(
        session.gpu_agent,
        picture.report,
        limits,
        judge,
        timeout_s,
        residents=picture.resident_gpu_pids,
    )
    poll.start()
    return poll


def learn(
    ctx: StepContext, report: GpuReport, verdict: MemoryVerdict, residents: frozenset[int]
) -> tuple[dict[str, Baseline], list[Finding]]:
    """Record what the proven idle cards use; a busy card teaches nothing."""
    if ctx.state_dir is None:
        return {}, []
    idle = {card.uuid for card in verdict.gpus if card.state == "free"}
    known = load_baselines(ctx.state_dir)
    margin = min(margin_of(ctx), IDLE_MARGIN_BYTES)
    learned = learn_baselines(report, residents, known, margin)
    learned = {uuid: baseline for uuid, baseline in learned.items() if uuid in idle}
    host = cast(StopSession, ctx.session).gpu_agent.name
    not_kept = save_baselines(ctx.state_dir, host, learned)
    return ({} if not_kept else learned), not_kept


def memory_data(
    verdict: MemoryVerdict,
    before: MemoryVerdict | None = None,
    free_after_s: dict[str, float] | None = None,
) -> dict[str, Any]:
    """Return the verdict as the document's data (see the output contract)."""
    earlier = {card.uuid: card.used_bytes for card in before.gpus} if before else {}
    cards = []
    for card in verdict.gpus:
        entry = card_data(card)
        if before is not None:
            entry["before_bytes"] = earlier.get(card.uuid)
        if free_after_s is not None:
            after = free_after_s.get(card.uuid)
            entry["free_after_s"] = None if after is None else round(after, 3)
        cards.append(entry)
    return {"gpus": cards}


def card_data(card: GpuVerdict) -> dict[str, Any]:
    return {
        "uuid": card.uuid,
        "index": card.index,
        "name": card.name,
        "state": card.state.value,
        "used_bytes": card.used_bytes,
        "reserved_bytes": card.reserved_bytes,
        "total_bytes": card.total_bytes,
        "baseline_bytes": card.baseline_bytes,
        "limit_bytes": card.limit_bytes,
        "holders": [
            {
                "pid": view.holder.pid,
                "class": view.kind,
                "used_bytes": view.holder.used_bytes,
                "what": view.label,
                "server": view.server,
            }
            for view in card.holders
        ],
    }


def memory_summary(verdict: MemoryVerdict) -> str:
    """Return the verdict in half a line."""
    states = [card.state.value for card in verdict.gpus]
    free = states.count("free")
    if verdict.exit_code == 0:
        return f"proven free: {free} of {counted(len(states), 'GPU')}"
    words = [f"{states.count(s)} {s}" for s in ("busy", "lost", "unknown") if s in states]
    return f"{free} of {counted(len(states), 'GPU')} free" + (
        f", {', '.join(words)}" if words else ""
    )


def health_data(findings: list[Any]) -> list[dict[str, Any]]:
    """Return health findings as data."""
    return [{**asdict(item.finding), "refuses": item.refuses} for item in findings]
