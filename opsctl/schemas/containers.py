"""Documents of containers on a Proxmox node."""

from __future__ import annotations

from opsctl.schemas.build import (
    FLAG,
    NUMBER,
    TEXT,
    WHOLE,
    Schema,
    listing,
    maybe,
    record,
    say,
)

BASE: dict[str, Schema] = {
    "vmid": WHOLE,
    "node": TEXT,
    "servers": say(listing(TEXT), "Servers of the site in it."),
    "api": say(TEXT, "How the node was asked."),
}
PLAN = say(listing(TEXT), "Of a dry run: what would be done.")


def status() -> Schema:
    lock = record(
        {
            "why": TEXT,
            "task": maybe(TEXT),
            "type": maybe(TEXT),
            "user": maybe(TEXT),
            "age_s": maybe(NUMBER),
        }
    )
    task = record({"upid": maybe(TEXT), "type": maybe(TEXT), "user": maybe(TEXT), "age_s": NUMBER})
    kept = record({"name": maybe(TEXT), "taken_s": maybe(NUMBER), "own": FLAG, "description": TEXT})
    data = record(
        {
            **BASE,
            "name": maybe(TEXT),
            "status": maybe(TEXT),
            "uptime_s": maybe(WHOLE),
            "ha_state": maybe(TEXT),
            "lock": say(maybe(lock), "task null: no running task accounts for it."),
            "tasks": listing(task),
            "snapshots": listing(kept),
        }
    )
    return {**data, "outcomes": ["running", "not-running"]}


def change() -> Schema:
    """start, stop, shutdown, reboot."""
    data = record(
        {**BASE, "before": maybe(TEXT), "after": maybe(TEXT)},
        sometimes={"task": maybe(TEXT), "seconds": NUMBER, "plan": PLAN},
    )
    words = ["started", "stopped", "shut-down", "rebooted", "already-running", "already-stopped"]
    return {**data, "outcomes": [*words, "planned"]}


def snapshot() -> Schema:
    data = record({**BASE, "snapshot": TEXT, "deleted": listing(TEXT)}, sometimes={"plan": PLAN})
    return {**data, "outcomes": ["taken", "planned"]}


def rollback() -> Schema:
    data = record(
        {**BASE, "snapshot": TEXT, "before": maybe(TEXT)},
        sometimes={"after": maybe(TEXT), "plan": PLAN},
    )
    return {**data, "outcomes": ["rolled-back", "planned"]}


def exec_() -> Schema:
    data = record(
        {
            "vmid": WHOLE,
            "argv": listing(TEXT),
            "exit_code": say(WHOLE, "Of the program in the container."),
            "stdout": TEXT,
            "stderr": TEXT,
        }
    )
    return {**data, "outcomes": ["done", "failed"]}


def check() -> Schema:
    device = record(
        {"path": TEXT, "node": maybe(TEXT), "config": maybe(TEXT), "inside": maybe(TEXT)}
    )
    driver = record({"module": maybe(TEXT), "library": maybe(TEXT)})
    data = record(
        {
            **BASE,
            "devices": listing(device),
            "driver": say(driver, "Versions: the node's kernel module, the library inside."),
            "unprivileged": FLAG,
            "id_map": maybe(listing(listing(WHOLE))),
            "shm_bytes": maybe(WHOLE),
            "nesting": FLAG,
            "broken": say(listing(TEXT), "Codes of the findings that keep a GPU from working."),
        }
    )
    return {**data, "outcomes": ["ok", "broken", "not-running"]}


def fix_devices() -> Schema:
    edit = record({"verb": TEXT, "old": maybe(TEXT), "new": maybe(TEXT), "why": TEXT})
    data = record(
        {
            **BASE,
            "path": say(TEXT, "The container's configuration on the node."),
            "by": say(TEXT, "How it is written: api, or file (on the node)."),
            "backup": say(maybe(TEXT), "Where the configuration is as it was."),
            "edits": listing(edit),
        }
    )
    return {**data, "outcomes": ["nothing-to-do", "planned", "changed"]}
