"""Words without which a pattern cannot match, read from the pattern itself.

Searching a line for a few words is far cheaper than trying a long alternation at every character of
it. The words come from the pattern, so that nobody has to keep a second list in step.
"""

from __future__ import annotations

import re

_QUANTIFIER = re.compile(r"[*?]|\{0?,|\{0\}")
_ANY_QUANTIFIER = re.compile(r"(?:[*+?]|\{[\d,]+\})\??")
_GROUP_START = re.compile(r"\(\?(?::|P<\w+>)|\((?!\?)")
_SHORTEST = 3
_LONG_ENOUGH = 6


class Wording:
    """An alternation of which only those branches are tried whose own words are in the text.

    Branches are compiled when they are first needed.
    """

    __slots__ = ("_branches", "_compiled", "_flags", "source")

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self.source = pattern
        self._flags = flags
        self._branches = [(hints_of(branch), branch) for branch in _split(pattern)]
        self._compiled: dict[str, re.Pattern[str]] = {}

    def found(self, text: str, lower: str) -> bool:
        """Return whether the pattern matches; ``lower`` is the text in lower case, made once for many."""
        for hints, branch in self._branches:
            if hints is not None:
                for hint in hints:
                    if hint in lower:
                        break
                else:
                    continue
            if self._compile(branch).search(text) is not None:
                return True
        return False

    def _compile(self, branch: str) -> re.Pattern[str]:
        made = self._compiled.get(branch)
        if made is None:
            made = self._compiled[branch] = re.compile(branch, self._flags)
        return made

    def hints(self) -> list[str] | None:
        """Return the words of all branches; None when one of them has none."""
        words: list[str] = []
        for hints, _branch in self._branches:
            if hints is None:
                return None
            words += hints
        return words


def hints_of(pattern: str) -> tuple[str, ...] | None:
    """Return lower-case words of which every match holds at least one; None when there are none."""
    found: set[str] = set()
    for alternative in _split(pattern):
        words = _best(alternative)
        if words is None:
            return None
        found |= words
    # A word that holds another one adds nothing.
    return tuple(
        sorted(
            word for word in found if not any(other != word and other in word for other in found)
        )
    )


def _split(pattern: str) -> list[str]:
    """Split at the bars that stand outside of groups and sets."""
    parts, depth, start, position = [], 0, 0, 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            position += 1
        elif character == "[":
            position = _end_of_set(pattern, position)
        elif character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == "|" and depth == 0:
            parts.append(pattern[start:position])
            start = position + 1
        position += 1
    return [*parts, pattern[start:]]


def _end_of_set(pattern: str, position: int) -> int:
    position += 2 if pattern[position + 1] == "^" else 1
    if pattern[position] == "]":
        position += 1  # in front it stands for itself
    while pattern[position] != "]":
        position += 2 if pattern[position] == "\\" else 1
    return position


def _end_of_group(pattern: str, position: int) -> int:
    depth = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            position += 1
        elif character == "[":
            position = _end_of_set(pattern, position)
        elif character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return position


def _best(alternative: str) -> set[str] | None:
    """Return the words of the best place of one alternative: its longest run, or a group's own words."""
    runs, groups, run, position = [""], [], "", 0
    while position < len(alternative):
        character = alternative[position]
        start = position
        literal = ""
        if character == "\\":
            position += 1
            literal = "" if alternative[position].isalnum() else alternative[position]
        elif character == "[":
            position = _end_of_set(alternative, position)
        elif character == "(":
            position = _end_of_group(alternative, position)
        elif character not in ".^$":
            literal = character
        position += 1
        rest = alternative[position:]
        optional = _QUANTIFIER.match(rest) is not None
        quantifier = _ANY_QUANTIFIER.match(rest)
        if quantifier is not None:
            position += quantifier.end()
        if character == "(" and not optional:
            groups.append(alternative[start : start + _end_of_group(alternative, start) - start])
        if literal and not optional:
            run += literal.lower()
            if quantifier is None:
                continue
        runs.append(run)
        run = ""
    runs.append(run)
    longest = max(runs, key=len)
    choices = [{longest}] if len(longest) >= _SHORTEST else []
    if len(longest) < _LONG_ENOUGH:
        choices += _of_groups(groups)
    return max(choices, key=lambda words: (min(map(len, words)), -len(words)), default=None)


def _of_groups(groups: list[str]) -> list[set[str]]:
    choices = []
    for group in groups:
        opened = _GROUP_START.match(group)
        if opened is None:
            continue  # looks ahead or behind: matches nothing itself
        words = hints_of(group[opened.end() :])
        if words is not None:
            choices.append(set(words))
    return choices
