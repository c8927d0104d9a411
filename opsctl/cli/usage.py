"""A command line that click refuses, in our own words: what is wrong, and what can be typed instead."""

from __future__ import annotations

import re

import click

from opsctl.errors import UsageError

# What other load tools call it, and what it is here: the nearest letters would mislead.
_ELSEWHERE = {
    "--rate --request-rate --qps": "the load is a closed loop: --levels says how many requests run at once",
    "--concurrency --max-concurrency --parallel": "--levels says how many requests run at once",
    "--num-prompts --num-requests": "--requests N is how many requests a level has",
}  # of opsctl smoke
_COUNTED = {
    "history": "-n N is how many runs are listed",
    "logs": "-n N is how many lines are shown",
}
_OPTION = re.compile(r"no such option:? '?(--[\w-]+)", re.IGNORECASE)
_NEAR = re.compile(r"\.? \(?[Dd]id you mean (?:one of: )?(.+?)\?\)?$")


def in_our_words(error: click.ClickException) -> UsageError:
    """Return click's complaint as an error with a next step: the near word, an example, the help page."""
    text = error.format_message().strip().rstrip(".")
    near = _NEAR.search(text)
    if near:
        text = text[: near.start()]
    text = f"{text[:1].lower()}{text[1:]}"
    ctx = getattr(error, "ctx", None)
    if ctx is None:
        return UsageError(text, next_step="opsctl --help")
    path, is_group = ctx.command_path, isinstance(ctx.command, click.Group)
    help_page = f"{path} --help"
    option = _OPTION.search(text)
    known = _of_elsewhere(path, option[1]) if option else None
    if known:
        step = f"{known} (all of them: {help_page})"
    elif near:
        step = f"did you mean {near[1].replace(', ', ' or ')}? (all of them: {help_page})"
    elif is_group:
        step = f"all of them: {help_page}"
    else:
        example = first_example(ctx.command)
        step = f"for example: {example} (more: {help_page})" if example else help_page
    usage = "" if is_group else f" ({' '.join([path, *ctx.command.collect_usage_pieces(ctx)])})"
    return UsageError(f"{text}{usage}", next_step=step)


def _of_elsewhere(path: str, option: str) -> str | None:
    name = path.removeprefix("opsctl ")
    if name in _COUNTED and option in ("--limit", "--lines", "--tail", "--last", "--max-count"):
        return _COUNTED[name]
    if path != "opsctl smoke":
        return None
    return next((words for names, words in _ELSEWHERE.items() if option in names.split()), None)


def first_example(command: click.Command) -> str | None:
    """Return the first example of a command's help page, without what is said behind it."""
    _, _, examples = (command.help or "").partition("Example")
    lines = [line.strip() for line in examples.splitlines()]
    found = next((line for line in lines if line.startswith("opsctl ")), None)
    return None if found is None else re.split(r"\s{2,}", found)[0]
