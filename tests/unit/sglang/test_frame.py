"""Chunks that share a form are read without a parser, and say the same as with one."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.sglang import stream
from opsctl.sglang.frame import read_framed
from opsctl.sglang.stream import Reply, decode

TEXTS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(['"', "\\", '"}', '","content":"', "\n", "\u00e9", "9", '\\"', ""]),
)
USAGES = st.sampled_from(["none", "null", "counts", "spec"])


def chunk(api: str, text: str, number: int, usage: str, *, ascii_only: bool, tight: bool) -> bytes:
    said: dict[str, Any] = {"delta": {"content": text}} if api == "chat" else {"text": text}
    body: dict[str, Any] = {
        "id": "a1b2",
        "choices": [{"index": 0, **said, "finish_reason": None}],
    }
    if usage == "null":
        body["usage"] = None
    if usage in ("counts", "spec"):
        body["usage"] = {
            "prompt_tokens": 9,
            "total_tokens": 9 + number,
            "completion_tokens": number,
            "prompt_tokens_details": {"cached_tokens": 3},
        }
    if usage == "spec":
        body["usage"]["spec_tokens_details"] = {"spec_verify_ct": number // 2}
    separators = (",", ":") if tight else None
    return json.dumps(body, ensure_ascii=ascii_only, separators=separators).encode()


def both(api: str, pieces: list[bytes]) -> tuple[Reply, Reply]:
    times = [float(number) for number in range(len(pieces))]
    wire = [b"data: " + piece + b"\n\n" for piece in pieces]
    fast = decode(api, times, wire, "text/event-stream")
    with mock.patch.object(stream, "read_framed", return_value=None):
        slow = decode(api, times, wire, "text/event-stream")
    return fast, slow


@settings(max_examples=300, deadline=None)
@given(
    api=st.sampled_from(["chat", "completions"]),
    texts=st.lists(TEXTS, min_size=1, max_size=24),
    usage=USAGES,
    ascii_only=st.booleans(),
    tight=st.booleans(),
    odd=st.lists(st.sampled_from(["role", "error", "broken", "two", "reason"]), max_size=3),
    at=st.integers(0, 20),
)
def test_reading_by_form_changes_nothing(
    api: str,
    texts: list[str],
    usage: str,
    ascii_only: bool,
    tight: bool,
    odd: list[str],
    at: int,
) -> None:
    """Whatever the texts hold, and whatever odd chunks stand between them."""
    pieces = [
        chunk(api, text, number + 1, usage, ascii_only=ascii_only, tight=tight)
        for number, text in enumerate(texts)
    ]
    between = {
        "role": b'{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}',
        "error": b'{"error":{"message":"no","code":500}}',
        "broken": b'{"choices":[{"delta":{"content":"x',
        "two": b'{"choices":[{"text":"a"},{"text":"b"}],"usage":{"completion_tokens":4}}',
        "reason": b'{"choices":[{"delta":{"reasoning_content":"hm","content":null}}]}',
    }
    for name in odd:
        pieces.insert(min(at, len(pieces)), between[name])
    pieces += [b'{"choices":[{"delta":{},"finish_reason":"length"}]}', b"[DONE]"]

    fast, slow = both(api, pieces)

    assert fast == slow


@pytest.mark.parametrize("usage", ["none", "null", "counts"])
def test_nearly_all_chunks_of_a_stream_have_its_form(usage: str) -> None:
    """The saving is real: only the odd ones are left to the parser."""
    events = [
        (0.0, chunk("chat", f" w{n}", n + 1, usage, ascii_only=True, tight=True)) for n in range(50)
    ]

    framed = read_framed(events)

    assert framed is not None
    assert len(framed.chunks) == 50
    assert framed.chunks[7] == (" w7", 8 if usage == "counts" else None)


def test_damaged_text_is_left_to_the_parser() -> None:
    """Raw quotes and control bytes inside a text are no JSON: the parser names the place."""
    good = [chunk("chat", "x", n, "none", ascii_only=True, tight=True) for n in range(12)]
    for damage in (b'"a","b"', b'"a\x01b"', b'"a\\x"', b'"\xff"'):
        pieces = [*good[:5], good[5].replace(b'"x"', damage), *good[6:]]
        fast, slow = both("chat", pieces)
        assert fast == slow
        assert fast.broken is not None
