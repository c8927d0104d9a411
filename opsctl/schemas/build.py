"""Build JSON Schemas: small words for objects and lists, and the schema of a dataclass from its types."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
ANY: Schema = {}
_PLAIN: dict[Any, Schema] = {str: TEXT, float: NUMBER, int: WHOLE, bool: FLAG, Any: ANY}


def say(schema: Schema, description: str) -> Schema:
    """Return a schema with a description."""
    return {**schema, "description": description}


def one_of(*values: str | None) -> Schema:
    """Return the schema of one of these words."""
    return {"enum": list(values)}


def maybe(schema: Schema) -> Schema:
    """Return a schema that null fits too; null means: could not be read, or there is none."""
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}


def listing(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def mapping(schema: Schema = ANY, description: str = "") -> Schema:
    """Return the schema of an object with any keys."""
    made: Schema = {"type": "object", "additionalProperties": schema or True}
    return say(made, description) if description else made


def record(
    properties: Mapping[str, Schema],
    *,
    sometimes: Mapping[str, Schema] | None = None,
    about: str = "",
) -> Schema:
    """Return the schema of an object: ``properties`` are always there, ``sometimes`` only at times."""
    made: Schema = {
        "type": "object",
        "properties": {**properties, **(sometimes or {})},
        "required": list(properties),
    }
    return say(made, about) if about else made


def of_dataclass(kind: type[Any]) -> Schema:
    """Return the schema of a dataclass as ``asdict`` writes it."""
    hints = _hints(kind)
    return record({field.name: of_type(hints[field.name]) for field in dataclasses.fields(kind)})


def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def of_type(hint: Any) -> Schema:
    """Return the schema of a type hint.

    Raises:
        TypeError: a type that no schema is known for.
    """
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        inner = [part for part in parts if part is not type(None)]
        schema = of_type(inner[0]) if len(inner) == 1 else {"anyOf": [of_type(p) for p in inner]}
        return maybe(schema) if type(None) in parts else schema
    if origin is typing.Literal:
        return one_of(*parts)
    if origin in (list, tuple, frozenset):
        return listing(of_type(parts[0]))
    if origin in (dict, Mapping, typing.Mapping):
        return mapping(of_type(parts[1]))
    if inspect.isclass(hint) and issubclass(hint, Enum):
        return one_of(*(item.value for item in hint))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return of_dataclass(hint)
    raise TypeError(f"no schema for {hint!r}")
