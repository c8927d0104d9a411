"""Stop a server by identity, and look afterwards whether it is gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from opsctl.domain.process import Judged, ProcessClass, describe, masked
from opsctl.domain.protection import Table, unit_of
from opsctl.domain.stop_plan import UNTOLD, Outcome, StopPlan, UnitFact, how_to_end, plan_stop
from opsctl.domain.stop_words import plan_lines
from opsctl.errors import AgentError, SafetyRefusal
from opsctl.facts import ProcessId
from opsctl.output import Finding
from opsctl.records import dataclass
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult
from opsctl.steps.draining import drain
from opsctl.steps.gpu_memory import (
    LAST_EXIT_KEY,
    PICTURE_KEY,
    POLL_KEY,
    has_no_gpus,
    picture_of,
    start_poll,
)
from opsctl.steps.picture import Picture, take_picture
from opsctl.steps.reading import StopSession
from opsctl.steps.stopping import HANGS, Stopping, Timing
from opsctl.steps.tidying import begin_tidying
from opsctl.steps.watching import MemoryPoll

if TYPE_CHECKING:
    from collections.abc import Callable

    from opsctl.agent.client import Agent

PLAN_KEY = "stop-plan"
ENDING_KEY = "ending"  # what the caller makes ready while the processes end
ENDED_KEY = "ended"  # what the caller begins when all of a pass are gone, beside the second look
FRESH_S = 2.0  # a picture of this age is taken for the stop; each signal verifies identity anyway
GLANCE_S = 1.0  # how long memory is looked at when a process is still there
SETTLE_S = 1.0  # workers of a neighbour that ends outlive its main process for a moment
MAX_ROUNDS = 3
REBOOT = "a process in D state waits inside the kernel: no signal ends it; a reboot is needed"


@dataclass(frozen=True, slots=True)
class StopServer:
    """End every process of the server, and nothing else.

    ``grace_s`` is the time between TERM and KILL and ``drain_s`` the time that running requests get
    before (None: the site's); ``hard`` begins with KILL.
    """

    grace_s: float | None = None
    drain_s: float | None = None
    hard: bool = False
    evict: tuple[int, ...] = ()
    name = "stop"
    effect = Effect.DESTROY
    half_done = (
        "some of the server's processes may have ended; `opsctl stop SERVER` again looks first"
    )

    def describe(self) -> str:
        return "stop the server's processes by identity"

    def preview(self, ctx: StepContext) -> list[str]:
        picture, plan = self._settled(ctx, picture_of(ctx))
        ctx.live[PICTURE_KEY] = (ctx.clock.now(), picture)
        ctx.live[PLAN_KEY] = plan
        return plan_lines(plan, kills=self.hard, grace_s=self._grace_s(ctx))

    def planned(self, ctx: StepContext) -> StopPlan:
        """Return the plan that ``preview`` showed."""
        return cast(StopPlan, ctx.live[PLAN_KEY])

    def planned_data(self, plan: StopPlan) -> list[dict[str, Any]]:
        """Return the processes of a plan as the document shows them; nothing has happened to them."""
        judged = (*plan.targets, *plan.left_alone)
        return [process_data(one, Outcome.UNTOUCHED) for one in judged]

    def run(self, ctx: StepContext) -> StepResult:
        told = stopped_around(ctx) or self._drain(ctx)
        picture, plan = self._fresh(ctx)
        others = {one.pid: one for one in plan.left_alone}
        rows: dict[int, tuple[Judged, Outcome]] = {}
        findings = [*told, *plan.findings]
        timing = Timing(None, None)
        poll = self._watch_memory(ctx, picture)
        came_back: list[Judged] = []
        session = cast(StopSession, ctx.session)
        has_ended = cast("Callable[[], None] | None", ctx.live.get(ENDED_KEY))
        for _ in range(MAX_ROUNDS):
            if plan.is_empty:
                break
            stopping = self._stopping(ctx, picture, plan)
            timing = _joined(timing, self._carry_out(stopping))
            findings += stopping.findings
            rows.update({t.pid: (t, stopping.outcomes[t.pid]) for t in plan.targets})
            if not all(outcome.is_gone for _, outcome in rows.values()):
                break
            if poll is not None:
                poll.processes_are_gone(self._memory_timeout_s(ctx))
            if has_ended is not None:
                has_ended()
            else:  # a run that ends before its launch leaves no unit that looks as if it had failed by itself
                begin_tidying(ctx)
            picture = after_a_pass(take_picture(session, picture.place), stopping.ended)
            plan = self._plan(ctx, picture, evict=())
            came_back = [root for root in plan.roots if is_new_server(root, rows)]
            if came_back:
                findings.append(_came_back(came_back[0], picture.table))
                break
        if poll is not None:
            all_gone = all(outcome.is_gone for _, outcome in rows.values()) and not came_back
            poll.processes_are_gone(self._memory_timeout_s(ctx) if all_gone else GLANCE_S)
        ctx.live[PICTURE_KEY] = (ctx.clock.now(), picture)
        ctx.live[LAST_EXIT_KEY] = timing.last_heard_s
        others |= {one.pid: one for one in picture.selection.outsiders}
        result = self._result(others.values(), rows, findings, timing, came_back)
        machine = getattr(ctx.session, "machine", None)
        return replace(result, data={**result.data, **(machine.to_json() if machine else {})})

    def _settled(self, ctx: StepContext, picture: Picture) -> tuple[Picture, StopPlan]:
        """Plan; where a process cannot be attributed, look once more: a neighbour may be just ending."""
        try:
            return picture, self._plan(ctx, picture)
        except SafetyRefusal as refusal:
            if refusal.code != "ambiguous":
                raise
            ctx.clock.sleep(SETTLE_S)
            again = picture_of(ctx)
            return again, self._plan(ctx, again)

    def _plan(
        self, ctx: StepContext, picture: Picture, evict: Iterable[int] | None = None
    ) -> StopPlan:
        session = cast(StopSession, ctx.session)
        chosen = self.evict if evict is None else evict
        facts = unit_facts(session.agent, picture)
        return plan_stop(picture.selection, picture.table, chosen, facts)

    def _stopping(self, ctx: StepContext, picture: Picture, plan: StopPlan) -> Stopping:
        session = cast(StopSession, ctx.session)
        return Stopping(
            agent=session.owner_agent,
            unit_agent=session.agent,
            plan=plan,
            boot_id=picture.boot_id,
            grace_s=self._grace_s(ctx),
            say=ctx.reporter.say,
            meanwhile=cast("Callable[[], None]", ctx.live.get(ENDING_KEY, _nothing)),
        )

    def _carry_out(self, stopping: Stopping) -> Timing:
        stopping.hold()
        if self.hard:
            stopping.kill()
        else:
            stopping.terminate()
        return stopping.finish()

    def _watch_memory(self, ctx: StepContext, picture: Picture) -> MemoryPoll | None:
        """Begin the memory proof before the first signal, so that the first exit is in it."""
        if has_no_gpus(ctx, picture.report):
            return None
        patience_s = self._grace_s(ctx) + 60.0 + self._memory_timeout_s(ctx)
        poll = start_poll(ctx, picture, patience_s)
        ctx.live[POLL_KEY] = poll
        return poll

    def _drain(self, ctx: StepContext) -> list[Finding]:
        wanted = ctx.server.stop.drain_s if self.drain_s is None else self.drain_s
        if self.hard or wanted <= 0:
            return []
        return drain(ctx, ctx.deadline.left(ctx.clock.now(), wanted))

    def _fresh(self, ctx: StepContext) -> tuple[Picture, StopPlan]:
        """Return the picture and the plan that were just shown, where they still hold; else new ones."""
        kept = ctx.live.pop(PICTURE_KEY, None)
        plan = ctx.live.get(PLAN_KEY)
        if isinstance(kept, tuple) and ctx.clock.now() - kept[0] <= FRESH_S:
            picture = cast(Picture, kept[1])
            if isinstance(plan, StopPlan) and plan.selection is picture.selection:
                return picture, plan
            return self._settled(ctx, picture)
        return self._settled(ctx, picture_of(ctx))

    def _grace_s(self, ctx: StepContext) -> float:
        wanted = ctx.server.stop.grace_s if self.grace_s is None else self.grace_s
        return ctx.deadline.left(ctx.clock.now(), wanted)

    def _memory_timeout_s(self, ctx: StepContext) -> float:
        return ctx.deadline.left(ctx.clock.now(), ctx.server.stop.memory_timeout_s)

    def _result(
        self,
        others: Iterable[Judged],
        rows: Mapping[int, tuple[Judged, Outcome]],
        findings: list[Finding],
        timing: Timing,
        came_back: list[Judged],
    ) -> StepResult:
        findings += trouble(rows.values())
        data: dict[str, Any] = {
            "processes": [process_data(judged, outcome) for judged, outcome in rows.values()]
            + [
                process_data(judged, Outcome.UNTOUCHED)
                for judged in others
                if judged.pid not in rows
            ],
            "first_signal_s": timing.first_signal_s,
            "last_exit_s": timing.last_exit_s,
            "ending_s": timing.ending_s,
            "summary": _summary(rows.values()),
        }
        bad = [outcome for _, outcome in rows.values() if not outcome.is_gone]
        failed = bool(bad or came_back)
        done = StepOutcome.DONE if rows else StepOutcome.UNCHANGED
        return StepResult(
            StepOutcome.FAILED if failed else done,
            changed=bool(rows),
            findings=tuple(findings),
            data=data,
            exit_code=20 if failed else 0,
        )


def stopped_around(ctx: StepContext) -> list[Finding]:
    """Tell why nothing runs where the container itself is stopped."""
    if not getattr(ctx.session.agent, "is_stopped", False):
        return []
    text = (
        f"its container {getattr(ctx.session, 'container', None)} is stopped: nothing of it can run"
    )
    return [Finding("container-stopped", ctx.server_name, text)]


def after_a_pass(picture: Picture, ended: Collection[ProcessId]) -> Picture:
    """Return the picture after a pass, in which only what is proven counts.

    Doubts refuse before the first signal. Afterwards the proven root is gone, so a neighbour that
    was known as another server would look like a near miss. Who was seen to end by the kernel's own
    word is no member any more, though /proc may show it for a moment yet.
    """
    selection = picture.selection
    members = tuple(
        one for one in selection.members if one.process is None or one.process.identity not in ended
    )
    return replace(picture, selection=replace(selection, members=members, ambiguous=()))


def unit_facts(agent: Agent, picture: Picture) -> list[UnitFact]:
    """Return what systemd says of the units of the server's roots; those that its records tell are known."""
    roots = picture.selection.roots
    units = {unit_of(root.process.cgroup) for root in roots if root.process}
    told = picture.unit_facts()
    found = [told[unit] for unit in units if unit in told]
    names = sorted(unit for unit in units if unit and unit not in told)
    if not names:
        return found
    try:
        reply = agent.call("units.show", {"units": names}, timeout_s=20.0)
    except AgentError as error:
        if error.code != HANGS:
            raise
        return [*found, *(UnitFact(name, UNTOLD) for name in names)]
    for entry in reply["units"]:
        shown = entry["properties"]
        main = int(shown.get("MainPID") or 0) or None
        found.append(UnitFact(entry["unit"], shown.get("Restart") or None, main))
    return found


def is_new_server(root: Judged, rows: Mapping[int, tuple[Judged, Outcome]]) -> bool:
    """Say whether a root seen after the stop is a new start, and not a worker that was left.

    A worker that was forked meanwhile is still in the session that the server led.
    """
    if root.process is None or root.process.is_dead or root.process.session in rows:
        return False
    known = {judged.process.identity for judged, _ in rows.values() if judged.process}
    youngest = max((identity.start_ticks for identity in known), default=0)
    return root.process.identity not in known and root.process.identity.start_ticks > youngest


def _came_back(root: Judged, table: Table) -> Finding:
    parent = table.by_pid.get(root.process.ppid) if root.process else None
    by, step = "", None
    if parent is not None:
        by, step = f", by pid {parent.pid} ({describe(parent)})", how_to_end(parent)
    return Finding(
        "restart-loop",
        str(root.pid),
        f"the server was started again while it was stopped: pid {root.pid}{by}",
        (step or "stop what starts it (a unit with Restart=, a supervisor, a script)")
        + ", then run this again",
    )


def trouble(rows: Iterable[tuple[Judged, Outcome]]) -> list[Finding]:
    """Return a finding for each process that is not gone, or was not the one that was planned."""
    steps = {
        Outcome.STUCK: ("stuck", REBOOT, "see the kernel log, then reboot; opsctl resets no GPU"),
        Outcome.DENIED: (
            "denied",
            "the agent's user may not signal it",
            "connect as root or as its owner, or set `become: sudo` on the host",
        ),
        Outcome.ALIVE: ("alive", "it outlived KILL", "look at its state: ps -o pid,stat,wchan -p"),
        Outcome.RECYCLED: (
            "recycled",
            "its pid belongs to a younger process now, which was left alone",
            "nothing to do",
        ),
    }
    found = []
    dead = [str(judged.pid) for judged, outcome in rows if outcome is Outcome.ZOMBIE]
    if dead:
        text = f"pid {', '.join(dead)}: dead, and not yet collected by the parent"
        found.append(
            Finding("zombie", dead[0], text, "it holds no memory; it goes with its parent")
        )
    for judged, outcome in rows:
        if outcome in steps:
            code, text, step = steps[outcome]
            found.append(Finding(code, str(judged.pid), f"pid {judged.pid}: {text}", step))
    return found


def process_data(judged: Judged, outcome: Outcome) -> dict[str, Any]:
    """Return one process as the document shows it (see the output contract)."""
    process = judged.process
    return {
        "pid": judged.pid,
        "ns_pid": process.ns_pids[-1] if process and process.ns_pids else None,
        "start_ticks": process.identity.start_ticks if process else None,
        "class": judged.kind.value,
        "reason": judged.reason,
        "outcome": outcome.value,
        "user": process.user if process else None,
        "argv": masked(process.argv) if process else None,
        "held_bytes": judged.held_bytes if judged.holds else 0,
        "server": judged.server,
    }


def _nothing() -> None:
    """What a caller makes ready that waits for nothing."""


def _joined(one: Timing, other: Timing) -> Timing:
    exits = [at_s for at_s in (one.last_exit_s, other.last_exit_s) if at_s is not None]
    first_s = one.first_signal_s or other.first_signal_s
    return Timing(first_s, max(exits, default=None), other.last_heard_s or one.last_heard_s)


def _summary(rows: Iterable[tuple[Judged, Outcome]]) -> str:
    counts: dict[str, int] = {}
    for judged, outcome in rows:
        word = outcome.value if judged.kind is ProcessClass.MEMBER else f"evicted ({outcome.value})"
        counts[word] = counts.get(word, 0) + 1
    if not counts:
        return "no process of it was running"
    return ", ".join(f"{count} {word}" for word, count in counts.items())
