"""`opsctl ct check`: are the GPUs passed through to a container as they must be? Read only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opsctl.cli.app import App, command, emit
from opsctl.cli.ct_target import Target, open_target, target_options
from opsctl.output import Document, Finding

if TYPE_CHECKING:
    from opsctl.passthrough import Examined

MENDABLE = {"device-not-passed", "no-gpu-passed", "device-not-allowed", "device-no-access"}


@command("check")
@target_options
def check(app: App, target: str, node: str | None) -> int:
    """Compare the GPU devices of the node, of the container's configuration, and inside it.

    Device majors change with the kernel, nvidia-uvm is loaded at its first use, and a driver update
    on the node leaves the container's library behind: all of them look like GPU trouble. Each finding
    names the line to add; nothing is changed.

    Exit codes: 0 as it must be (doubts are told); 20 something keeps a GPU from working;
    21 the container does not run, so its inside could not be looked at.

    \b
    Example:
      opsctl ct check glm5
    """
    from opsctl.passthrough import examine

    with open_target(app, target, node) as found:
        seen = examine(found.hosts, found.place, found.container)
        findings = [*seen.judged.broken, *seen.judged.doubts]
        outcome, code = ("broken", 20) if seen.judged.broken else ("ok", 0)
        if seen.inside is None:
            text = f"it is {seen.status}: only the node and the configuration were looked at"
            step = f"opsctl ct start {target}, then check again"
            findings.append(Finding("container-stopped", str(found.place.vmid), text, step))
            outcome, code = ("broken", 20) if seen.judged.broken else ("not-running", 21)
        data = _data(found, seen)
        document = Document("ct check", outcome, code, findings=findings, data=data)
        return emit(app, document, lambda: "\n".join(_lines(found, data, outcome)))


def _data(found: Target, seen: Examined) -> dict[str, Any]:
    node, config, inside, judged = seen.node, seen.config, seen.inside, seen.judged
    return {
        **found.base_data(),
        "devices": [
            {"path": row.path, "node": row.node, "config": row.config, "inside": row.inside}
            for row in judged.rows
        ],
        "driver": {"module": node.module_version, "library": inside and inside.library_version},
        "unprivileged": config.unprivileged,
        "id_map": [list(row) for row in inside.id_map] if inside else None,
        "shm_bytes": inside and inside.shm_bytes,
        "nesting": config.nesting,
        "broken": [finding.code for finding in judged.broken],
    }


def _lines(found: Target, data: dict[str, Any], outcome: str) -> list[str]:
    from opsctl.cli.render import columns, mib

    words = {
        "ok": "the GPUs are passed through as they must be",
        "broken": f"{len(data['broken'])} things keep a GPU from working",
        "not-running": "it does not run; nothing wrong on the node and in the configuration",
    }
    rows = [
        (row["path"], row["node"] or "-", row["config"] or "-", row["inside"] or "-")
        for row in data["devices"]
    ]
    driver = data["driver"]
    kind = "unprivileged" if data["unprivileged"] else "privileged"
    nesting = "on" if data["nesting"] else "off"
    last = f"  driver: module {driver['module'] or 'unknown'}, library {driver['library'] or 'unknown'}"
    last += f"; {kind}; /dev/shm {mib(data['shm_bytes'])}; nesting {nesting}"
    head = f"{found.name}: {words[outcome]}"
    lines = [head, *columns(rows, ("device", "node", "passed by", "inside")), last]
    if MENDABLE & set(data["broken"]):
        lines.append(f"  the lines can be written: opsctl ct fix-devices {found.word} --dry-run")
    return lines
