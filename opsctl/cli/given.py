"""Next steps as they can be pasted: with the ``--site``, ``--state`` and server of this command line."""

from __future__ import annotations

import re
import shlex
from dataclasses import field, replace
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from opsctl.records import dataclass

if TYPE_CHECKING:
    from opsctl.output import Finding

GROUPS = ("config", "ct", "gpu", "patch", "playbook", "speculation")
OPTIONS = {"site_path": "--site", "state_dir": "--state"}
NAMES = ("server", "target")  # arguments that name a server


@dataclass(slots=True)
class Given:
    """What this command line said that the next one has to say too."""

    options: dict[str, str] = field(
        default_factory=dict
    )  # --site, --state; not what a variable says
    server: str | None = None
    node: str | None = None  # --node, of the `ct` commands alone


_given = Given()


def forget() -> None:
    """Begin a command line: nothing is given yet."""
    _given.options = {}
    _given.server = _given.node = None


def take(context: click.Context) -> None:
    """Keep what the command line of this context gave."""
    said = {
        word: str(context.params[name])
        for name, word in OPTIONS.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    _given.options = said
    named = next((context.params[n] for n in NAMES if context.params.get(n)), None)
    _given.server = named if isinstance(named, str) else None
    _given.node = context.params.get("node")


def runnable(text: str) -> str:
    """Return ``text`` with each ``opsctl COMMAND`` in it as it has to be typed here."""
    if "opsctl " not in text or not (_given.options or _given.server or _given.node):
        return text
    return _pattern().sub(_complete, text)


def runnable_finding(finding: Finding) -> Finding:
    """Return a finding whose next step can be pasted."""
    return replace(finding, text=runnable(finding.text), next=runnable(finding.next))


def _pattern() -> re.Pattern[str]:
    from opsctl.cli import COMMANDS

    plain = "|".join(sorted(set(COMMANDS) - set(GROUPS), key=len, reverse=True))
    groups = "|".join(GROUPS)
    return re.compile(rf"\bopsctl (?:(?:{groups}) [a-z][a-z-]*|(?:{plain}))\b(?![-=.])[^`;,)\n]*")


def _complete(found: re.Match[str]) -> str:
    """Return one command with what was given behind it; tests see to it that it ends where it ends."""
    text = found.group(0)
    if _given.server:
        text = re.sub(r"\bSERVER\b", _given.server, text)
    said = text.rstrip(". '")
    more = [
        f" {word} {shlex.quote(value)}"
        for word, value in _options(text).items()
        if not re.search(rf"{word}\b", said)
    ]
    ours, dashes, theirs = said.partition(" -- ")  # what follows belongs to the program that is run
    return "".join([ours, *more, dashes, theirs, text[len(said) :]])


def _options(text: str) -> dict[str, str]:
    """Return what a command must say that stands in ``text``."""
    if _given.node and text.startswith("opsctl ct "):
        return {"--node": _given.node, **_given.options}
    return _given.options
