"""`opsctl ct`: a container on its Proxmox node: look, start, end, and run something in it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from opsctl.cli.app import App, command, emit
from opsctl.cli.ct_check import check
from opsctl.cli.ct_exec import exec_
from opsctl.cli.ct_fix import fix_devices
from opsctl.cli.ct_snapshot import rollback, snapshot
from opsctl.cli.ct_target import Target, open_target, target_options, task_findings
from opsctl.domain.container import forced_finding, ha_state
from opsctl.errors import CheckFailed, OpsctlError
from opsctl.output import Document, Finding
from opsctl.records import dataclass

if TYPE_CHECKING:
    from opsctl.proxmox_container import Container, TaskResult


@click.group("ct")
def ct() -> None:
    """Containers on a Proxmox node: through its API where the site has one, else through pvesh.

    A container is named by its vmid, by a server in it, or by its host entry.

    \b
    Examples:
      opsctl ct status 129
      opsctl ct check glm5           is the GPU passed through as it must be?
      opsctl ct start glm5 --yes

    A task of the node counts as done only when it ended with OK (or with warnings, which are said)
    and the container is then seen in the wanted state. Locks are told with the task that holds
    them, its user and age; opsctl never clears one.
    """


@command("status")
@target_options
def status(app: App, target: str, node: str | None) -> int:
    """Show a container: state, lock and its holder, running tasks, snapshots. Exit 20: not running.

    \b
    Example:
      opsctl ct status 129 --node pve1
    """
    with open_target(app, target, node) as found:
        seen = found.container.status()
        lock = found.lock(seen)
        tasks = found.container.running_tasks()
        snapshots = found.container.snapshots()
        now_s = time.time()
        running = seen.get("status") == "running"
        findings = []
        if lock is not None:
            findings.append(
                Finding(
                    "container-locked",
                    str(found.place.vmid),
                    f"it is {lock.describe(now_s)}",
                    lock.advice(found.place.vmid),
                )
            )
        if not running:
            text = f"it is {seen.get('status') or 'in an unknown state'}"
            step = f"opsctl ct start {target}"
            findings.append(Finding("container-stopped", str(found.place.vmid), text, step))
        data = {
            **found.base_data(),
            "name": seen.get("name"),
            "status": seen.get("status"),
            "uptime_s": int(seen["uptime"]) if running and seen.get("uptime") else None,
            "lock": lock and _lock_data(lock, now_s),
            "ha_state": ha_state(seen),
            "tasks": [_task_data(task, now_s) for task in tasks],
            "snapshots": [_snapshot_data(item) for item in snapshots],
        }
        outcome, code = ("running", 0) if running else ("not-running", 20)
        document = Document("ct status", outcome, code, findings=findings, data=data)
        return emit(app, document, lambda: "\n".join(_status_lines(found, data)))


def _lock_data(lock: Any, now_s: float) -> dict[str, Any]:
    holder = lock.holder
    return {
        "why": lock.why,
        "task": holder and holder.upid,
        "type": holder and holder.type,
        "user": holder and holder.user,
        "age_s": holder and round(max(0.0, now_s - holder.started_s)),
    }


def _task_data(task: dict[str, Any], now_s: float) -> dict[str, Any]:
    started = float(task.get("starttime") or now_s)
    return {
        "upid": task.get("upid"),
        "type": task.get("type"),
        "user": task.get("user"),
        "age_s": round(max(0.0, now_s - started)),
    }


def _snapshot_data(item: dict[str, Any]) -> dict[str, Any]:
    from opsctl.domain.container import is_own

    return {
        "name": item.get("name"),
        "taken_s": item.get("snaptime"),
        "own": is_own(item),
        "description": str(item.get("description") or "").strip(),
    }


def _status_lines(found: Target, data: dict[str, Any]) -> list[str]:
    from opsctl.cli.render import columns, duration

    up = f", up {duration(data['uptime_s'])}" if data["uptime_s"] is not None else ""
    lines = [f"{found.name}: {data['status']}{up} ({data['name']}; {data['api']})"]
    if data["ha_state"] is not None:
        lines.append(f"  managed by HA, state {data['ha_state']}")
    for task in data["tasks"]:
        age = duration(task["age_s"])
        lines.append(f"  task {task['type']} of {task['user']}, running for {age}")
    rows = []
    for item in data["snapshots"]:
        when = "unknown"
        if item["taken_s"] is not None:
            when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(float(item["taken_s"])))
        rows.append((item["name"], when, "opsctl's" if item["own"] else "", item["description"]))
    return lines + (columns(rows, ("snapshot", "taken", "", "why")) if rows else [])


@command("start", changes=True)
@target_options
def start(app: App, target: str, node: str | None) -> int:
    """Start a container; done when the node's task is OK and the container is seen running.

    \b
    Example:
      opsctl ct start glm5 --yes
    """
    return _change(app, target, node, Change("start", "running"))


@command("stop", changes=True)
@target_options
def stop(app: App, target: str, node: str | None) -> int:
    """Stop a container at once, as pulling its plug does. `ct shutdown` is the clean way.

    \b
    Example:
      opsctl ct stop 129 --dry-run
    """
    return _change(app, target, node, Change("stop", "stopped"))


def _ending(function: Any) -> Any:
    """Declare --timeout and --force."""
    function = click.option(
        "--force",
        is_flag=True,
        help="Stop it at once, as `ct stop` does, when it has not shut down by then.",
    )(function)
    return click.option(
        "--timeout",
        type=click.IntRange(min=1),
        default=60,
        show_default=True,
        metavar="S",
        help="Seconds that the container's own shutdown may take; then the command fails and it runs on.",
    )(function)


@command("shutdown", changes=True)
@target_options
@_ending
def shutdown(app: App, target: str, node: str | None, timeout: int, force: bool) -> int:
    """Shut a container down cleanly; what does not end in time is left running and told (exit 20).

    \b
    Example:
      opsctl ct shutdown glm5 --timeout 120
    """
    return _change(app, target, node, Change("shutdown", "stopped", timeout, force))


@command("reboot", changes=True)
@target_options
@_ending
def reboot(app: App, target: str, node: str | None, timeout: int, force: bool) -> int:
    """Shut a container down cleanly and start it again, with its configuration of now.

    Two tasks of the node, a shutdown and a start: Proxmox's own reboot kills what is not down in time.
    What does not end in time is left running and told (exit 20).

    \b
    Example:
      opsctl ct reboot 129 --yes
    """
    return _change(app, target, node, Change("reboot", "running", timeout, force))


_DONE = {"start": "started", "stop": "stopped", "shutdown": "shut-down", "reboot": "rebooted"}


@dataclass(frozen=True, slots=True)
class Change:
    """What is to become of a container: the verb, the state that ends it, how patiently."""

    verb: str
    wanted: str
    timeout_s: int = 60
    force: bool = False

    @property
    def ends_cleanly(self) -> bool:
        return self.verb in ("shutdown", "reboot")

    def plan(self, name: str, state: Any) -> list[str]:
        lines = [f"{self.verb} {name}, which is {state} now"]
        if self.ends_cleanly:
            then = "stop it at once" if self.force else "leave it running and say so"
            lines.append(f"if it has not shut down after {self.timeout_s} s, {then}")
        return lines

    def act(self, container: Container) -> tuple[TaskResult, list[Finding]]:
        """Do it and wait for the node's tasks; what was forced is told."""
        findings: list[Finding] = []
        if self.ends_cleanly:
            result, forced = container.shut_down(self.timeout_s, force=self.force)
            if forced:
                findings.append(forced_finding(container.vmid, self.timeout_s))
        if self.verb == "reboot":
            result = self._start_again(container)
        elif self.verb != "shutdown":
            result = container.act(self.verb)
        return result, findings

    def _start_again(self, container: Container) -> TaskResult:
        try:
            return container.act("start")
        except OpsctlError as error:
            error.message = f"it was shut down, and did not start again: {error.message}"
            raise


