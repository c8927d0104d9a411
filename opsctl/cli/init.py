"""`opsctl init`: from nothing to a site file that is checked, with the servers that run already."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opsctl.cli.app import App, command, emit
from opsctl.output import Document

if TYPE_CHECKING:
    from opsctl.first_look import Machine


@command("init", changes=True)
@click.option(
    "--host",
    "words",
    multiple=True,
    metavar="HOST",
    help="Where servers run: [user@]host[:port], as for ssh. May be given again. Default: this machine.",
)
@click.option("--sudo", "become", is_flag=True, help="Reach the hosts with sudo -n.")
def init(app: App, words: tuple[str, ...], become: bool) -> int:
    """Make an opsctl.yaml: look at this machine or at hosts, and adopt what runs there.

    Finds the GPUs, the running SGLang servers (also in Proxmox containers of the host), and the other
    containers. Nothing is touched there. The file is written to --site, or to ./opsctl.yaml; one that
    exists is never overwritten.

    \b
    Examples:
      opsctl init                                 this machine; asks before it writes
      opsctl init --host root@192.0.2.6 --yes     a Proxmox node or a GPU host
      opsctl init --host ops@gpu1 --sudo --dry-run
    """
    from opsctl.cli.adopt import site_of
    from opsctl.first_look import site_text
    from opsctl.site_edit import write_atomically

    path = app.site_path or Path("opsctl.yaml")
    _refuse_existing(path)
    words = words or _asked(app)
    machines = _look(words, become)
    text = site_text(machines, time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))
    site_of(path, text)  # what is written passes `opsctl config check`
    findings = [finding for machine in machines for finding in machine.findings]
    document = Document("init", "planned", findings=findings, data=_data(path, machines, text))
    if app.dry_run:
        return emit(
            app, document, lambda: f"{_found(machines)}\nwould write {path}:\n{text}".rstrip()
        )
    shown = not app.yes and not app.as_json
    if shown:
        click.echo(f"{_found(machines)}\nto write to {path}:\n{text}", err=True)
    app.confirm(f"write {path}?")
    write_atomically(path, text, None)
    document.outcome = "written"
    head = "" if shown else f"{_found(machines)}\n"
    return emit(app, document, lambda: head + _next(app, path, machines))


def _refuse_existing(path: Path) -> None:
    from opsctl.errors import SafetyRefusal

    if path.exists() or path.is_symlink():
        raise SafetyRefusal(
            f"{path} exists; it is never overwritten",
            next_step="add a server to it with `opsctl adopt`, or name another file with --site",
            code="exists",
            subject=str(path),
        )


def _asked(app: App) -> tuple[str, ...]:
    """Ask where the servers run, where somebody can answer; an empty answer is this machine."""
    if app.yes or app.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return ("local",)
    answer = click.prompt(
        "where do the servers run? [user@]host, or Enter for this machine",
        default="",
        show_default=False,
        err=True,
    )
    return (answer.strip() or "local",)


def _look(words: tuple[str, ...], become: bool) -> list[Machine]:
    from opsctl import adoption_place
    from opsctl.first_look import look
    from opsctl.session import open_hosts
    from opsctl.site import Site

    machines = []
    with open_hosts(Site()) as hosts:
        for word in dict.fromkeys(words):
            local = word in ("local", "localhost")
            place = adoption_place.place_of(hosts.site, word, become=become and not local)
            hosts.site = adoption_place.with_hosts(hosts.site, place.added)
            machines.append(look(hosts, place))
    return machines


def _data(path: Path, machines: list[Machine], text: str) -> dict[str, Any]:
    return {
        "site": str(path),
        "text": text,
        "hosts": [
            {
                "name": machine.name,
                "hostname": machine.host.hostname,
                "gpus": [gpu.uuid for gpu in machine.report.gpus],
                "driver": machine.report.driver_version,
                "containers": None
                if machine.containers is None
                else [
                    {"vmid": c.vmid, "name": c.name, "status": c.status} for c in machine.containers
                ],
            }
            for machine in machines
        ],
        "servers": [
            {
                "name": one.entry.name,
                "host": one.entry.values["host"],
                "pid": one.pid,
                "ns_pid": one.ns_pid,
                "evidence": list(one.evidence),
            }
            for machine in machines
            for one in machine.adopted
        ],
    }


def _found(machines: list[Machine]) -> str:
    from opsctl.first_look import describe_gpus

    lines = []
    for machine in machines:
        lines.append(f"{machine.name} ({machine.host.hostname}): {describe_gpus(machine.report)}")
        if machine.containers is not None:
            names = [f"{one.vmid} ({one.status})" for one in machine.containers]
            lines.append(f"  Proxmox containers: {', '.join(names) or 'none'}")
        for one in machine.adopted:
            lines.append(f"  server {one.entry.name}:")
            lines += [f"    {line}" for line in one.evidence]
        if not machine.adopted:
            lines.append("  no SGLang server runs there that could be adopted")
    return "\n".join(lines)


def _next(app: App, path: Path, machines: list[Machine]) -> str:
    names = [one.entry.name for machine in machines for one in machine.adopted]
    option = f" --site {app.site_path}" if app.site_path else ""
    if names:
        steps = ["status", f"doctor {names[0]}", f"restart {names[0]} --dry-run"]
    else:
        steps = ["config check", f"doctor {machines[0].name}", f"adopt --host {machines[0].name}"]
    rows = [
        f"  {'next:' if n == 0 else '     '} opsctl {step}{option}" for n, step in enumerate(steps)
    ]
    return "\n".join((f"wrote {path}; nothing else was touched", *rows))
