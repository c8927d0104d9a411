"""`opsctl stop` and `opsctl kill`: end one server by identity, and prove that its GPU memory is free."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import click

from opsctl.cli.app import App, command, emit
from opsctl.cli.notified import tell, telling_errors
from opsctl.errors import Interrupted, OpsctlError, SafetyRefusal
from opsctl.output import Document, Finding
from opsctl.stop_record import StopRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from opsctl.agent.client import RemoteAgent
    from opsctl.session import ServerSession
    from opsctl.steps.base import StepContext, StepResult
    from opsctl.steps.stop import StopServer


def _options(function: Any) -> Any:
    for option in (
        click.option(
            "--timeout",
            type=click.FloatRange(min=0),
            metavar="S",
            help="Seconds to wait for GPU memory. Default: the site's stop.memory_timeout_s (60).",
        ),
        click.option(
            "--evict",
            type=int,
            multiple=True,
            metavar="PID",
            help="Also stop this foreign holder of the server's GPUs, or a process that could not "
            "be attributed. May be given several times. Never a protected one.",
        ),
        click.option(
            "--sweep", is_flag=True, help="Remove shared memory and locks of dead processes."
        ),
    ):
        function = option(function)
    return function


@command("stop", changes=True)
@click.argument("server")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    metavar="S",
    help="Seconds between TERM and KILL. Default: the site's stop.grace_s (30).",
)
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    metavar="S",
    help="Wait until no request runs, up to this long; opsctl cannot keep new ones away. "
    "Default: the site's stop.drain_s (0).",
)
@_options
def stop(
    app: App,
    server: str,
    grace: float | None,
    drain: float | None,
    timeout: float | None,
    evict: tuple[int, ...],
    sweep: bool,
) -> int:
    """Stop SERVER: TERM to its root, then to what is left, KILL at the end; then prove its GPUs free.

    A process is the server's when the launch record, its unit, or its command line with owner and
    port prove it. Nothing else is signalled: other holders of the GPUs are named and left alone.

    Exit codes: 0 stopped and GPU memory proven free (also when it was stopped already);
    20 something is still there, or listens on its port; 21 GPU memory could not be told;
    50 refused, nothing signalled.

    \b
    Examples:
      opsctl stop glm5 --dry-run      the whole picture, nothing changed
      opsctl stop glm5 --yes --json   for a script
    """
    options = {"grace_s": grace, "drain_s": drain, "evict": evict}
    return _run(app, server, options, "stop", timeout, sweep)


@command("kill", changes=True)
@click.argument("server")
@_options
def kill(app: App, server: str, timeout: float | None, evict: tuple[int, ...], sweep: bool) -> int:
    """Stop SERVER at once: KILL to each of its processes, without TERM, grace or drain.

    The same proof as `opsctl stop`, before and after: the same processes are chosen, each is
    verified as it is signalled, and GPU memory is proven free. What is lost: requests in flight,
    and the server's own cleaning up, so shared memory may stay (see --sweep). Use it when the
    server hangs and nobody waits for its answers; otherwise `opsctl stop` does the same with grace.

    \b
    Example:
      opsctl kill glm5 --dry-run
    """
    return _run(app, server, {"hard": True, "evict": evict}, "kill", timeout, sweep)


def _run(
    app: App, name: str, options: dict[str, Any], verb: str, timeout_s: float | None, sweep: bool
) -> int:
    from opsctl.session import open_session
    from opsctl.site_cache import load_site

    begun = time.monotonic()
    site = load_site(app.site_path)
    site.server(name)
    with open_session(site, name) as session:
        session.may_be_stopped = True
        _begin_agents(session)
        from opsctl.steps.stop import StopServer  # loaded while the hosts are connected

        step = StopServer(**options)
        ctx = context_of(app, session, verb)
        if app.dry_run:
            return _dry_run(app, ctx, step, verb, sweep)
        record = StopRecord(app.state_path(), ctx.run_id, verb, name, ctx.who)
        with telling_errors(site, verb, name, None):
            document, text = _stop(app, ctx, step, record, verb, timeout_s, sweep, begun)
    tell(site, document, name, None, ctx.begun_s)  # the locks are free by now
    return emit(app, document, text)


def _begin_agents(session: ServerSession) -> None:
    """Start all agents in the background; the one that will signal gets its module while others start."""

    def prepare(host: str, agent: RemoteAgent) -> None:
        if host != session.owner_host:
            return
        try:
            agent.call("process.wait_gone", {"processes": [], "timeout_s": 0.0}, timeout_s=20.0)
        except OpsctlError:
            pass  # whoever needs the answer asks again, and reports it

    session.hosts.begin(session.host_names(), then=prepare)


def context_of(app: App, session: ServerSession, verb: str) -> StepContext:
    """Return what the steps need, for a command that is not a playbook's run."""
    from opsctl.cli.playbook_run import new_run_id, who_am_i
    from opsctl.cli.talk import Talk
    from opsctl.steps.base import MonotonicClock, StepContext

    return StepContext(
        server=session.server,
        server_name=session.name,
        run_id=new_run_id(),
        session=session,
        clock=MonotonicClock(),
        reporter=Talk(quiet=app.as_json),
        who=who_am_i(),
        reason=f"opsctl {verb} {session.name}",
        state_dir=app.state_path(),
        begun_s=time.time(),
    )


