"""The published JSON Schemas of what ``--json`` prints: one for each ``opsctl.<command>/<version>``."""

from __future__ import annotations

import importlib
from typing import Any

from opsctl.errors import UsageError

DRAFT = "https://json-schema.org/draft/2020-12/schema"

# document -> "module:function" that returns the schema of its data; imported on use
DATA: dict[str, str] = {
    "adopt/1": "site:adopt",
    "compare/1": "measured:compare",
    "completion/1": "site:completion",
    "config-check/1": "site:config_check",
    "config-example/1": "site:config_example",
    "config-schema/1": "site:config_schema",
    "config-show/1": "site:config_show",
    "ct-check/1": "containers:check",
    "ct-exec/1": "containers:exec_",
    "ct-fix-devices/1": "containers:fix_devices",
    "ct-reboot/1": "containers:change",
    "ct-rollback/1": "containers:rollback",
    "ct-shutdown/1": "containers:change",
    "ct-snapshot/1": "containers:snapshot",
    "ct-start/1": "containers:change",
    "ct-status/1": "containers:status",
    "ct-stop/1": "containers:change",
    "diagnose/1": "measured:diagnose",
    "doctor/1": "machine:doctor",
    "gpu-probe/1": "machine:gpu_probe",
    "gpu-status/1": "machine:gpu_status",
    "gpu-verify/1": "machine:gpu_verify",
    "gpu-wait/1": "machine:gpu_wait",
    "history/1": "runs:history",
    "init/1": "site:init",
    "kill/1": "machine:stop",
    "launch/1": "runs:playbook_run",
    "logs/1": "measured:logs",
    "patch-apply/1": "patches:change",
    "patch-check/1": "patches:check",
    "patch-diff/1": "patches:diff",
    "patch-list/1": "patches:list_",
    "patch-log/1": "patches:log",
    "patch-new/1": "patches:new",
    "patch-revert/1": "patches:change",
    "patch-status/1": "patches:status",
    "patch-test/1": "patches:test",
    "patch-verify/1": "patches:verify",
    "playbook-check/1": "runs:playbook_check",
    "playbook-list/1": "runs:playbook_list",
    "playbook-show/1": "runs:playbook_show",
    "restart/1": "runs:playbook_run",
    "resume/1": "runs:resume",
    "run/1": "runs:playbook_run",
    "schema/1": "site:schema_list",
    "show/1": "runs:show",
    "smoke/1": "measured:smoke",
    "speculation-explain/1": "measured:speculation_explain",
    "speculation-tune/1": "measured:speculation_tune",
    "status/1": "machine:status",
    "stop/1": "machine:stop",
}
FINDING: dict[str, Any] = {
    "type": "object",
    "description": "One thing worth telling.",
    "properties": {
        "code": {"type": "string", "description": "Stable name, for programs."},
        "subject": {"type": "string", "description": "A host, server, GPU UUID, file; or empty."},
        "text": {"type": "string", "description": "One sentence."},
        "next": {"type": "string", "description": "What to do about it; may be empty."},
    },
    "required": ["code", "subject", "text", "next"],
}
EXIT_CODES = (0, 1, 2, 10, 20, 21, 30, 40, 50, 60, 70, 75, 130)


def names() -> list[str]:
    """Return the names of all documents: ``opsctl.stop/1``."""
    return [f"opsctl.{name}" for name in sorted(DATA)]


def find(word: str) -> str:
    """Return the full name that a word means: ``stop``, ``gpu verify``, ``gpu-verify/1``, ``opsctl.stop/1``.

    Raises:
        UsageError: there is no such document.
    """
    import difflib

    short = word.removeprefix("opsctl.").replace(" ", "-")
    for name in (short, f"{short}/1"):
        if name in DATA:
            return f"opsctl.{name}"
    near = difflib.get_close_matches(short, [name.split("/")[0] for name in DATA], 1)
    raise UsageError(
        f"there is no document '{word}'",
        subject=word,
        next_step=f"did you mean '{near[0]}'?" if near else "list them with `opsctl schema`",
    )


def schema_of(word: str) -> dict[str, Any]:
    """Return the JSON Schema of one document. Raises UsageError."""
    name = find(word)
    module, function = DATA[name.removeprefix("opsctl.")].split(":")
    data: dict[str, Any] = getattr(importlib.import_module(f"opsctl.schemas.{module}"), function)()
    definitions = data.pop("$defs", {})
    outcomes = data.pop("outcomes", None)
    outcome: dict[str, Any] = {"type": "string", "description": "How it ended, in a word."}
    if outcomes is not None:
        outcome["enum"] = [*outcomes, "error"]
    return {
        "$schema": DRAFT,
        "title": name,
        "description": "What --json prints. Keys may be added within this version.",
        "type": "object",
        "properties": {
            "schema": {"const": name},
            "outcome": outcome,
            "exit_code": {"enum": list(EXIT_CODES), "description": "The exit code of the process."},
            "run": {"type": ["string", "null"], "description": "Id of the ledger's run."},
            "findings": {"type": "array", "items": {"$ref": "#/$defs/finding"}},
            "data": {"type": "object"},
        },
        "required": ["schema", "outcome", "exit_code", "run", "findings", "data"],
        "if": {"properties": {"outcome": {"const": "error"}}},
        "else": {"properties": {"data": {"$ref": "#/$defs/data"}}},
        "$defs": {"data": data, "finding": FINDING, **definitions},
    }
