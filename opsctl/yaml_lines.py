"""YAML that remembers where everything stood, checked into pydantic models with file and line."""

from __future__ import annotations

import difflib
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from opsctl.errors import ConfigError
from opsctl.records import dataclass
from opsctl.yaml_syntax import syntax_problem

M = TypeVar("M", bound=BaseModel)
Location = tuple[str | int, ...]

MAX_VALUES = 100_000  # aliases of aliases multiply: ten lines can make a billion


@dataclass(slots=True)
class LocatedYaml:
    """Plain data, and the line (from 1) of every key and item in it."""

    path: str
    data: Any
    lines: dict[Location, int] = field(default_factory=dict)

    def line_of(self, location: Location) -> int:
        """Return the line of ``location``, or of its nearest parent that stood in the file."""
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location, 1)


def read_yaml(path: Path) -> LocatedYaml:
    """Read a YAML file.

    Raises:
        ConfigError: it cannot be read, is not YAML, holds a tab, a duplicate key, or is not UTF-8.
    """
    return decode_yaml(read_file(path), str(path))


def read_file(path: Path) -> bytes:
    """Return a file's content. Raises ConfigError when it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: no such file",
            next_step="name another with --site, or make one: opsctl init",
            subject=str(path),
        ) from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", subject=str(path)) from error


def decode_yaml(content: bytes, path: str) -> LocatedYaml:
    """Parse the content of a YAML file. Raises ConfigError as `read_yaml` does."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 (byte {error.start})", subject=path) from error
    return parse_yaml(text, path)


def parse_yaml(text: str, path: str) -> LocatedYaml:
    """Parse YAML text; ``path`` is only for messages. Raises ConfigError as `read_yaml` does."""
    located = LocatedYaml(path, None)
    try:
        node = _compose(text, path)
        located.data = _build(node, (), located) if node is not None else {}
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply", subject=path) from error
    return located


def _compose(text: str, path: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line, problem, mend = syntax_problem(text, error)
        raise ConfigError(
            f"{path}:{line}: {problem}", next_step=f"{mend}, then run this again", subject=path
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}", subject=path) from error
    return node


def _build(node: yaml.Node, location: Location, located: LocatedYaml) -> Any:
    located.lines.setdefault(location, node.start_mark.line + 1)
    if len(located.lines) > MAX_VALUES:
        text = f"{located.path}: more than {MAX_VALUES:,} values, counted with its aliases"
        raise ConfigError(text, subject=located.path)
    if isinstance(node, yaml.MappingNode):
        return _build_mapping(node, location, located)
    if isinstance(node, yaml.SequenceNode):
        return [
            _build(child, (*location, index), located) for index, child in enumerate(node.value)
        ]
    return _value_of(node, located)


def _value_of(node: yaml.Node, located: LocatedYaml) -> Any:
    """Return a scalar's value; a date that is none (2026-02-30) and an unknown tag are ConfigErrors.

    The value is not shown: it may be a secret in the wrong place.
    """
    try:
        return yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        raise ConfigError(
            f"{located.path}:{node.start_mark.line + 1}: this value cannot be read as {kind}",
            next_step="put it in quotes if it is meant as text, then run this again",
            subject=located.path,
        ) from error


def _build_mapping(
    node: yaml.MappingNode, location: Location, located: LocatedYaml
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(
                f"{located.path}:{line}: a key must be one word", subject=located.path
            )
        key = str(key_node.value)
        if key in result:
            first = located.lines[(*location, key)]
            raise ConfigError(
                f"{located.path}:{line}: '{key}' stands twice (first in line {first})",
                next_step=f"put what is under both below one '{key}:', then run this again",
                subject=located.path,
            )
        located.lines[(*location, key)] = line
        result[key] = _build(value_node, (*location, key), located)
    return result


def validate(model: type[M], located: LocatedYaml) -> M:
    """Check located data against a model.

    Raises:
        ConfigError: every problem on a line of its own, each with file, line and the nearest name.
    """
    if not isinstance(located.data, dict):
        raise ConfigError(f"{located.path}:1: this is not a mapping", subject=located.path)
    try:
        return model.model_validate(located.data)
    except ValidationError as error:
        problems = [_problem(model, located, item) for item in error.errors()]
        raise ConfigError(
            "\n".join(dict.fromkeys(problems)),
            next_step="mend the file, then run `opsctl config check`",
            subject=located.path,
        ) from error


def _problem(model: type[BaseModel], located: LocatedYaml, item: Any) -> str:
    location: Location = tuple(item["loc"])
    line = located.line_of(location)
    where = ".".join(str(part) for part in location)
    if item["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(location[-1]), _names_at(model, location[:-1]), 1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        return f"{located.path}:{line}: unknown key '{where}'{hint}"
    if item["type"] == "missing":
        return f"{located.path}:{line}: '{where}' is missing"
    message = str(item["msg"]).removeprefix("Value error, ")
    return (
        f"{located.path}:{line}: {where + ': ' if where else ''}{message[0].lower()}{message[1:]}"
    )


def _names_at(model: type[BaseModel], location: Location) -> list[str]:
    """Return the field names that are known at ``location``, following models, maps and lists."""
    current: Any = model
    for part in location:
        if isinstance(current, type) and issubclass(current, BaseModel):
            found = _field(current, str(part))
            if found is None:
                return []
            current = _model_in(found)
        # a map's key or a list's index: the model inside stays the current one
    if isinstance(current, type) and issubclass(current, BaseModel):
        return [info.alias or name for name, info in current.model_fields.items()]
    return []


def _field(model: type[BaseModel], name: str) -> Any:
    for field_name, info in model.model_fields.items():
        if name in (field_name, info.alias):
            return info.annotation
    # a key of a map whose values are this model
    return model


def _model_in(annotation: Any) -> Any:
    """Return the first pydantic model inside ``annotation``, or the annotation itself."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
    return annotation
