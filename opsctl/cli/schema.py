"""``opsctl schema``: the JSON Schemas of what ``--json`` prints."""

from __future__ import annotations

import json
from typing import Any

import click

from opsctl.cli.app import App, command, emit
from opsctl.output import Document


@command("schema")
@click.argument("name", required=False)
def schema(app: App, name: str | None) -> int:
    """Print the JSON Schema of a command's --json document; without NAME, list them.

    NAME is a command or a document: restart, "gpu verify", opsctl.stop/1. The site file's own schema
    is `opsctl config schema`.

    \b
    Examples:
      opsctl schema
      opsctl schema restart > restart.schema.json
      opsctl schema "gpu verify"
    """
    from opsctl.schemas import find, names, schema_of

    if name is not None:
        made = schema_of(name)
        data: dict[str, Any] = {"names": [find(name)], "schema": made}
        document = Document("schema", "shown", data=data)
        return emit(app, document, lambda: json.dumps(made, indent=2))
    found = names()
    data = {"names": found, "schema": None}
    return emit(app, Document("schema", "shown", data=data), lambda: "\n".join(found))
