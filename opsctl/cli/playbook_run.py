"""Run a playbook for one server from the command line: open, run, write down, print."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from opsctl.cli.app import App, emit
from opsctl.cli.notified import tell, telling_errors
from opsctl.cli.playbook_continue import (
    build_again,
    close_if_nothing_began,
    look_after_a_cut,
    stays_open,
)
from opsctl.open_runs import mark, unmark, unmark_all
from opsctl.output import Document, Finding
from opsctl.records import dataclass

if TYPE_CHECKING:
    from opsctl.domain.runs import RunDetail
    from opsctl.ledger import Ledger
    from opsctl.plan import Plan
    from opsctl.runner import RunReport
    from opsctl.session import ServerSession
    from opsctl.steps.base import StepContext

DOCUMENT_NAMES = {"stop": "stop", "gpu-memory": "gpu verify", "smoke": "smoke"}


@dataclass(frozen=True, slots=True)
class Order:
    """What one command line asks for."""

    command: str  # restart, launch, stop, run
    playbook: str
    server: str
    given: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None
    deadline_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "playbook": self.playbook,
            "given": dict(self.given),
            "deadline_s": self.deadline_s,
        }


def run_order(app: App, order: Order, before: RunDetail | None = None) -> int:
    """Run a playbook, or go on with the run ``before``; print its document and return its exit code."""
    from opsctl.ledger import Ledger
    from opsctl.patch_library import unknown_patches
    from opsctl.plan import build
    from opsctl.playbook import find, load
    from opsctl.session import open_session
    from opsctl.site_cache import load_site

    site = load_site(app.site_path)
    site.server(order.server)
    playbook = load(find(order.playbook))
    if before is None:
        order = with_site_inputs(order, site.servers[order.server].inputs, playbook.inputs)
    plan = (
        build(playbook, order.given)
        if before is None
        else build_again(playbook, before, order.given)
    )
    patched = before is None and not plan.only_stops and order.given.get("patch", True)
    wrong = unknown_patches(site, [order.server] if patched else [])
    if app.dry_run:
        if wrong:
            raise wrong[0]
        with open_session(site, order.server) as session:
            session.may_be_stopped = plan.only_stops
            return show_dry_run(app, order, plan, session)
    begun_s = time.time()
    with telling_errors(site, order.command, order.server, order.reason):
        if wrong:
            raise wrong[0]
        ledger = Ledger.open(app.state())
        try:
            run = before.run.id if before else new_run_id()
            begin(ledger, run, order, before)
            mark(app.state(), run, order.server)
            with open_session(site, order.server) as session:
                session.may_be_stopped = plan.only_stops
                document, text = run_plan(app, order, plan, session, ledger, run, before)
        finally:
            ledger.close()
    begun_s = before.run.started_s if before else begun_s
    tell(site, document, order.server, order.reason, begun_s)  # the locks are free by now
    return emit(app, document, text)


def with_site_inputs(order: Order, wanted: Mapping[str, Any], known: Mapping[str, Any]) -> Order:
    """Return the order with the site's inputs that this playbook has, where the command line sets none.

    They are part of what is written down: a continued run keeps them.
    """
    chosen = {name: value for name, value in wanted.items() if name in known}
    return replace(order, given={**chosen, **order.given})


def begin(ledger: Ledger, run: str, order: Order, before: RunDetail | None) -> None:
    """Make sure that the run can be written down, and write down that it begins."""
    ledger.ensure_room()
    if before is not None:
        ledger.note(run, time.time(), "resumed", {"who": who_am_i()})
        return
    ledger.begin(
        run,
        server=order.server,
        playbook=order.playbook,
        at_s=time.time(),
        who=who_am_i(),
        reason=order.reason,
        inputs=order.to_json(),
    )


def run_plan(
    app: App,
    order: Order,
    plan: Plan,
    session: ServerSession,
    ledger: Ledger,
    run: str,
    before: RunDetail | None,
) -> tuple[Document, Callable[[], str]]:
    """Run the steps, write the end down, and return the document with what a person reads."""
    from opsctl.cli.signals import polite_signals
    from opsctl.runner import CUT, RESUMABLE, Runner

    ctx = make_context(app, order, plan, session, run, before)
    ctx.memory = ledger
    ctx.note = lambda code, body: ledger.note(run, time.time(), code, body)
    ctx.reporter.say(f"run {run}: {order.command} {order.server} on {session.server.host}")
    with polite_signals(ctx.cancelled, ctx.reporter):
        report = Runner(plan, ctx, ledger, before).run()
    look_after_a_cut(report, ctx)
    close_if_nothing_began(before, report, ctx)
    is_open = stays_open(before, report, ctx)
    document = make_document(order.command, report, ctx, is_open=is_open)
    # a pass that did nothing leaves the run as it was: cut
    outcome = CUT if is_open and report.outcome not in RESUMABLE else report.outcome
    write_end(ledger, run, document, report, ctx, outcome)
    if outcome not in RESUMABLE:
        unmark(app.state(), run)
    if outcome == "done" and "launch" in ctx.results:
        unmark_all(app.state(), order.server)
    return document, lambda: describe(document, report, ctx)


def make_context(
    app: App,
    order: Order,
    plan: Plan,
    session: ServerSession,
    run: str,
    before: RunDetail | None,
) -> StepContext:
    from opsctl.cli.talk import Talk
    from opsctl.steps.base import Deadline, MonotonicClock, StepContext

    cancelled = threading.Event()
    clock = MonotonicClock(cancelled)
    end = None if order.deadline_s is None else clock.now() + order.deadline_s
    return StepContext(
        server=session.server,
        server_name=order.server,
        run_id=run,
        session=session,
        clock=clock,
        reporter=Talk(),
        deadline=Deadline(end),
        values=plan.values,
        who=who_am_i(),
        begun_s=before.run.started_s if before else time.time(),
        reason=order.reason,
        confirm=app.confirm,
        kept=app.state() / "runs" / run,
        patch_folder=session.hosts.site.patch_folder,
        state_dir=app.state(),
        cancelled=cancelled,
    )


def write_end(
    ledger: Ledger,
    run: str,
    document: Document,
    report: RunReport,
    ctx: StepContext,
    outcome: str,
) -> None:
    """Close the run in the ledger; a ledger that cannot take it is said, and the result stays what it is."""
    import json

    from opsctl.errors import OpsctlError
    from opsctl.steps.record import signature_of

    try:
        ledger.finish(
            run,
            at_s=time.time(),
            outcome=outcome,
            exit_code=report.exit_code,
            signature=signature_of(ctx.results),
            document=json.loads(document.to_json()),
        )
    except OpsctlError as error:
        text = f"the end of the run was not recorded: {error.message}"
        document.findings.append(Finding(error.code, run, text, error.next_step or ""))


def make_document(
    command: str, report: RunReport, ctx: StepContext, *, is_open: bool = False
) -> Document:
    """Return the run's document by the output contract."""
    from dataclasses import asdict

    data: dict[str, Any] = {
        "server": ctx.server_name,
        "state": state_of(report, ctx),
        "steps": [asdict(step) for step in report.steps],
        "downtime": (found := downtime_of(ctx)) and found.to_json(),
        "bracket": None,
        "diagnosis": None,
    }
    for step, name in DOCUMENT_NAMES.items():
        if step in ctx.results:
            data[name] = dict(ctx.results[step].data)
    for step in ("ready", "smoke"):
        for key in ("bracket", "diagnosis"):
            data[key] = ctx.data_of(step).get(key) or data[key]
    findings = list(report.findings)
    if is_open:
        next_step = f"opsctl resume {ctx.run_id}"
        next_step += "" if sys.stdin.isatty() and sys.stderr.isatty() else " --yes"
        findings.append(
            Finding(
                "resumable", ctx.run_id, f"{report.outcome}: {state_of(report, ctx)}", next_step
            )
        )
    return Document(command, report.outcome, report.exit_code, ctx.run_id, findings, data)


