"""`opsctl status`: one screen that says what runs, what holds the GPUs, and what is left over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opsctl.cli.app import App, command, emit
from opsctl.cli.render import columns, duration, mib
from opsctl.domain.counted import counted
from opsctl.open_runs import open_run_of
from opsctl.output import Document, Finding

if TYPE_CHECKING:
    from pathlib import Path

    from opsctl.domain.gpu import GpuVerdict
    from opsctl.domain.process import Judged
    from opsctl.errors import OpsctlError
    from opsctl.facts import Gpu
    from opsctl.status import HostView, Overview, ServerView


@command("status")
@click.argument("target", required=False, metavar="[SERVER|HOST]")
@click.option("--watch", is_flag=True, help="Look again every --every seconds, until Ctrl-C.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.5),
    default=2.0,
    show_default=True,
    metavar="S",
    help="Seconds between two looks of --watch.",
)
def status(app: App, target: str | None, watch: bool, every: float) -> int:
    """Show servers, their processes, GPUs, leftovers and containers in one screen.

    Reads only. What could not be looked at is shown as unknown, and its reason ends the output.

    \b
    Examples:
      opsctl status              everything in the site file
      opsctl status glm5         one server and the hosts that it touches
      opsctl status gpu1 --json  one host, for a script
    """
    from opsctl.session import open_hosts
    from opsctl.site_cache import load_site

    site = load_site(app.site_path)
    with open_hosts(site) as hosts:
        if not watch:
            return _show(app, hosts, target)
        return _watch(app, hosts, target, every)


def _show(app: App, hosts: Any, target: str | None) -> int:
    from opsctl.status import look

    overview = look(hosts, target)
    tell_last_runs(app.state_path(), overview)
    return emit(app, document_of(overview, target), lambda: text_of(overview))


def tell_last_runs(state: Path, overview: Overview) -> None:
    """Add to each server the run that is open on it, and to one that is down how its last run failed."""
    for view in overview.servers:
        found = open_run_of(state, view.name)
        if found is not None:
            view.notes.append(found)
        if view.judgement.state.value in ("stopped", "broken"):
            from opsctl.last_run import last_failed_run

            view.last_failed_run = last_failed_run(state, view.name)


def _watch(app: App, hosts: Any, target: str | None, every: float) -> int:
    import sys
    import time

    from opsctl.cli.streams import is_lost

    while True:
        if sys.stdout.isatty() and not app.as_json:
            click.echo("\x1b[H\x1b[2J", nl=False)
        code = _show(app, hosts, target)
        if is_lost():
            return code
        try:
            time.sleep(every)
        except KeyboardInterrupt:
            return code


def document_of(overview: Overview, target: str | None) -> Document:
    """Return the overview as the document ``opsctl.status/1``."""
    findings = list(_findings(overview, target))
    failed = [view.error for view in overview.hosts if _counts(view, target)]
    failed += [
        view.error for view in overview.servers if view.error and not _is_stopped(view.error)
    ]
    code = failed[0].exit_code if failed and failed[0] else 0
    if code == 0 and any(finding.code.startswith("nvml-") for finding in findings):
        code = 21
    return Document(
        "status",
        "ok" if code == 0 else "incomplete",
        code,
        findings=findings,
        data={
            "hosts": [_host_data(view) for view in overview.hosts],
            "servers": [_server_data(view) for view in overview.servers],
        },
    )


def _is_stopped(error: OpsctlError) -> bool:
    return error.code == "container-stopped"


def _counts(view: HostView, target: str | None) -> bool:
    """Say whether a host's error is news: a container that is known to be stopped is none by itself."""
    return view.error is not None and (target == view.name or not _is_stopped(view.error))


def _findings(overview: Overview, target: str | None) -> list[Finding]:
    found: dict[tuple[str, str], Finding] = {}

    def add(finding: Finding) -> None:
        found.setdefault((finding.subject, finding.text), finding)

    for host in overview.hosts:
        if host.error and _counts(host, target):
            add(Finding(host.error.code, host.name, host.error.message, host.error.next_step or ""))
        elif target == host.name and host.report is not None and host.report.state != "ok":
            from opsctl.domain.gpu_memory import judge_memory

            for finding in judge_memory(host.report, ()).findings:
                if finding.code.startswith("nvml-"):
                    add(Finding(finding.code, host.name, finding.text, finding.next))
    for server in overview.servers:
        for finding in server.notes:
            add(finding)
        if server.memory is not None:
            for finding in server.memory.all_findings:
                if finding.code.startswith(("nvml-", "fewer", "gpu-missing")):
                    subject = finding.subject or server.gpu_host
                    add(Finding(finding.code, subject, finding.text, finding.next))
    return list(found.values())