def _dry_run(app: App, ctx: StepContext, step: StopServer, verb: str, sweep: bool) -> int:
    from opsctl.steps.sweep import Sweep

    lines = step.preview(ctx)
    lines += [f"  leftover: {line}" for line in Sweep(remove=sweep).preview(ctx)]
    plan = step.planned(ctx)
    machine = cast("ServerSession", ctx.session).machine
    document = Document(
        verb,
        "planned",
        findings=list(plan.findings),
        data={"processes": step.planned_data(plan), "plan": lines, **machine.to_json()},
    )
    return emit(app, document, lambda: "\n".join(lines))


def _stop(
    app: App,
    ctx: StepContext,
    step: StopServer,
    record: StopRecord,
    verb: str,
    timeout_s: float | None,
    sweep: bool,
    begun: float,
) -> tuple[Document, Callable[[], str]]:
    from opsctl.steps.base import ticking
    from opsctl.steps.gpu_memory import ProveGpuMemory
    from opsctl.steps.lock import Lock
    from opsctl.steps.stop import ENDED_KEY, ENDING_KEY
    from opsctl.steps.sweep import Sweep
    from opsctl.steps.tidying import tidy

    beside = ThreadPoolExecutor(3)
    locking = beside.submit(Lock().run, ctx)
    try:
        lines = step.preview(ctx)  # the picture is read while the lock is taken
    finally:
        locking.result()
    ctx.reporter.say("\n".join(lines))
    if not step.planned(ctx).is_empty:
        number = len(step.planned(ctx).targets)
        app.confirm(f"{verb} {'this process' if number == 1 else f'these {number} processes'}?")
    record.begin()
    sweeping: list[Future[StepResult]] = []
    tidying: list[Future[None]] = []

    def begin_sweep() -> None:
        sweeping.append(beside.submit(Sweep(remove=sweep).run, ctx))

    def begin_tidying() -> None:
        tidying.append(beside.submit(tidy, ctx))  # takes only units that are over

    def begin_both() -> None:
        begin_tidying()
        if not sweep:  # looking may go on beside the second look, removing not
            begin_sweep()

    try:
        ctx.live[ENDING_KEY] = lambda: _load_ahead(cast("ServerSession", ctx.session))
        ctx.live[ENDED_KEY] = begin_both
        with ticking(ctx.reporter, f"{verb}: waiting for its processes to end"):
            stopped = step.run(ctx)
        if not tidying and not stopped.exit_code:
            begin_tidying()
        if not sweeping or stopped.exit_code:
            begin_sweep()  # what is left now is what counts
        with ticking(ctx.reporter, "waiting for the GPU memory to be free"):
            memory = ProveGpuMemory(timeout_s).run(ctx)
        swept = sweeping[-1].result()
        for one in tidying:
            one.result()
    except OpsctlError as error:
        refused = isinstance(error, SafetyRefusal)
        record.cut("refused" if refused else "cut", error.exit_code, error)
        raise
    except KeyboardInterrupt:
        record.cut("interrupted", Interrupted.exit_code)
        raise Interrupted(
            f"interrupted inside {verb}: {step.half_done}",
            next_step=f"run `opsctl {verb} {ctx.server_name}` again; it looks first",
        ) from None
    total_s = time.monotonic() - begun
    document = _document(verb, stopped, memory, swept, total_s)
    record.end(document)
    return document, lambda: "\n".join(_text(ctx, stopped, memory, swept, total_s))


