"""Logs that were exported newest line first: Kibana, Grafana and kubectl plug-ins do that by default."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice, pairwise

from opsctl.domain.crash.model import Diagnosis
from opsctl.sglang.prefix import PrefixReader

_HEAD = 400  # lines that tell which way a log runs
_STEPS = 5  # stamps that go back, at least
_MOST = 300_000
"""A longer log is read as it comes: turning it round needs all of it in memory."""
_STAMP = re.compile(
    rb"\[?(?:\d{13}\t)?"
    rb"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?"
    rb"|[A-Z][a-z]{2} [ \d]?\d(?:, \d{4} @)? \d\d:\d\d:\d\d(?:\.\d+)?)"
)


def in_order(lines: Iterable[bytes]) -> tuple[Iterable[bytes], int]:
    """Return the lines oldest first, and how many there are when they were turned round; else 0."""
    source = iter(lines)
    head = list(islice(source, _HEAD))
    if not _runs_back(head):
        return chain(head, source), 0
    rest = list(islice(source, _MOST))
    if len(rest) == _MOST:
        return chain(head, rest, source), 0
    whole = head + rest
    return reversed(whole), len(whole)


def _runs_back(head: Iterable[bytes]) -> bool:
    times = list(_times(head))
    back = sum(later < earlier for earlier, later in pairwise(times))
    forth = sum(later > earlier for earlier, later in pairwise(times))
    return back >= _STEPS and forth * 20 <= back  # stamps of several writers jitter


def _times(head: Iterable[bytes]) -> Iterator[float]:
    reader = PrefixReader()
    for line in head:
        found = _STAMP.match(line)
        time_s = reader.seconds(found[1].decode()) if found is not None else None
        if time_s is not None:
            yield time_s


def mirrored(found: Diagnosis, total: int) -> Diagnosis:
    """Return a diagnosis of lines that were turned round, with the line numbers of the file."""

    def there(line: int) -> int:
        return total + 1 - line

    return replace(
        found,
        line=there(found.line) if found.line else found.line,
        ranks=tuple(replace(first, line=there(first.line)) for first in found.ranks),
    )