def _host_data(view: HostView) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "name": view.name,
        "way": view.way,
        "error": view.error.message if view.error else None,
        "host": asdict(view.host) if view.host else None,
        "gpus": asdict(view.report) if view.report else None,
        "container": asdict(view.container) if view.container else None,
    }


def _server_data(view: ServerView) -> dict[str, Any]:
    from dataclasses import asdict

    selection = view.picture.selection if view.picture else None
    return {
        "name": view.name,
        "host": view.host,
        "port": view.port,
        "state": view.judgement.state.value,
        "why": view.judgement.why,
        "machine": view.machine and view.machine.describe(),
        "one_machine": view.machine and view.machine.one,
        "gpu_host": view.gpu_host,
        "processes": [
            _process_data(judged, kind)
            for kind in ("members", "foreign", "protected")
            for judged in getattr(selection, kind, ())
        ],
        "gpus": [
            {
                "uuid": gpu.uuid,
                "index": gpu.index,
                "state": gpu.state.value,
                "used_bytes": gpu.used_bytes,
                "total_bytes": gpu.total_bytes,
                "holders": [
                    {
                        "pid": h.holder.pid,
                        "class": h.kind,
                        "used_bytes": h.holder.used_bytes,
                        "server": h.server,
                    }
                    for h in gpu.holders
                ],
            }
            for gpu in (view.memory.gpus if view.memory else ())
        ],
        "package": asdict(view.package) if view.package else None,
        "leftovers": [asdict(leftover) for leftover in view.leftovers],
        "last_failed_run": asdict(view.last_failed_run) if view.last_failed_run else None,
    }


def _process_data(judged: Judged, kind: str) -> dict[str, Any]:
    from opsctl.domain.overview import role_of

    process = judged.process
    return {
        "pid": judged.pid,
        "ns_pid": process.ns_pids[-1] if process and process.ns_pids else None,
        "start_ticks": process.identity.start_ticks if process else None,
        "class": {"members": "member"}.get(kind, kind),
        "role": role_of(process) if process else None,
        "held_bytes": judged.held_bytes,
        "reason": judged.reason,
        "server": judged.server,
    }


def text_of(overview: Overview) -> str:
    """Return the screen that a person reads."""
    lines: list[str] = []
    for server in overview.servers:
        lines += [*_server_lines(server), ""]
    shown = {gpu.uuid for view in overview.servers if view.memory for gpu in view.memory.gpus}
    for host in overview.hosts:
        uuids = {gpu.uuid for gpu in host.report.gpus} if host.report else set()
        lines += _host_lines(host, brief=uuids <= shown)
        shown |= uuids
    return "\n".join(lines).rstrip()


def _server_lines(view: ServerView) -> list[str]:
    lines = [f"{view.name}: {view.judgement.state.value} ({view.judgement.why})"]
    if view.last_failed_run is not None:
        lines.append(f"  {view.last_failed_run.describe()}")
    package = view.package
    if package is not None:
        version = package.version or f"unknown ({package.error})"
        lines.append(f"  sglang {version} in {package.location or package.interpreter}")
    if view.machine:
        lines.append(f"  on {view.host}, GPUs of {view.gpu_host}: {view.machine.describe()}")
    selection = view.picture.selection if view.picture else None
    if selection is not None and selection.members:
        lines += columns(
            [_process_row(member, selection.members) for member in selection.members],
            ("pid", "in container", "up", "role", "gpu memory", "command"),
        )
    foreign = selection.foreign if selection else ()
    lines += [f"  {line}" for line in _held_by_servers(foreign)]
    for kind, judged in (
        *(("foreign", j) for j in foreign if j.server is None),
        *(("protected", j) for j in (selection.protected if selection else ()) if j.holds),
    ):
        lines.append(f"  {kind} on its GPUs: pid {judged.pid}, {judged.reason}")
    for doubt in selection.ambiguous if selection else ():
        lines.append(f"  in doubt: pid {doubt.pid}, {doubt.reason}")
    if view.memory is not None and view.memory.gpus:
        rows = grouped([_gpu_row(gpu) for gpu in view.memory.gpus])
        lines += columns(rows, ("gpu", "state", "used", "of", "held by", "name"))
    for leftover in view.leftovers:
        owner = "" if leftover.owner_pid is None else f", pid {leftover.owner_pid}"
        alive = {True: " alive", False: " dead", None: ""}[leftover.owner_alive]
        size = "" if leftover.size_bytes is None else f", {mib(leftover.size_bytes)}"
        lines.append(f"  {leftover.kind}: {leftover.path}{owner}{alive}{size}")
    return lines


