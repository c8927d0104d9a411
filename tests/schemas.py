"""Check real documents against the published schemas; a key that no schema names is a mistake too."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema

from opsctl.schemas import schema_of


def check_document(document: dict[str, Any]) -> None:
    """Fail unless a document is what its schema says, and nothing else."""
    errors = sorted(validator(document["schema"]).iter_errors(document), key=lambda e: list(e.path))
    told = [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in errors]
    assert not told, f"{document['schema']} ({document['outcome']}): " + "; ".join(told)


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(closed(schema_of(name)))


def closed(schema: Any) -> Any:
    """Return a schema in which objects with properties take no others; consumers must not do so."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if "required" in schema and "properties" in schema:
        made.setdefault("additionalProperties", False)
    return made


def read_document(text: str | bytes) -> dict[str, Any]:
    """Return the document that a command printed, checked against its schema."""
    document: dict[str, Any] = json.loads(text)
    check_document(document)
    return document
