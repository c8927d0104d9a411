"""What every command shares: the global options, the way a result is shown, the way an error is."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import click

from opsctl.cli import given
from opsctl.errors import Interrupted, OpsctlError, SafetyRefusal
from opsctl.output import Document, Finding, document_of_error
from opsctl.records import dataclass

COMPLETE = "_OPSCTL_COMPLETE"  # click's name for it: the variable by which a shell asks for words
FOREIGN = (
    "completion",
    "config example",
    "config schema",
    "config show",
    "ct exec",
    "logs",
    "patch diff",
    "schema",
    "show",
)  # others wrote their text
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class App:
    """The global options of one command line."""

    site_path: Path | None = None
    state_dir: Path | None = None
    as_json: bool = False
    yes: bool = False
    dry_run: bool = False

    def state(self) -> Path:
        """Return the folder of the ledger and learned baselines; made with mode 0700 on first use."""
        path = self.state_path()
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise SafetyRefusal(
                f"the state folder cannot be made: {error.strerror}",
                subject=str(path),
                next_step="make room there or mend its rights, or name another folder with --state",
                code="ledger-not-writable",
            ) from error
        return path

    def state_path(self) -> Path:
        """Return that folder, which may not exist yet."""
        return self.state_dir or _default_state_dir()

    def confirm(self, question: str) -> None:
        """Ask on a terminal; without one, go on only with ``--yes``.

        Raises:
            SafetyRefusal: exit 50, when the answer is no or there is nobody to ask.
            Interrupted: exit 130, on Ctrl-C, which is a no at once.
        """
        if self.yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise SafetyRefusal(
                "this changes something, and there is no terminal to ask on",
                next_step="look at the plan with --dry-run, then run it again with --yes",
                code="not-confirmed",
            )
        from opsctl.cli.signals import ending_at_once

        try:
            with ending_at_once():
                agreed = click.confirm(question, default=False, err=True)
        except click.Abort as error:
            click.echo(err=True)
            raise Interrupted("interrupted at the question; nothing was changed") from error
        if not agreed:
            raise SafetyRefusal("not confirmed; nothing was changed", code="not-confirmed")


def _default_state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "opsctl"


LONGEST_S = 1e9  # as in site.py: 30 years


class _Finite(click.FloatRange):
    """A range that NaN and infinity are not in, nor a time that no clock reaches: no wait with them ends."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{number} is no number of seconds or the like", param, ctx)
        if number > LONGEST_S:
            self.fail(f"{number:g} is more than {LONGEST_S:g}", param, ctx)
        return number


def command(name: str, *, changes: bool = False, **attrs: Any) -> Callable[[F], click.Command]:
    """Declare a command: a click command with opsctl's global options, called with an ``App`` first.

    Args:
        name: the command's last word.
        changes: True for a command that changes something; it then takes ``--dry-run`` and ``--yes``.
        attrs: further arguments of ``click.command``.
    """

    def decorate(function: F) -> click.Command:
        @functools.wraps(function)
        def call(
            site_path: Path | None,
            state_dir: Path | None,
            as_json: bool,
            yes: bool = False,
            dry_run: bool = False,
            **kwargs: Any,
        ) -> Any:
            given.take(click.get_current_context())
            return function(App(site_path, state_dir, as_json, yes, dry_run), **kwargs)

        made: click.Command = click.command(name, **attrs)(call)  # type: ignore[no-untyped-call]
        made.params.extend(_global_options(changes))
        for param in made.params:
            if isinstance(param.type, click.FloatRange):
                limits = param.type
                param.type = _Finite(limits.min, limits.max, limits.min_open, limits.max_open)
        if COMPLETE in os.environ:  # a shell asks: only then the names are worth their import
            from opsctl.cli.completion import name_parameters

            name_parameters(made)
        return made

    return decorate


def _global_options(changes: bool) -> list[click.Parameter]:
    options: list[click.Parameter] = [
        click.Option(
            ["--site", "site_path"],
            type=click.Path(path_type=Path, dir_okay=False),
            envvar="OPSCTL_SITE",
            show_envvar=True,
            help="Site file. Default: ./opsctl.yaml, then ~/.config/opsctl/opsctl.yaml, then this machine.",
        ),
        click.Option(
            ["--state", "state_dir"],
            type=click.Path(path_type=Path, file_okay=False),
            help="Folder of the ledger. Default: opsctl in $XDG_STATE_HOME or ~/.local/state.",
        ),
        click.Option(
            ["--json", "as_json"], is_flag=True, help="Print one JSON document on stdout."
        ),
    ]
    if changes:
        options += [
            click.Option(["--yes", "-y"], is_flag=True, help="Do not ask."),
            click.Option(
                ["--dry-run"], is_flag=True, help="Read for real, show the plan, change nothing."
            ),
        ]
    return options


def emit(app: App, document: Document, text: Callable[[], str]) -> int:
    """Print the result, as JSON or as text, and return its exit code.

    The findings go to stderr in text mode; ``text`` is called only when text is wanted.
    """
    document.findings = [given.runnable_finding(finding) for finding in document.findings]
    if app.as_json:
        print_result(document.to_json())
        return document.exit_code
    body = text()
    if body:
        print_result(body if document.command in FOREIGN else given.runnable(body))
    for finding in document.unique_findings:
        click.echo(describe_finding(finding), err=True)
    return document.exit_code


def print_result(text: str) -> None:
    """Print to stdout; a reader that left (``| head -1``) does not change what the command ends with."""
    from opsctl.cli.streams import ResultLostError

    try:
        click.echo(text)
    except ResultLostError:
        pass  # see streams.settle


def describe_finding(finding: Finding) -> str:
    """Return one finding as the line that a person reads."""
    subject = f"{finding.subject}: " if finding.subject else ""
    tail = f"\n  next: {finding.next}" if finding.next else ""
    return f"{subject}{finding.text}{tail}"


def command_of(argv: list[str]) -> str:
    """Return the command that a command line names, for its schema: ``stop``, ``gpu verify``."""
    from opsctl.cli import root

    words = [word for word in argv if not word.startswith("-")]
    found = root.get_command(click.Context(root), words[0]) if words else None
    if isinstance(found, click.Group) and len(words) > 1 and words[1] in found.commands:
        return f"{words[0]} {words[1]}"
    return words[0] if words else "opsctl"


def emit_error(argv: list[str], error: BaseException) -> int:
    """Print an error as one sentence with its next step (or as a document), and return its exit code."""
    if not isinstance(error, OpsctlError):
        if os.environ.get("OPSCTL_TRACEBACK"):
            traceback.print_exception(error)
        last = traceback.extract_tb(error.__traceback__)[-1:]
        where = f" at {Path(last[0].filename).name}:{last[0].lineno}" if last else ""
        error = OpsctlError(
            f"internal error: {type(error).__name__}: {error}{where}",
            next_step="run again with OPSCTL_TRACEBACK=1 and report the trace",
        )
    if error.next_step:
        error.next_step = given.runnable(error.next_step)
    if "--json" in argv:
        print_result(document_of_error(command_of(argv), error).to_json())
    click.echo(f"opsctl: {error.message}", err=True)
    if error.next_step:
        click.echo(f"  next: {error.next_step}", err=True)
    return error.exit_code
