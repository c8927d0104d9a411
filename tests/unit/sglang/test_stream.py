"""Streams, odd and broken, as recorded pieces."""

from __future__ import annotations

import json

import pytest

from opsctl.sglang.stream import decode, split_events

CHAT = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "usage": None},
    {"choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": ""}]},
    {"choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "matched_stop": 2}]},
    {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 10}},
]


def stream(*documents: object, done: bool = True) -> bytes:
    body = b"".join(b"data: " + json.dumps(d).encode() + b"\n\n" for d in documents)
    return body + (b"data: [DONE]\n\n" if done else b"")


def test_usage_comes_last_with_empty_choices() -> None:
    """The count is usage's, the role chunk is no token, an empty finish reason is no end."""
    reply = decode("chat", [1.0], [stream(*CHAT)])

    assert (reply.text, reply.tokens, reply.prompt_tokens) == ("Hello", 10, 8)
    assert (reply.finish, reply.done) == ("stop", True)
    assert len(reply.chunk_s) == 2


def test_generate_is_cumulative_and_openai_is_not() -> None:
    """Two joiners: the native route repeats the text so far."""
    native = [
        {"text": " The", "meta_info": {"completion_tokens": 1}},
        {"text": " The answer", "meta_info": {"completion_tokens": 3, "finish_reason": None}},
    ]

    reply = decode("generate", [1.0], [stream(*native)])

    assert reply.text == " The answer"
    assert reply.chunk_tokens == [1, 3]


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (["!", "!", "!"], "!!!"),
        (["a\ufffd", "a\u00e9b"], "a\u00e9b"),
        (["ab", "cd"], "abcd"),
        (["", ""], ""),
        (["one"], "one"),
    ],
)
def test_new_parts_and_whole_texts_are_told_apart(parts: list[str], text: str) -> None:
    """Whether /generate sends the whole or the new part is a flag of the server: look at the texts."""
    documents = [
        {"text": part, "meta_info": {"completion_tokens": number}}
        for number, part in enumerate(parts, 1)
    ]

    assert decode("generate", [1.0], [stream(*documents)]).text == text


@pytest.mark.parametrize("ids", [[[5], [5, 6], [5, 6, 7]], [[5], [6], [7]]])
def test_token_ids_whole_or_in_parts(ids: list[list[int]]) -> None:
    """The count of tokens decides which of the two it is."""
    documents = [
        {"output_ids": part, "meta_info": {"completion_tokens": number}}
        for number, part in enumerate(ids, 1)
    ]

    assert decode("generate", [1.0], [stream(*documents)]).ids == [5, 6, 7]


def test_error_inside_a_200_wins_over_done() -> None:
    """A top-level error fails the request whatever else the stream says."""
    reply = decode("chat", [1.0], [stream(*CHAT, {"error": {"message": "boom", "code": 500}})])

    assert (reply.error, reply.error_status, reply.done) == ("boom", 500, True)


def test_abort_message_of_the_native_route_is_an_error() -> None:
    """finish_reason abort carries why."""
    finish = {"type": "abort", "message": "waiting timeout", "status_code": 503}
    reply = decode(
        "generate", [1.0], [stream({"text": "", "meta_info": {"finish_reason": finish}})]
    )

    assert (reply.finish, reply.error, reply.error_status) == ("abort", "waiting timeout", 503)


def test_every_cut_of_the_bytes_gives_the_same_events() -> None:
    """Packets may be cut anywhere, also between CR and LF; an event has its last byte's time."""
    body = stream(*CHAT).replace(b"\n", b"\r\n")
    whole, rest = split_events([0.0], [body])
    assert rest == b""

    for cut in range(len(body) + 1):
        events, rest = split_events([1.0, 2.0], [body[:cut], body[cut:]])
        assert [data for _, data in events] == [data for _, data in whole]
        assert rest == b""


def test_every_truncation_is_seen() -> None:
    """No prefix of a stream looks like a whole one: finish, usage and [DONE] are not all there."""
    body = stream(*CHAT)

    for cut in range(len(body) - 1):
        reply = decode("chat", [1.0], [body[:cut]], "text/event-stream")
        assert not (reply.finish and reply.tokens is not None and reply.done)


def test_answer_that_was_not_streamed_is_read_all_the_same() -> None:
    """A server that ignores stream=true, and an error without a stream."""
    whole = json.dumps({"text": "hi", "meta_info": {"completion_tokens": 1}}).encode()
    error = json.dumps({"object": "error", "message": "too long", "code": 400}).encode()

    assert decode("generate", [1.0], [whole], "application/json").text == "hi"
    assert decode("chat", [1.0], [error], "application/json").error == "too long"


def test_comments_and_other_fields_are_no_events() -> None:
    """Keep-alive comments, event names and an empty data line do not disturb."""
    body = b': ping\n\nevent: x\ndata: {"text": "a"}\n\nid: 1\n\n'
    events, rest = split_events([1.0], [body])

    assert [data for _, data in events] == [b'{"text": "a"}']
    assert rest == b""


def test_speculative_chunk_carries_its_count() -> None:
    """continuous usage tells how many tokens each chunk brought."""
    documents = [
        {"choices": [{"delta": {"content": "a b"}}], "usage": {"completion_tokens": 2}},
        {"choices": [{"delta": {"content": "c d e"}}], "usage": {"completion_tokens": 5}},
    ]

    assert decode("chat", [1.0], [stream(*documents)]).chunk_tokens == [2, 5]
