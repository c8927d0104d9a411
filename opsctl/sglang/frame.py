"""The form that nearly all chunks of one stream share, so that few of them need a JSON parser.

A chunk of an OpenAI route repeats the one before it in all but its text and the counts of its usage.
One chunk is parsed; what stands around these places is its form. A chunk of the same form is the same
document with other values there, so only those are read. Anything else is parsed as ever. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from opsctl.records import dataclass

_load = json.JSONDecoder().decode
# A quote inside a JSON string is escaped, so these bytes are always a key and the start of its value.
_CONTENT = re.compile(rb'"(?:content|text)": ?(?=")')
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_COUNT = re.compile(rb'"(completion|total)_tokens": ?(?=[0-9]+[,}])')
_DIGITS = b"0123456789"
FEWEST = 8  # chunks below which it does not pay
SAMPLE = 1  # the first chunk often carries the role alone


@dataclass(frozen=True, slots=True)
class Framed:
    """The chunks that have the form: by their place the text, and the tokens so far where told."""

    sample: dict[str, Any]
    chunks: dict[int, tuple[str, int | None]]


@dataclass(frozen=True, slots=True)
class _Form:
    before: bytes  # the text
    after: tuple[bytes, ...]  # it, with a number between each two
    counted: int | None  # which number counts the tokens


def read_framed(events: Sequence[tuple[float, bytes]]) -> Framed | None:
    """Return what can be read without a parser; None when the stream has no such form."""
    if len(events) < FEWEST:
        return None
    sample = _plain_chunk(events[SAMPLE][1])
    form = None if sample is None else _form_of(events[SAMPLE][1], sample)
    if sample is None or form is None:
        return None
    places, texts, counts = _take(events, form)
    try:
        said = _load((b"[" + b",".join(texts) + b"]").decode())
    except ValueError:
        return None  # a byte or an escape that JSON does not allow: the parser says where
    if len(said) != len(places):
        return None  # an unescaped quote in one of them: not that form after all
    return Framed(sample, dict(zip(places, zip(said, counts, strict=True), strict=True)))


def _take(
    events: Sequence[tuple[float, bytes]], form: _Form
) -> tuple[list[int], list[bytes], list[int | None]]:
    places: list[int] = []
    texts: list[bytes] = []
    counts: list[int | None] = []
    before, begin = form.before, len(form.before)
    if len(form.after) == 1:  # no number in it
        return _take_plain(events, before, form.after[0])
    last, rest = form.after[-1], form.after[-2::-1]
    counted = None if form.counted is None else len(rest) - 1 - form.counted
    for place, (_, data) in enumerate(events):
        if not (data.startswith(before) and data.endswith(last)):
            continue
        data = data[: -len(last)]
        count = None
        for number, part in enumerate(rest):
            left = data.rstrip(_DIGITS)
            if not left.endswith(part) or len(left) == len(data):
                break
            if number == counted:
                count = int(data[len(left) :])
            data = left[: -len(part)]
        else:
            text = data[begin:]
            if text[:1] == b'"' and text[-1:] == b'"' and len(text) > 1:
                places.append(place)
                texts.append(text)
                counts.append(count)
    return places, texts, counts


def _take_plain(
    events: Sequence[tuple[float, bytes]], before: bytes, after: bytes
) -> tuple[list[int], list[bytes], list[int | None]]:
    begin, end = len(before), -len(after)
    cut = [
        data[begin:end] if data.startswith(before) and data.endswith(after) else b""
        for _, data in events
    ]
    places = [
        place
        for place, text in enumerate(cut)
        if len(text) > 1 and text[:1] == b'"' and text[-1:] == b'"'
    ]
    return places, [cut[place] for place in places], [None] * len(places)


def _plain_chunk(data: bytes) -> dict[str, Any] | None:
    """Return a chunk's document when it has one choice with text and no end."""
    try:
        document = _load(data.decode())
        (choice,) = document["choices"]
        if choice.get("finish_reason") or "error" in document:
            return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return document if isinstance(document, dict) else None


def _form_of(data: bytes, document: dict[str, Any]) -> _Form | None:
    keys = list(_CONTENT.finditer(data))
    if len(keys) != 1:
        return None
    begin = keys[0].end()
    quoted = _STRING.match(data, begin)
    choice = document["choices"][0]
    delta = choice.get("delta")
    told = choice.get("text") if delta is None else delta.get("content")
    alone = delta is None or not any(delta.get(k) for k in ("reasoning_content", "tool_calls"))
    if quoted is None or not alone or _load(quoted[0].decode()) != told:
        return None
    after, parts, names = data[quoted.end() :], [], []
    at = 0
    for found in _COUNT.finditer(after):
        parts.append(after[at : found.end()])
        names.append(found[1])
        at = len(after) - len(after[found.end() :].lstrip(_DIGITS))
    parts.append(after[at:])
    usage = document.get("usage")
    has_usage = isinstance(usage, dict) and "completion_tokens" in usage
    if names.count(b"completion") != int(has_usage) or _COUNT.search(data[:begin]) is not None:
        return None
    return _Form(data[:begin], tuple(parts), names.index(b"completion") if has_usage else None)