def _held_by_servers(foreign: tuple[Judged, ...]) -> list[str]:
    """Return one line for each other server of the site that holds this one's GPUs."""
    found: dict[str, list[int]] = {}
    for judged in foreign:
        if judged.server is not None:
            found.setdefault(judged.server, []).append(judged.pid)
    return [
        f"its GPUs are held by server {name} of this site: pid {', '.join(map(str, pids))}"
        for name, pids in found.items()
    ]


def holder_words(pid: int, kind: str | None, server: str | None) -> str:
    """Return who holds a GPU, for a table: ``pid 218 (server standin)``."""
    return f"pid {pid} ({f'server {server}' if server else kind or 'unknown'})"


def _process_row(member: Judged, members: tuple[Judged, ...]) -> tuple[str, ...]:
    from opsctl.domain.overview import role_of
    from opsctl.domain.process import shorten

    process = member.process
    if process is None:
        return (str(member.pid), "-", "unknown", "unknown", mib(member.held_bytes), member.reason)
    inner = str(process.ns_pids[-1]) if len(process.ns_pids) > 1 else "-"
    return (
        str(member.pid),
        inner,
        duration(process.age_s),
        role_of(process) + (" (zombie)" if process.is_dead else ""),
        mib(member.held_bytes) if member.holds else "-",
        shorten(process.argv, 70),
    )


def _gpu_row(gpu: GpuVerdict) -> tuple[str, ...]:
    holders = ", ".join(holder_words(h.holder.pid, h.kind, h.server) for h in gpu.holders)
    return (
        "-" if gpu.index is None else str(gpu.index),
        gpu.state.value,
        mib(gpu.used_bytes),
        mib(gpu.total_bytes),
        holders or ("-" if gpu.state.value == "free" else "nobody that NVML names"),
        gpu.name or "unknown",
    )


def _host_lines(view: HostView, *, brief: bool) -> list[str]:
    if view.container is not None:
        state = view.container.status or "unknown"
        lock = f", locked ({view.container.lock})" if view.container.lock else ""
        name = f" '{view.container.name}'" if view.container.name else ""
        where = f"container {view.container.vmid}{name} on {view.container.node}"
        return [f"{view.name}: {where}: {state}{lock}"]
    if view.error is not None:
        return [f"{view.name}: unknown ({view.way})"]
    lines = [f"{view.name}: {view.way}, {_host_words(view)}"]
    if view.report is not None:
        lines[0] += f"; {_report_words(view)}"
        if not brief and view.report.gpus:
            rows = grouped([_plain_gpu_row(gpu) for gpu in view.report.gpus])
            lines += columns(rows, ("gpu", "read", "used", "of", "held by", "name"))
    return lines


def _host_words(view: HostView) -> str:
    host = view.host
    if host is None:
        return "unknown"
    kind = f"{host.container} container" if host.container else "host"
    init = "systemd" if host.systemd else "no systemd"
    return f"{kind} {host.hostname}, kernel {host.kernel}, {init}, boot {host.boot_id[:8]}"


def _report_words(view: HostView) -> str:
    report = view.report
    assert report is not None
    if report.state == "ok":
        driver = report.driver_version or "unknown"
        return f"{counted(len(report.gpus), 'GPU')}, driver {driver}, CUDA {report.cuda_version or 'unknown'}"
    return f"GPUs unknown: {report.state}" + (f" ({report.detail})" if report.detail else "")


def grouped(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Fold neighbouring GPUs that show the same into one row: ``0-7  free  0 MiB ...``."""
    folded: list[tuple[list[str], tuple[str, ...]]] = []
    for index, *rest in rows:
        if folded and folded[-1][1] == tuple(rest):
            folded[-1][0].append(index)
        else:
            folded.append(([index], tuple(rest)))
    return [
        (numbers[0] if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}", *rest)
        for numbers, rest in folded
    ]


def _plain_gpu_row(gpu: Gpu) -> tuple[str, ...]:
    if gpu.processes is None:
        holders = "unknown"
    else:
        holders = ", ".join(f"pid {p.pid} ({p.kind})" for p in gpu.processes) or "-"
    return (
        str(gpu.index),
        gpu.read.value,
        mib(gpu.used_bytes),
        mib(gpu.total_bytes),
        holders,
        gpu.name or "unknown",
    )
