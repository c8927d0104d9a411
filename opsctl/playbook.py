"""Playbooks: which steps a run does, in which order, under which condition; YAML with a schema."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from opsctl.errors import ConfigError, UsageError
from opsctl.resources import folder
from opsctl.secret import Strict
from opsctl.steps import STEPS, option_names
from opsctl.yaml_lines import LocatedYaml, read_yaml, validate

Value = bool | int | float | str
_TYPES: dict[str, type] = {"bool": bool, "int": int, "float": float, "str": str}
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Retry(Strict):
    """Do a step again when it fails or its way breaks; only for steps that are safe to run twice."""

    attempts: int = Field(2, ge=2, le=10, description="How often at most, the first included.")
    wait_s: float = Field(1.0, ge=0, le=300, description="Seconds before the second; doubles.")


class Input(Strict):
    """One value that a run of the playbook can be given with ``--set``."""

    type: Literal["bool", "int", "float", "str"] = Field("bool", description="Type of the value.")
    default: Value | None = Field(
        None, description="Value without --set; without one it must be set."
    )
    about: str = Field("", description="What it does.")

    @model_validator(mode="after")
    def _default_fits(self) -> Input:
        if self.default is not None and type(self.default) is not _TYPES[self.type]:
            raise ValueError(f"default {self.default!r} is no {self.type}")
        return self


class PlaybookStep(Strict):
    """One step of a playbook."""

    step: str = Field(description="Name of the step; `opsctl playbook list` shows them.")
    options: dict[str, Any] = Field(
        default_factory=dict, alias="with", description="Options of the step; $NAME is an input."
    )
    when: str | None = Field(None, description="Name of a bool input, or `not NAME`.")
    always: bool = Field(False, description="Also after a failure, as the last thing that is done.")
    retry: Retry | None = None
    on_failure: Literal["fail", "continue"] = Field(
        "fail", description="fail: the run ends here. continue: it is noted, and the run goes on."
    )


class Playbook(Strict):
    """A named order of steps."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$", description="The same as the file's name.")
    about: str = Field(min_length=1, description="One sentence.")
    inputs: dict[str, Input] = Field(default_factory=dict)
    steps: list[PlaybookStep] = Field(min_length=1)

    def values(self, given: Mapping[str, Value | str]) -> dict[str, Value]:
        """Return the inputs of a run: what is given, typed, and the defaults of the rest.

        Raises:
            UsageError: an unknown name, a word that is no such value, or one that is missing.
        """
        values: dict[str, Value] = {}
        for name in given:
            if name not in self.inputs:
                raise UsageError(
                    f"playbook {self.name} has no input '{name}'",
                    subject=name,
                    next_step=_near(name, list(self.inputs)),
                )
        for name, declared in self.inputs.items():
            value = given.get(name, declared.default)
            if value is None:
                raise UsageError(
                    f"playbook {self.name} needs a value for '{name}'",
                    next_step=f"add --set {name}=...",
                    subject=name,
                )
            values[name] = _typed(name, value, declared.type)
        return values


def find(name: str) -> Path:
    """Return the file of a playbook: a path that ends in .yaml, or a name of those that ship.

    Raises:
        UsageError: there is none.
    """
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    path = folder("playbooks") / f"{name}.yaml"
    if path.is_file():
        return path
    raise UsageError(
        f"there is no playbook '{name}'", subject=name, next_step=_near(name, shipped())
    )


def shipped() -> list[str]:
    """Return the names of the playbooks that ship with opsctl."""
    return sorted(path.stem for path in folder("playbooks").glob("*.yaml"))


def load(path: Path) -> Playbook:
    """Read a playbook and check it whole.

    Raises:
        ConfigError: every problem with file and line: unknown key, unknown step, option or input.
    """
    located = read_yaml(path)
    playbook = validate(Playbook, located)
    problems = [*_problems(playbook, located, path)]
    if problems:
        raise ConfigError(
            "\n".join(f"{path}:{line}: {text}" for line, text in problems),
            subject=str(path),
            next_step=f"mend it, then run `opsctl playbook check {path}`",
        )
    return playbook


def _problems(playbook: Playbook, located: LocatedYaml, path: Path) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    if playbook.name != path.stem:
        found.append(
            (located.line_of(("name",)), f"name: '{playbook.name}' is not the file's name")
        )
    for index, item in enumerate(playbook.steps):
        line = located.line_of(("steps", index, "step"))
        if item.step not in STEPS:
            found.append((line, f"unknown step '{item.step}'; {_near(item.step, list(STEPS))}"))
            continue
        if item.when is not None:
            found += _problem_of_when(
                playbook, item.when, located.line_of(("steps", index, "when"))
            )
        known = option_names(item.step)
        for option, value in item.options.items():
            place = located.line_of(("steps", index, "with", option))
            if option not in known:
                text = f"step {item.step} has no option '{option}'"
                found.append((place, f"{text}; {_near(option, known)}"))
            if _reference(value) is not None and _reference(value) not in playbook.inputs:
                found.append((place, f"there is no input '{_reference(value)}'"))
    return found


def _problem_of_when(playbook: Playbook, when: str, line: int) -> list[tuple[int, str]]:
    name = when.removeprefix("not ").strip()
    declared = playbook.inputs.get(name)
    if declared is None:
        return [(line, f"when: there is no input '{name}'; {_near(name, list(playbook.inputs))}")]
    if declared.type != "bool":
        return [(line, f"when: input '{name}' is {declared.type}, not bool")]
    return []


def holds(when: str | None, values: Mapping[str, Value]) -> bool:
    """Say whether a step's condition holds."""
    if when is None:
        return True
    if when.startswith("not "):
        return not values[when.removeprefix("not ").strip()]
    return bool(values[when.strip()])


def filled(options: Mapping[str, Any], values: Mapping[str, Value]) -> dict[str, Any]:
    """Return a step's options with each ``$NAME`` replaced by that input."""
    return {
        key: values[name] if (name := _reference(value)) is not None else value
        for key, value in options.items()
    }


def _reference(value: Any) -> str | None:
    return value[1:] if isinstance(value, str) and value.startswith("$") else None


def _typed(name: str, value: Value | str, kind: str) -> Value:
    if type(value) is _TYPES[kind]:
        return value
    text = str(value)
    try:
        return _WORDS[text.lower()] if kind == "bool" else _TYPES[kind](text)
    except (KeyError, ValueError) as error:
        raise UsageError(f"'{text}' is no {kind} for '{name}'", subject=name) from error


def _near(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known) or 'none'}"
