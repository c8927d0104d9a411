"""What is wrong with YAML that cannot be read, and in which line: the parser names the line behind it."""

from __future__ import annotations

import re

import yaml

_HAS_COLON = re.compile(r":(\s|$)")


def syntax_problem(text: str, error: yaml.MarkedYAMLError) -> tuple[int, str, str]:
    """Return the line (from 1), what is wrong there, and how to mend it."""
    lines = text.splitlines()
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    here = lines[line - 1] if line <= len(lines) else ""
    if "\t" in here[: len(here) - len(here.lstrip())] or "\\t" in str(error.problem):
        text = "a tab is used for indentation; YAML wants spaces"
        return line, text, "put spaces in its place"
    problem = str(error.problem)
    if "expected ':'" in problem and error.context_mark is not None:
        return _without_colon(lines, error.context_mark.line + 1)
    if problem == "mapping values are not allowed here":
        before = _line_before(lines, line)
        if before is not None and not _HAS_COLON.search(lines[before - 1]):
            return _without_colon(lines, before)
        deeper = before is not None and _indent(here) > _indent(lines[before - 1])
        if deeper and len(_HAS_COLON.findall(here)) == 1:
            return _indented(line)
        text = "': ' stands within a value, where YAML takes it for another key"
        return line, text, "put the value into quotes"
    if re.match(r"expected (<block end>|'<document start>'), but found", problem):
        return _indented(line)
    if unclosed := re.match(r"expected ',' or '([]}])'", problem):
        opened = error.context_mark.line + 1 if error.context_mark else line
        text = f"the bracket opened in line {opened} is not closed, or a comma is missing"
        return line, text, f"write the missing '{unclosed[1]}' or ','"
    if "quoted scalar" in str(error.context) and error.context_mark is not None:
        return error.context_mark.line + 1, "a quote is opened and not closed", "close it"
    if "cannot start any token" in problem:
        return line, "a value begins with a sign that YAML keeps for itself", "put it into quotes"
    step = "mend it (`opsctl config example` shows every key as it has to stand)"
    return line, problem, step


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _indented(line: int) -> tuple[int, str, str]:
    text = "this line is indented differently from the ones before it"
    return line, text, "begin it in the same column as its neighbours"


def _line_before(lines: list[str], line: int) -> int | None:
    """Return the number of the last line above ``line`` that says something."""
    for number in range(line - 1, 0, -1):
        text = lines[number - 1].strip()
        if text and not text.startswith("#"):
            return number
    return None


def _without_colon(lines: list[str], line: int) -> tuple[int, str, str]:
    words = lines[line - 1].strip().removeprefix("- ").split(None, 1) or ["key"]
    meant = f"{words[0]}: ..." if len(words) == 2 else f"{words[0]}:"  # a value may be a secret
    return line, "a colon is missing behind the key", f"write `{meant}`"
