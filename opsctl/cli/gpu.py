"""`opsctl gpu`: what the GPUs hold, whether that is proven free, and whether they still compute."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opsctl.cli.app import App, command, emit
from opsctl.errors import UsageError
from opsctl.output import Document, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opsctl.agent.client import RemoteAgent
    from opsctl.domain.gpu import MemoryVerdict
    from opsctl.facts import GpuReport
    from opsctl.session import Hosts
    from opsctl.site import Site


@click.group("gpu")
def gpu() -> None:
    """Show, verify, wait for and probe the GPUs of a server or of a host.

    `opsctl gpu verify HOST --json` exits 0 only when every GPU is proven free: memory at its idle
    baseline plus a margin by NVML's v2 count, and no compute process. 20: seen in use. 21: could
    not be told.
    """


@dataclass(slots=True)
class Target:
    """The GPUs that a command is about."""

    name: str
    agent: RemoteAgent
    report: GpuReport
    uuids: tuple[str, ...]
    found: tuple[Finding, ...]
    classes: Mapping[int, tuple[str, str]]
    stays: frozenset[int]
    expect: int | None
    margin_bytes: int
    state_dir: Path
    findings: list[Finding] = field(default_factory=list)

    def judge(self, report: GpuReport) -> MemoryVerdict:
        from opsctl.domain.gpu_memory import judge_memory
        from opsctl.steps.baselines import load_baselines

        return judge_memory(
            report,
            self.uuids,
            expect=self.expect,
            baselines=load_baselines(self.state_dir),
            classes=self.classes,
            margin_bytes=self.margin_bytes,
            found=self.found,
        )


@contextmanager
def open_target(app: App, name: str, expect: int | None = None) -> Iterator[Target]:
    """Read the GPUs of a server or a host of the site."""
    from opsctl.session import open_hosts
    from opsctl.site import load_site

    site = load_site(app.site_path)
    with open_hosts(site) as hosts:
        if name in site.servers:
            yield _server_target(app, hosts, name, expect)
        else:
            site.host(name)
            yield _host_target(app, site, hosts, name, expect)


def _server_target(app: App, hosts: Hosts, name: str, expect: int | None) -> Target:
    from opsctl.domain.gpu import MIB
    from opsctl.session import ServerSession
    from opsctl.steps.picture import take_picture

    session = ServerSession(hosts, name)
    for error in hosts.warm(session.host_names()).values():
        raise error
    picture = take_picture(session)
    server = session.server
    return Target(
        name,
        session.gpu_agent,
        picture.report,
        picture.uuids,
        picture.found,
        picture.gpu_classes,
        picture.protected_gpu_pids,
        expect or server.gpus.expect,
        server.stop.margin_mib * MIB,
        app.state(),
    )


def _host_target(app: App, site: Site, hosts: Hosts, name: str, expect: int | None) -> Target:
    from opsctl.agent.read import processes_of, read_gpus
    from opsctl.domain.gpu import IDLE_MARGIN_BYTES, holders_of, resolve_gpus
    from opsctl.domain.process import describe
    from opsctl.domain.protection import Table, View, protections

    agent = hosts.agent(site.host(name).via or name)
    report = read_gpus(agent)
    facts = agent.call("process.scan", timeout_s=30.0)
    table = Table.of(processes_of(facts))
    holders = holders_of(report)
    graphics = frozenset(holder.pid for holder in holders if holder.kind == "G")
    never = protections(table, View(facts["self_pid"], 0, None), graphics)
    classes: dict[int, tuple[str, str]] = {}
    for holder in holders:
        process = table.by_pid.get(holder.pid)
        if process is not None:
            kind = "protected" if holder.pid in never else "foreign"
            classes[holder.pid] = (kind, describe(process))
    uuids, found = resolve_gpus("all", report)
    stays = frozenset(pid for pid, (kind, _) in classes.items() if kind == "protected")
    return Target(
        name,
        agent,
        report,
        uuids,
        found,
        classes,
        stays,
        expect,
        IDLE_MARGIN_BYTES,
        app.state(),
    )


def _expect_option(function: Any) -> Any:
    return click.option(
        "--expect",
        type=click.IntRange(min=1),
        metavar="N",
        help="How many GPUs there must be; fewer is exit 21. Default: the server's gpus.expect.",
    )(function)


@command("status")
@click.argument("target", metavar="SERVER|HOST")
@click.option(
    "--learn",
    is_flag=True,
    help="Record what these cards use now as their idle baseline. Only for cards without a compute "
    "process; memory up to 1 GiB without an owner is taken for reserved (old drivers count it).",
)
@_expect_option
def status(app: App, target: str, learn: bool, expect: int | None) -> int:
    """Show memory, holders, baseline and health of each GPU; exit 21 when they could not be read."""
    from opsctl.domain.gpu_health import judge_health
    from opsctl.steps.gpu_memory import health_data, memory_data

    with open_target(app, target, expect) as cards:
        learned = _learn(cards) if learn else []
        verdict = cards.judge(cards.report)
        health = judge_health(cards.report, cards.uuids)
        data = {**memory_data(verdict), "health": health_data(health), "learned": learned}
        data["driver_version"] = cards.report.driver_version
        code = 21 if verdict.exit_code == 21 else 0
        seen = [finding for finding in verdict.all_findings if finding.code != "held"]
        findings = [*seen, *(item.finding for item in health)]
        document = Document("gpu status", verdict.outcome, code, findings=findings, data=data)
        return emit(app, document, lambda: "\n".join(_status_lines(target, data)))


def _learn(cards: Target) -> list[str]:
    from opsctl.domain.gpu import LARGEST_RESERVED_BYTES
    from opsctl.domain.gpu_health import learn_baselines
    from opsctl.steps.baselines import load_baselines, save_baselines

    known = load_baselines(cards.state_dir)
    learned = learn_baselines(cards.report, cards.stays, known, LARGEST_RESERVED_BYTES)
    learned = {uuid: value for uuid, value in learned.items() if uuid in cards.uuids}
    save_baselines(cards.state_dir, cards.agent.name, learned)
    return sorted(learned)


@command("verify")
@click.argument("target", metavar="SERVER|HOST")
@_expect_option
def verify(app: App, target: str, expect: int | None) -> int:
    """Exit 0 only when every GPU is proven free; 20 when one is in use; 21 when it could not be told.

    Each idle card that is proven free teaches its baseline to the state folder.
    """
    from opsctl.domain.gpu import IDLE_MARGIN_BYTES
    from opsctl.domain.gpu_health import learn_baselines
    from opsctl.steps.baselines import load_baselines, save_baselines

    with open_target(app, target, expect) as cards:
        verdict = cards.judge(cards.report)
        free = {card.uuid for card in verdict.gpus if card.state == "free"}
        known = load_baselines(cards.state_dir)
        learned = learn_baselines(cards.report, cards.stays, known, IDLE_MARGIN_BYTES)
        kept = {uuid: value for uuid, value in learned.items() if uuid in free}
        save_baselines(cards.state_dir, cards.agent.name, kept)
        return _emit_verdict(app, "gpu verify", verdict)


@command("wait")
@click.argument("target", metavar="SERVER|HOST")
@click.option(
    "--timeout", type=click.FloatRange(min=0.0), default=60.0, show_default=True, metavar="S"
)
@_expect_option
def wait(app: App, target: str, timeout: float, expect: int | None) -> int:
    """Wait until every GPU is proven free, at most --timeout seconds; exit codes as for verify."""
    from opsctl.steps.watching import MemoryPoll

    with open_target(app, target, expect) as cards:
        begun = time.monotonic()
        first = cards.judge(cards.report)
        limits = {card.uuid: card.limit_bytes for card in first.gpus}
        if first.exit_code == 0 or not limits:
            return _emit_verdict(app, "gpu wait", first, first, {}, 0.0)
        poll = MemoryPoll(
            cards.agent, cards.report, limits, cards.judge, timeout, waits_for_foreign=True
        )
        poll.start()
        poll.processes_are_gone(timeout)
        verdict = poll.wait()
        return _emit_verdict(
            app, "gpu wait", verdict, first, poll.free_after_s, time.monotonic() - begun
        )


def _emit_verdict(
    app: App,
    name: str,
    verdict: MemoryVerdict,
    before: MemoryVerdict | None = None,
    free_after_s: dict[str, float] | None = None,
    waited_s: float | None = None,
) -> int:
    from opsctl.cli.stop import gpu_lines
    from opsctl.steps.gpu_memory import memory_data, memory_summary

    data = memory_data(verdict, before, free_after_s)
    if waited_s is not None:
        data["waited_s"] = round(waited_s, 3)
    document = Document(
        name, verdict.outcome, verdict.exit_code, findings=verdict.all_findings, data=data
    )
    lines = [memory_summary(verdict), *gpu_lines(data["gpus"])]
    return emit(app, document, lambda: "\n".join(lines))


def _status_lines(target: str, data: dict[str, Any]) -> list[str]:
    from opsctl.cli.render import columns, mib

    rows = []
    for card in data["gpus"]:
        rows.append(
            (
                "?" if card["index"] is None else str(card["index"]),
                card["uuid"][:12],
                card["state"],
                mib(card["used_bytes"]),
                mib(card["reserved_bytes"]),
                "not learned" if card["baseline_bytes"] is None else mib(card["baseline_bytes"]),
                ", ".join(f"{h['pid']} ({h['class'] or '?'})" for h in card["holders"]) or "nobody",
                card["name"] or "unknown",
            )
        )
    head = ("gpu", "uuid", "state", "used", "reserved", "baseline", "holders", "name")
    lines = [f"{target}: driver {data['driver_version'] or 'unknown'}", *columns(rows, head)]
    if data["learned"]:
        lines.append(f"learned the idle baseline of {len(data['learned'])} GPUs")
    return lines


@command("probe")
@click.argument("server")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1.0),
    default=90.0,
    show_default=True,
    metavar="S",
    help="For one run of the check, torch's import included; a card that hangs costs one run.",
)
def probe(app: App, server: str, timeout: float) -> int:
    """Compute on each GPU of SERVER with the server's own interpreter and torch, in a child.

    Allocates 64 MiB, multiplies two matrices of small integers (the CPU's product must be met
    exactly), and copies between neighbours. Finds the card that answers NVML and does not compute.
    Exit 0: all compute; 20: one does not; 21: not measured (no torch, no CUDA, no GPU).
    """
    from dataclasses import asdict

    from opsctl.domain.gpu_compute import compute_findings, exit_code_of
    from opsctl.session import open_session
    from opsctl.site import load_site
    from opsctl.steps.gpu_compute import ComputeProbe

    site = load_site(app.site_path)
    entry = site.server(server)
    if entry.python is None:
        raise UsageError(
            f"server '{server}' has a command and no python, so there is no torch to ask",
            next_step="name its interpreter as `python:`, or use `opsctl gpu verify`",
            subject=server,
        )
    with open_target(app, server) as cards:
        uuids, report_findings = cards.uuids, cards.judge(cards.report).findings
    with open_session(site, server) as session:
        run = ComputeProbe(session.agent, [entry.python], uuids, timeout, entry.cwd)
        found = run.run()
    findings = [*report_findings, *compute_findings(found, run.copies)]
    code = exit_code_of(found, run.copies)
    outcome = {0: "computes", 20: "does-not-compute", 21: "unknown"}[code]
    data = {
        "gpus": [asdict(card) for card in found],
        "copies": [{"from": a, "to": b, "error": error} for a, b, error in run.copies],
    }
    document = Document("gpu probe", outcome, code, findings=findings, data=data)
    return emit(app, document, lambda: "\n".join(_probe_lines(data)))


def _probe_lines(data: dict[str, Any]) -> list[str]:
    lines = []
    for card in data["gpus"]:
        took = "" if card["seconds"] is None else f" in {card['seconds']:.2f} s"
        lines.append(f"  {card['state']:<13} {card['uuid']}{took} {card['detail']}".rstrip())
    good = [copy for copy in data["copies"] if not copy["error"]]
    if data["copies"]:
        lines.append(f"  {len(good)} of {len(data['copies'])} copies between GPUs are good")
    return lines or ["  no GPU was probed"]


for _command in (status, verify, wait, probe):
    gpu.add_command(_command)
