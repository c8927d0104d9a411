"""``opsctl schema``: the JSON Schemas of what ``--json`` prints."""

from __future__ import annotations

import json

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
    from opsctl.schemas import names, schema_of

    if name is not None:
        click.echo(json.dumps(schema_of(name), indent=2))
        return 0
    found = names()
    return emit(app, Document("schema", "shown", data={"names": found}), lambda: "\n".join(found))
