"""Render argument lists from the templates that ship with opsctl; never a shell line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import yaml

from opsctl.errors import ConfigError
from opsctl.resources import folder


def render_list(name: str, values: dict[str, Any], where: Path | None = None) -> list[str]:
    """Return the argument list that template ``name`` makes of ``values``.

    Raises:
        ConfigError: the template uses a value that it was not given, or does not give a list of strings.
    """
    place = where or folder("templates")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(place),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
    environment.filters["q"] = quote
    try:
        text = environment.get_template(f"{name}.argv.yaml.j2").render(values)
        made = yaml.safe_load(text)
    except (jinja2.TemplateError, yaml.YAMLError) as error:
        raise ConfigError(
            f"template {name}: {error}", subject=str(place / f"{name}.argv.yaml.j2")
        ) from error
    if not isinstance(made, list) or not all(isinstance(item, str) for item in made):
        raise ConfigError(f"template {name} does not give a list of strings", subject=str(place))
    return made


def render_text(name: str, values: dict[str, Any], path: Path | None = None) -> str:
    """Return what a text template makes of ``values``: a file of the user's, or ``name`` of those that ship.

    A template sees the values and nothing else: no attributes of objects that would lead further, no files.

    Raises:
        ConfigError: there is no such file, or the template fails.
    """
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    file = path or folder("templates") / name
    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, autoescape=False)
    try:
        return environment.from_string(file.read_text(encoding="utf-8")).render(values)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"template {file.name} cannot be read", subject=str(file)) from error
    except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError) as error:
        raise ConfigError(f"template {file.name}: {error}", subject=str(file)) from error


def quote(value: object) -> str:
    """Return a value as a YAML string in double quotes; only printable ASCII stands as it is."""
    return '"' + "".join(_quoted(letter) for letter in str(value)) + '"'


def _quoted(letter: str) -> str:
    code = ord(letter)
    if 0x20 <= code < 0x7F and letter not in '"\\':
        return letter
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\u{code:04x}"