def _change(app: App, word: str, node: str | None, change: Change) -> int:
    verb, wanted = change.verb, change.wanted
    with open_target(app, word, node) as target:
        before = target.container.status()
        state = before.get("status")
        data = {**target.base_data(), "before": state, "after": state}
        if state == wanted and verb != "reboot":
            document = Document(f"ct {verb}", f"already-{wanted}", data=data)
            return emit(app, document, lambda: f"{target.name}: already {wanted}")
        if state != "running" and verb == "reboot":
            raise CheckFailed(
                f"{target.name} is {state}, so it cannot be rebooted",
                next_step=f"opsctl ct start {word}",
                code="container-stopped",
                subject=str(target.place.vmid),
            )
        target.refuse_locked(before)
        if app.dry_run:
            plan = change.plan(target.name, state)
            document = Document(f"ct {verb}", "planned", data={**data, "plan": plan})
            return emit(app, document, lambda: "\n".join(plan))
        findings = target.hold_ports(verb) if state == "running" else []
        app.confirm(f"{verb} {target.name}?")
        begun = time.monotonic()
        then = f"; if it is stopped then: opsctl ct start {word}" if verb == "reboot" else ""
        with target.ticking(f"{verb} of {target.name}", then):
            result, told = change.act(target.container)
            after = target.container.status()
        data |= {"after": after.get("status"), "task": result.upid}
        data["seconds"] = round(time.monotonic() - begun, 3)
        if after.get("status") != wanted:
            raise CheckFailed(
                f"the task of {verb} ended well, but {target.name} is {after.get('status')}",
                next_step=f"opsctl ct status {word}; pvenode task log {result.upid}",
                code="not-as-wanted",
                subject=str(target.place.vmid),
            )
        findings += [*told, *task_findings(target, result.warnings, result.log_tail)]
        document = Document(f"ct {verb}", _DONE[verb], findings=findings, data=data)
        text = f"{target.name}: {_DONE[verb]} in {data['seconds']:.1f} s, seen {wanted}"
        return emit(app, document, lambda: text)


for _command in (
    status,
    start,
    stop,
    shutdown,
    reboot,
    exec_,
    snapshot,
    rollback,
    check,
    fix_devices,
):
    ct.add_command(_command)
