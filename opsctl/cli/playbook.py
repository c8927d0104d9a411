"""``opsctl playbook``: list, show and check playbooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opsctl.cli.app import App, command, emit
from opsctl.output import Document

if TYPE_CHECKING:
    from opsctl.playbook import Playbook


@click.group("playbook")
def playbook() -> None:
    """List, show and check playbooks: which steps a run does, in which order.

    \b
    Examples:
      opsctl playbook list
      opsctl playbook show restart
    """


@command("list")
def list_command(app: App) -> int:
    """List the playbooks that ship with opsctl, and the steps that a playbook may use.

    \b
    Example:
      opsctl playbook list
    """
    from opsctl.playbook import find, load, shipped
    from opsctl.steps import STEPS

    books = [load(find(name)) for name in shipped()]
    data = {
        "playbooks": [{"name": book.name, "about": book.about} for book in books],
        "steps": list(STEPS),
    }
    lines = [f"{book.name:<12} {book.about}" for book in books]
    lines += ["", f"steps: {', '.join(STEPS)}"]
    return emit(app, Document("playbook list", "done", data=data), lambda: "\n".join(lines))


@command("show")
@click.argument("name", metavar="PLAYBOOK")
def show_command(app: App, name: str) -> int:
    """Show a playbook with its inputs and what each step does.

    \b
    Example:
      opsctl playbook show restart
    """
    from opsctl.playbook import find, load

    book = load(find(name))
    data = {"playbook": book.model_dump(by_alias=True)}
    return emit(app, Document("playbook show", "done", data=data), lambda: describe(book))


@command("check")
@click.argument("names", nargs=-1, required=True)
def check_command(app: App, names: tuple[str, ...]) -> int:
    """Check playbooks (names, or paths that end in .yaml): exit 10 with file and line on a mistake.

    \b
    Example:
      opsctl playbook check mine.yaml
    """
    from opsctl.playbook import find, load

    checked = [load(find(name)).name for name in names]
    data = {"checked": checked}
    text = "\n".join(f"{name}: sound" for name in names)
    return emit(app, Document("playbook check", "done", data=data), lambda: text)


def describe(book: Playbook) -> str:
    """Return a playbook as a person reads it."""
    from opsctl.steps import make_step

    lines = [f"{book.name}: {book.about}"]
    for name, declared in book.inputs.items():
        lines.append(f"  --set {name}={declared.default!r:<8} {declared.about}")
    for number, item in enumerate(book.steps, 1):
        plain: dict[str, Any] = {
            key: value for key, value in item.options.items() if not str(value).startswith("$")
        }
        step = make_step(item.step, plain)
        notes = [f"when {item.when}"] if item.when else []
        notes += ["always"] if item.always else []
        notes += [f"up to {item.retry.attempts} times"] if item.retry else []
        notes += ["its failure does not end the run"] if item.on_failure == "continue" else []
        tail = f"  ({', '.join(notes)})" if notes else ""
        lines.append(
            f"  {number:>2}. {item.step:<14} {step.effect.value:<8} {step.describe()}{tail}"
        )
    return "\n".join(lines)


playbook.add_command(list_command)
playbook.add_command(show_command)
playbook.add_command(check_command)