def _load_ahead(session: ServerSession) -> None:
    """Send what is asked once the processes are gone; who needs the answers says what failed."""
    from opsctl.agent.client import RemoteAgent

    with suppress(Exception):  # whatever it is: the processes are ending, and that goes on
        agent = session.agent
        if isinstance(agent, RemoteAgent):  # else its container is stopped
            agent.load(["leftovers.read", "launch.tidy"])


def _document(
    verb: str, stopped: StepResult, memory: StepResult, swept: StepResult, total_s: float
) -> Document:
    code = stopped.exit_code or memory.exit_code
    port_is_bound = any(item["kind"] == "port" for item in swept.data["leftovers"])
    if stopped.exit_code:
        outcome = "not-stopped"
    elif not code and port_is_bound:
        code, outcome = 20, "port-held"  # something that could not be identified serves there
    elif memory.exit_code:
        outcome = "memory-busy" if memory.exit_code == 20 else "memory-unknown"
    else:
        outcome = "stopped" if stopped.changed else "already-stopped"
    findings = _once([*stopped.findings, *memory.findings, *swept.findings])
    data = {
        "processes": stopped.data["processes"],
        "gpus": memory.data["gpus"],
        "leftovers": swept.data["leftovers"],
        "machine": stopped.data.get("machine"),
        "one_machine": stopped.data.get("one_machine"),
        "seconds": {**_seconds(stopped, memory), "total": round(total_s, 3)},
    }
    return Document(verb, outcome, code, findings=findings, data=data)


def _seconds(stopped: StepResult, memory: StepResult) -> dict[str, Any]:
    """The server's own time, and ours after it, both on the wall clocks of the hosts."""
    ending, last = stopped.data.get("ending_s"), stopped.data.get("last_exit_s")
    proven = memory.data.get("proven_after_exit_s")
    return {
        "ending": None if ending is None else round(ending, 3),
        "last_exit_at": last,
        "proven_at": memory.data.get("proven_at"),
        "proven_after_last_exit": proven,
    }


def _once(findings: list[Finding]) -> list[Finding]:
    return list(dict.fromkeys(findings))


def _text(
    ctx: StepContext, stopped: StepResult, memory: StepResult, swept: StepResult, total_s: float
) -> list[str]:
    from opsctl.cli.gpu_lines import gpu_lines

    lines = [f"{ctx.server_name}: {stopped.data['summary']}"]
    for entry in stopped.data["processes"]:
        if entry["outcome"] not in ("untouched",):
            argv = " ".join(entry["argv"] or [])[:60]
            lines.append(f"  {entry['outcome']:<12} pid {entry['pid']:<8} {argv}")
    if stopped.data.get("machine"):
        lines.append(machine_line(cast("ServerSession", ctx.session)))
    lines.append(f"gpu memory: {memory.data['summary']}")
    lines += gpu_lines(memory.data["gpus"])
    lines.append(f"leftovers: {swept.data['summary']}")
    seconds = _seconds(stopped, memory)
    if seconds["ending"] is not None:
        own = seconds["ending"]
        lines.append(
            f"{total_s:.2f} s in all, {own:.2f} s of it from the first signal to the last exit"
        )
    return lines


def machine_line(session: ServerSession) -> str:
    """Say whether processes and GPUs were looked at on one machine or on two, and how that is known."""
    return f"on {session.server.host}, GPUs of {session.gpu_host}: {session.machine.describe()}"
