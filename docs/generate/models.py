"""Tables of pydantic models: key, value, default, meaning."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined


def models_of(top: type[BaseModel]) -> list[tuple[type[BaseModel], str]]:
    """Return the models that a model leads to, itself first, each once, with a title."""
    found: dict[type[BaseModel], str] = {top: "Top level"}
    queue = [top]
    while queue:
        model = queue.pop(0)
        for name, field in model.model_fields.items():
            for inner in _inner_models(field.annotation):
                if inner not in found:
                    found[inner] = inner.__name__ if inner.__name__ == "SecretRef" else name
                    queue.append(inner)
    return list(found.items())


def _inner_models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _inner_models(part)


def title_of(title: str) -> str:
    singular = {
        "Top level": "Top level",
        "hosts": "A host",
        "servers": "A server",
        "SecretRef": "A secret",
    }
    return singular.get(title, f"`{title}`")


def model_table(model: type[BaseModel], title: str) -> str:
    rows = [
        f"| `{field.alias or name}` | {_type(field.annotation)} | {_default(field)} | "
        f"{cell(field.description or _about(field))} |"
        for name, field in model.model_fields.items()
    ]
    about = (model.__doc__ or "").strip().splitlines()[0]
    table = "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows])
    return f"\n## {title_of(title)}\n\n{about}\n\n{table}\n"


def _about(field: FieldInfo) -> str:
    inner = next(_inner_models(field.annotation), None)
    return (inner.__doc__ or "").strip().splitlines()[0] if inner else ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**needed**"
    value = field.default
    if value is PydanticUndefined:
        value = field.default_factory() if field.default_factory else None  # type: ignore[call-arg]
    if value is None or value == {} or value == []:
        return ""
    if isinstance(value, BaseModel):
        return "see there"
    return f"`{json.dumps(value)}`"


def _type(annotation: Any) -> str:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(one) for one in args if one is not type(None)))
    if origin is typing.Annotated:
        return _type(args[0])
    if origin is typing.Literal:
        return " or ".join(f"`{json.dumps(one).strip(chr(34))}`" for one in args)
    if origin is list:
        return f"list of {_type(args[0])}"
    if origin is dict:
        return f"map of name to {_type(args[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "block"
    known = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}
    return known.get(annotation, "any value")


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
