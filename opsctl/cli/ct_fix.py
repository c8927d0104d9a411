"""`opsctl ct fix-devices`: the lines that a container's configuration needs for its GPUs, and no other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from opsctl.cli.app import App, command, emit
from opsctl.cli.ct_target import Target, open_target, target_options
from opsctl.errors import SafetyRefusal, TransportError
from opsctl.output import Document, Finding

if TYPE_CHECKING:
    from opsctl.domain.passthrough_fix import Edit


@command("fix-devices", changes=True)
@target_options
def fix_devices(app: App, target: str, node: str | None) -> int:
    """Add or change the lines of a container's configuration that keep its GPUs from working.

    A major that changed with the kernel, a missing nvidia-uvm, a device that is not passed, a mode that
    shuts an unprivileged container's users out. devN lines are set through the API where the site logs in
    to it as root@pam with a password: Proxmox lets nobody else, and no token. Else the file on the node is
    replaced whole (as root, or `become: sudo`), under the node's own lock, after a copy was kept there.
    It is refused while the container is locked or a run is open on a server in it. What a running container
    takes only at its next start is told; that start is yours to choose.

    \b
    Examples:
      opsctl ct fix-devices 129 --dry-run
      opsctl ct fix-devices glm5 --yes

    Exit codes: 0 nothing is left to mend in the configuration; 20 something else keeps a GPU from
    working (it is named); 30 it is not allowed to (what to do is said); 50 refused.
    """
    from opsctl.domain.passthrough_fix import apply_edits, difference, left_after, plan_edits
    from opsctl.passthrough import read_node
    from opsctl.passthrough_config import open_configuration

    with open_target(app, target, node) as found:
        facts = read_node(found.hosts.transport(found.place.node_host))
        version = pve_version(found)
        before = open_configuration(
            found.hosts, found.place, found.container, lambda text: plan_edits(text, facts, version)
        )
        edits = plan_edits(before.text, facts, version)
        after = apply_edits(before.text, edits) if edits else before.text
        left = left_after(found.place.vmid, after, facts)
        data = {**found.base_data(), "path": before.path, "by": before.by, "backup": None}
        data["edits"] = [_edit_data(edit) for edit in edits]
        document = Document(
            "ct fix-devices", "nothing-to-do", 20 if left else 0, findings=left, data=data
        )
        if not edits:
            text = "no line of the configuration is wrong" if left else "the configuration is right"
            return emit(app, document, lambda: f"{found.name}: {text}")
        shown = "\n".join([f"{before.path}:", *difference(edits)])
        found.refuse_locked(found.container.status())
        refuse_open_run(app, found)
        refusal = before.refusal(edits)
        if app.dry_run:
            document.outcome = "planned"
            document.findings = [*([refusal] if refusal else []), *left]
            return emit(app, document, lambda: shown)
        if refusal is not None:
            raise TransportError(
                refusal.text, next_step=refusal.next, code=refusal.code, subject=refusal.subject
            )
        held = _hold(found)
        if not app.yes and not app.as_json:
            found.talk.say(shown)
        way = f" through {found.container.api.name}" if before.by == "api" else ""
        app.confirm(f"write these lines into {before.path}{way}?")
        data["backup"] = before.write(edits, after)
        document.findings = [*held, *left, *_restart_needed(found, target, before.by, edits)]
        document.outcome = "changed"
        kept = f"; as it was: {data['backup']}" if data["backup"] else way
        return emit(app, document, lambda: f"{shown}\nwritten{kept}")


def pve_version(found: Target) -> tuple[int, int] | None:
    """Return the node's Proxmox VE version, None where it does not tell."""
    answer = found.container.api.call("GET", "/version") or {}
    said = re.match(r"(\d+)\.(\d+)", str(answer.get("version", "")))
    return (int(said[1]), int(said[2])) if said else None


def refuse_open_run(app: App, found: Target) -> None:
    """Refuse while the ledger has an open run on a server in this container. Raises SafetyRefusal."""
    from opsctl.ledger import Ledger

    ledger = Ledger.open(app.state())
    try:
        rows = [row for row in ledger.runs(open_only=True) if row.server in found.place.servers]
    finally:
        ledger.close()
    if rows:
        raise SafetyRefusal(
            f"run {rows[0].id} of {rows[0].who} is open on server {rows[0].server} in {found.name}",
            next_step=f"wait for it, or if it was cut: opsctl resume {rows[0].id}",
            code="run-open",
            subject=str(found.place.vmid),
        )


def _hold(found: Target) -> list[Finding]:
    """Take the port locks of the servers inside, where the container runs."""
    if found.container.status().get("status") != "running":
        return []
    return found.hold_ports("fix-devices")


def _restart_needed(found: Target, word: str, by: str, edits: list[Edit]) -> list[Finding]:
    """Tell where the running container has not got it all: the API gives it new devices at once."""
    from opsctl.passthrough_config import still_pending

    if found.container.status().get("status") != "running":
        return []
    waiting = still_pending(found.container, edits) if by == "api" else []
    if by == "api" and not waiting:
        return []
    which = f"{', '.join(waiting)} counts" if waiting else "the new lines count"
    text = f"it runs with the devices of its last start; {which} from the next one"
    step = f"when its server may stop: opsctl ct reboot {word}, then opsctl ct check {word}"
    return [Finding("restart-needed", str(found.place.vmid), text, step)]


def _edit_data(edit: Edit) -> dict[str, Any]:
    return {"verb": edit.verb, "old": edit.old, "new": edit.new, "why": edit.why}
