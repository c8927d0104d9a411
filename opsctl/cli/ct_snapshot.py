"""`opsctl ct snapshot` and `rollback`: before a change, and back again."""

from __future__ import annotations

import re
import time
from typing import Any

import click

from opsctl.cli.app import App, command, emit
from opsctl.cli.ct_target import Target, open_target, target_options, task_findings
from opsctl.errors import CheckFailed, UsageError
from opsctl.output import Document, Finding

TASK_S = 900.0


@command("snapshot", changes=True)
@target_options
@click.option(
    "--name", metavar="NAME", help="Default: opsctl-DATE-TIME. Other names are never pruned."
)
@click.option("--reason", default="", metavar="WHY", help="Description of the snapshot.")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    metavar="N",
    help="Delete opsctl's own snapshots but the newest N, the new one included.",
)
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="Delete opsctl's own snapshots older than this; with --keep, only those beyond the N.",
)
def snapshot(
    app: App,
    target: str,
    node: str | None,
    name: str | None,
    reason: str,
    keep: int | None,
    older_than: float | None,
) -> int:
    """Take a snapshot of a container, and prune opsctl's own ones (names that begin with opsctl-).

    Old ones are deleted only after the new one is seen. A storage that cannot take snapshots is
    told as the node tells it (exit 20), and nothing is deleted.

    \b
    Example:
      opsctl ct snapshot glm5 --reason "before the patch" --keep 3 --yes
    """
    from opsctl.domain.container import DAY_S, prunable, snapshot_name

    with open_target(app, target, node) as found:
        now_s = time.time()
        made = _checked_name(name) if name else snapshot_name(now_s)
        before = found.container.snapshots()
        if any(item.get("name") == made for item in before):
            raise UsageError(f"{found.name} has a snapshot '{made}' already", subject=made)
        older_s = None if older_than is None else older_than * DAY_S
        new = {"name": made, "snaptime": now_s}
        gone = prunable([*before, new], keep=keep, older_than_s=older_s, now_s=now_s, never=made)
        found.refuse_locked(found.container.status())
        plan = [f"take snapshot {made} of {found.name}"]
        plan += [f"then delete its snapshot {old}" for old in gone]
        data: dict[str, Any] = {**found.base_data(), "snapshot": made, "deleted": []}
        if app.dry_run:
            document = Document("ct snapshot", "planned", data={**data, "plan": plan})
            return emit(app, document, lambda: "\n".join(plan))
        app.confirm("; ".join(plan) + "?")
        return _take(app, found, data, reason, gone)


def _take(app: App, found: Target, data: dict[str, Any], reason: str, gone: list[str]) -> int:
    made = data["snapshot"]
    why = reason or f"taken by opsctl for {', '.join(found.place.servers) or 'no server'}"
    with found.ticking(f"snapshot {made} of {found.name}"):
        result = found.container.snapshot(made, why, timeout_s=TASK_S)
        seen = {item.get("name") for item in found.container.snapshots()}
    if made not in seen:
        raise CheckFailed(
            f"the task ended well, but {found.name} has no snapshot '{made}'",
            code="not-as-wanted",
            subject=made,
        )
    findings = task_findings(found, result.warnings, result.log_tail)
    for old in gone:
        with found.ticking(f"delete snapshot {old} of {found.name}"):
            deleted = found.container.delete_snapshot(old, timeout_s=TASK_S)
        findings += task_findings(found, deleted.warnings, deleted.log_tail)
        data["deleted"].append(old)
    lines = [f"{found.name}: snapshot {made} taken", *(f"  deleted {old}" for old in gone)]
    return emit(
        app,
        Document("ct snapshot", "taken", findings=findings, data=data),
        lambda: "\n".join(lines),
    )


def _checked_name(name: str) -> str:
    if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_-]{1,39}", name) or name == "current":
        raise UsageError(
            f"'{name}' is no snapshot name: a letter, then 1 to 39 of letters, digits, _ and -",
            subject=name,
        )
    return name


@command("rollback", changes=True)
@target_options
@click.argument("name")
@click.option("--start", "start_after", is_flag=True, help="Start the container afterwards.")
def rollback(app: App, target: str, node: str | None, name: str, start_after: bool) -> int:
    """Bring a container back to snapshot NAME. What was written since is lost; it ends stopped.

    A container that was running is stopped by it, and started again only with --start.

    \b
    Example:
      opsctl ct rollback glm5 before-driver --start --dry-run
    """
    with open_target(app, target, node) as found:
        known = [str(item.get("name")) for item in found.container.snapshots()]
        if name not in known:
            raise UsageError(
                f"{found.name} has no snapshot '{name}'",
                next_step=f"it has: {', '.join(known) or 'none'}",
                subject=name,
            )
        before = found.container.status()
        found.refuse_locked(before)
        running = before.get("status") == "running"
        plan = [
            *([f"stop {found.name} at once: it is running"] if running else []),
            f"bring {found.name} back to snapshot {name}; what was written since is lost",
            *(["start it"] if start_after else []),
        ]
        data = {**found.base_data(), "snapshot": name, "before": before.get("status")}
        plan += [finding.text for finding in _ha_findings(found, before)]
        if app.dry_run:
            document = Document("ct rollback", "planned", data={**data, "plan": plan})
            return emit(app, document, lambda: "\n".join(plan))
        findings = found.hold_ports("rollback") if running else []
        findings += _ha_findings(found, before)
        app.confirm("; ".join(plan) + "?")
        with found.ticking(f"rollback of {found.name}"):
            result = found.container.rollback(name, timeout_s=TASK_S)
            findings += task_findings(found, result.warnings, result.log_tail)
            if start_after and found.container.status().get("status") != "running":
                started = found.container.act("start")
                findings += task_findings(found, started.warnings, started.log_tail)
            after = found.container.status().get("status")
        data["after"] = after
        if start_after and after != "running":
            raise CheckFailed(
                f"{found.name} is back at '{name}', but it is {after}",
                next_step=f"opsctl ct start {target}",
                code="not-as-wanted",
                subject=str(found.place.vmid),
            )
        document = Document("ct rollback", "rolled-back", findings=findings, data=data)
        text = f"{found.name}: back at snapshot {name}, {after}"
        return emit(app, document, lambda: text)


def _ha_findings(found: Target, before: dict[str, Any]) -> list[Finding]:
    from opsctl.domain.container import ha_state

    if ha_state(before) != "started":
        return []
    text = "the HA manager starts it again by itself: its state there is started"
    step = f"to keep it down, on the node: ha-manager set ct:{found.place.vmid} --state stopped"
    return [Finding("ha-managed", str(found.place.vmid), text, step)]