def state_of(report: RunReport, ctx: StepContext) -> str:
    """Say what the run has left behind; a failure that was settled knows best."""
    running = bool(ctx.data_of("look").get("running"))
    return str(ctx.data_of("settle").get("state") or report.state(running=running))


def downtime_of(ctx: StepContext) -> Any:
    """Return the downtime's breakdown; None when nothing was stopped or nothing came up."""
    from opsctl.domain.downtime import measure_downtime

    stop, launch, ready = (ctx.data_of(name) for name in ("stop", "launch", "ready"))
    return measure_downtime(
        (stop.get("first_signal_s"), stop.get("last_exit_s")),
        launch.get("exec_s"),
        (launch.get("exec_at"), ready.get("ready_line_at"), ready.get("ready_at")),
    )


def describe(document: Document, report: RunReport, ctx: StepContext) -> str:
    """Return the end of a run as a person reads it."""
    head = f"{document.command} {ctx.server_name}: {report.outcome} (exit {report.exit_code})"
    lines = [f"{head}; {state_of(report, ctx)}"]
    found = downtime_of(ctx)
    if found is not None:
        lines.append(found.describe())
    lines.append(f"recorded as {ctx.run_id}; see `opsctl show {ctx.run_id}`")
    return "\n".join(lines)


def show_dry_run(app: App, order: Order, plan: Plan, session: ServerSession) -> int:
    """Look for real and print what would be done; nothing is written, not even in the ledger."""
    from dataclasses import asdict

    from opsctl.errors import CouldNotTell
    from opsctl.ledger import Ledger
    from opsctl.runner import Runner

    ctx = make_context(app, order, plan, session, new_run_id(), None)
    ctx.kept = None
    ledger = Ledger.open(app.state())
    try:
        ctx.memory = ReadOnly(ledger)
        report = Runner(plan, ctx, ledger).dry_run()
    finally:
        ledger.close()
    outcome = report.outcome if report.failed else "planned"
    data = {
        "server": order.server,
        "steps": [asdict(step) for step in report.steps],
        "plan": [{"step": name, "lines": lines} for name, lines in report.preview],
    }
    document = Document(order.command, outcome, report.exit_code, None, list(report.findings), data)
    if report.waits_for is not None:
        document.exit_code = CouldNotTell.exit_code
        document.findings.append(stopped_in_the_way(ctx))
    lines = [f"{name}: {line}" for name, found in report.preview for line in found]
    text = ["nothing was changed; this would be done:", *(f"  {line}" for line in lines)]
    if report.failed:
        text = ["nothing was changed, and it would not get as far as the stop"]
    return emit(app, document, lambda: "\n".join(text))


def stopped_in_the_way(ctx: StepContext) -> Finding:
    """Say why a dry run shows no more than the container's start."""
    from opsctl.steps.container import in_words

    text = (
        f"{in_words(ctx)} is stopped: what comes after its start is looked at, and shown, only then"
    )
    step = f"opsctl ct start {ctx.server_name}, then look again; or with --yes instead of --dry-run"
    return Finding("container-stopped", ctx.server_name, text, step)


class ReadOnly:
    """The ledger's memory for a dry run: it knows, and keeps nothing."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def attempts(self) -> list[Any]:
        return self._ledger.attempts()

    def add_attempt(self, attempt: Any) -> None:
        """Keep nothing."""

    def set_facts(self, run: str, facts: Mapping[str, Any], fingerprint: str | None) -> None:
        """Keep nothing."""


def new_run_id() -> str:
    """Return a run's id: sortable by time, different on two machines."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(2)


def who_am_i() -> str:
    """Return who runs this, and from where: user@machine, with the client of an ssh login."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    origin = os.environ.get("SSH_CONNECTION", "").split(" ")[0]
    return f"{user}@{socket.gethostname()}" + (f" from {origin}" if origin else "")
