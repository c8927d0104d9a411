"""`opsctl ct fix-devices`: the lines that a container's configuration needs for its GPUs, and no other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from opsctl.cli.app import App, command, emit
from opsctl.cli.ct_target import Target, open_target, target_options
from opsctl.errors import AgentError, SafetyRefusal
from opsctl.output import Document, Finding

if TYPE_CHECKING:
    from opsctl.domain.passthrough_fix import Edit

REFUSALS = ("container-locked", "changed-meanwhile", "config-busy")


@command("fix-devices", changes=True)
@target_options
def fix_devices(app: App, target: str, node: str | None) -> int:
    """Add or change the lines of a container's configuration that keep its GPUs from working.

    A major that changed with the kernel, a missing nvidia-uvm, a device that is not passed, a mode that
    shuts an unprivileged container's users out. The file is replaced whole, under the node's own lock,
    after a copy was kept on the node; it is refused while the container is locked or a run is open on a
    server in it. It takes effect with the container's next start, which is yours to choose.

    \b
    Examples:
      opsctl ct fix-devices 129 --dry-run
      opsctl ct fix-devices glm5 --yes

    Exit codes: 0 nothing is left to mend in the configuration; 20 something else keeps a GPU from
    working (it is named); 50 refused.
    """
    from opsctl.domain.passthrough_fix import apply_edits, difference, left_after, plan_edits
    from opsctl.passthrough import read_node

    with open_target(app, target, node) as found:
        vmid = found.place.vmid
        agent = found.hosts.agent(found.place.node_host)
        before = agent.call("ctconf.read", {"vmid": vmid}, timeout_s=15.0)
        facts = read_node(found.hosts.transport(found.place.node_host))
        edits = plan_edits(before["text"], facts, pve_version(found))
        after = apply_edits(before["text"], edits) if edits else before["text"]
        left = left_after(vmid, after, facts)
        data = {**found.base_data(), "path": before["path"], "backup": None}
        data["edits"] = [_edit_data(edit) for edit in edits]
        document = Document(
            "ct fix-devices", "nothing-to-do", 20 if left else 0, findings=left, data=data
        )
        if not edits:
            text = "no line of the configuration is wrong" if left else "the configuration is right"
            return emit(app, document, lambda: f"{found.name}: {text}")
        shown = "\n".join([f"{before['path']}:", *difference(edits)])
        found.refuse_locked(found.container.status())
        refuse_open_run(app, found)
        if app.dry_run:
            document.outcome = "planned"
            return emit(app, document, lambda: shown)
        held = _hold(found)
        if not app.yes and not app.as_json:
            found.talk.say(shown)
        app.confirm(f"write these lines into {before['path']}?")
        data["backup"] = _replace(found, before, after)
        document.findings = [*held, *left, *_restart_needed(found, target)]
        document.outcome = "changed"
        return emit(app, document, lambda: f"{shown}\nwritten; as it was: {data['backup']}")


def pve_version(found: Target) -> tuple[int, int] | None:
    """Return the node's Proxmox VE version, None where it does not tell."""
    done = found.hosts.transport(found.place.node_host).run(["pveversion"], timeout_s=20.0)
    said = re.search(r"pve-manager/(\d+)\.(\d+)", done.stdout.decode(errors="replace"))
    return (int(said[1]), int(said[2])) if said and done.exit_code == 0 else None


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


def _replace(found: Target, before: dict[str, Any], text: str) -> str:
    request = {"vmid": found.place.vmid, "sha256": before["sha256"], "text": text}
    agent = found.hosts.agent(found.place.node_host)
    try:
        return str(agent.call("ctconf.replace", request, timeout_s=30.0)["backup"])
    except AgentError as error:
        if error.code not in REFUSALS:
            raise
        raise SafetyRefusal(
            f"{found.name}: {error.message.rpartition(': ')[2]}; nothing was written",
            next_step="look at what changes it, then run this again",
            code=error.code,
            subject=str(found.place.vmid),
        ) from error


def _restart_needed(found: Target, word: str) -> list[Finding]:
    status = found.container.status().get("status")
    if status != "running":
        return []
    text = "it runs with the devices of its last start; the new lines count from the next one"
    step = f"when its server may stop: opsctl ct reboot {word}, then opsctl ct check {word}"
    return [Finding("restart-needed", str(found.place.vmid), text, step)]


def _edit_data(edit: Edit) -> dict[str, Any]:
    return {"verb": edit.verb, "old": edit.old, "new": edit.new, "why": edit.why}
