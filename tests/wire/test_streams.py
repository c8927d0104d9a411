"""Streams on a real socket: every oddity of the cases, every truncation, every way to end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import pytest

from opsctl.sglang.client import Ended, Endpoint, Exchange, connect
from opsctl.sglang.stream import decode
from opsctl.smoke.judge import broken_text
from opsctl.smoke.load import Job
from opsctl.smoke.measure import Request, read_request
from opsctl.smoke.prompts import Prompt
from tests.wire.sse_server import (
    DONE,
    Close,
    Reset,
    Send,
    SseServer,
    Stall,
    Step,
    answer,
    chunk,
    event,
    head,
    paced,
    plain,
    serving,
)

pytestmark = pytest.mark.wire
CASES = Path(__file__).parents[1] / "data" / "cases"
CHAT = [
    {"id": "r", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"id": "r", "choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": ""}]},
    {
        "id": "r",
        "choices": [{"index": 0, "delta": {"content": "lo \u00e9"}, "finish_reason": None}],
    },
    {"id": "r", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"id": "r", "choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 3}},
]
BODY = b"".join(event(document) for document in CHAT) + DONE


def case(name: str) -> bytes:
    """The data lines of a handed case, without its notes, as they were on the wire."""
    lines = (CASES / name).read_bytes().split(b"\n")
    kept = [line for line in lines if not line.startswith((b"---", b"HTTP/"))]
    return b"\n".join(kept).lstrip(b"\n")


async def exchange(
    server: SseServer, api: str, *, tokens: int = 64, limit_s: float = 5.0
) -> Request:
    endpoint = Endpoint("127.0.0.1", server.port)
    job = Job(Prompt("k", "hi"), b"", tokens)
    made = Exchange(endpoint.request("POST", "/generate", b"{}"), job)
    connection = await connect(endpoint)
    try:
        await asyncio.wait_for(asyncio.shield(connection.send(made)), limit_s)
    except TimeoutError:
        connection.give_up(Ended.STALLED, f"nothing for {limit_s:g} s")
    finally:
        connection.close()
    return read_request(made, api)


def play(steps: Sequence[Step], api: str = "chat", **options: float) -> Request:
    """Send one request to a server that plays these steps, and judge the answer."""
    with serving(lambda _number: steps) as server:
        return asyncio.run(exchange(server, api, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("framing", ["chunked", "sized", "close"])
@pytest.mark.parametrize(
    ("name", "api", "failure", "tokens"),
    [
        ("121-usage-last-empty-choices.log", "chat", None, 10),
        ("123-abort-looks-complete.log", "chat", "stream-abort", 0),
        ("124-finish-reason-empty.log", "chat", None, None),
        ("125-many-tokens-per-chunk.log", "chat", None, 9),
        ("127-cut-without-done.log", "chat", "stream-broken", None),
        ("128-generate-is-cumulative.log", "generate", "no-finish", 2),
    ],
)
def test_streams_of_the_cases_are_judged_over_the_wire(
    name: str, api: str, failure: str | None, tokens: int | None, framing: str
) -> None:
    """The same verdict whichever way the body is framed; tokens come from usage."""
    body = case(name)
    steps: list[Step] = [Send(answer(body, framing))]

    request = play([*steps, Close()] if framing == "close" else steps, api)

    assert (request.failure, request.reply.tokens) == (failure, tokens)


@pytest.mark.parametrize("end", [Close(), Reset()], ids=["closed", "reset"])
def test_truncation_at_every_byte_of_a_chunked_stream_is_a_failure(end: Step) -> None:
    """Whatever byte is the last one, the request is not counted as good."""
    whole = answer(BODY)
    cuts = range(len(whole))

    async def all_cuts(server: SseServer) -> list[Request]:
        return [await exchange(server, "chat") for _ in cuts]

    with serving(lambda number: [Send(whole[:number]), end]) as server:
        requests = asyncio.run(all_cuts(server))

    good = [cut for cut, request in zip(cuts, requests, strict=True) if request.ok]
    assert good == []
    assert {request.failure for request in requests} <= {"stream-cut", "stream-broken"}


def test_truncation_at_every_byte_without_framing_is_seen_until_all_was_said() -> None:
    """Without a length the end is the close: good only when finish reason and usage arrived whole."""
    least = BODY.index(DONE)

    async def all_cuts(server: SseServer) -> list[Request]:
        return [await exchange(server, "chat") for _ in range(len(BODY))]

    with serving(lambda n: [Send(head(framing="close") + BODY[:n]), Close()]) as server:
        requests = asyncio.run(all_cuts(server))

    good = [cut for cut, request in enumerate(requests) if request.ok]
    assert all(cut >= least for cut in good)
    assert requests[least].ok


def test_stream_in_two_packets_cut_anywhere_reads_the_same() -> None:
    """Chunk headers, UTF-8 characters and line ends may be cut between packets."""
    whole = answer(BODY)
    cuts = range(1, len(whole), 3)

    async def all_cuts(server: SseServer) -> list[Request]:
        return [await exchange(server, "chat") for _ in cuts]

    with serving(lambda n: [Send(whole[: cuts[n]]), Send(whole[cuts[n] :])]) as server:
        requests = asyncio.run(all_cuts(server))

    assert all(request.ok for request in requests)
    assert {request.reply.text for request in requests} == {"Hello \u00e9"}


@pytest.mark.parametrize(
    ("status", "failure"),
    [(400, "client-error"), (401, "wrong-key"), (403, "wrong-key"), (404, "not-found"),
     (500, "server-error"), (503, "server-busy")],
)  # fmt: skip
def test_status_says_whose_fault_it_is(status: int, failure: str) -> None:
    """Errors before the stream."""
    request = play(plain(status, {"error": {"message": "planned"}}))

    assert request.failure == failure
    assert "planned" in request.detail


def test_error_object_in_a_200_fails_whatever_follows() -> None:
    """[DONE] after an error is no success."""
    body = event(CHAT[1]) + event({"error": {"message": "boom", "code": 500}}) + DONE

    request = play([Send(answer(body))])

    assert (request.failure, request.detail) == ("stream-error", "boom")


@pytest.mark.parametrize(
    "body", [b"", DONE, event(CHAT[0]) + DONE], ids=["nothing", "done", "role-only"]
)
def test_empty_answers_are_failures(body: bytes) -> None:
    """A 200 without a token is no answer."""
    assert not play([Send(answer(body))]).ok


def test_close_before_any_answer_is_a_cut() -> None:
    """The process died between accept and answer."""
    assert play([Close()]).failure == "stream-cut"
    assert play([Reset()]).failure == "stream-cut"


def test_stall_after_the_first_token_is_a_stall() -> None:
    """The connection stays open and nothing comes."""
    request = play([Send(head() + chunk(event(CHAT[1]))), Stall()], limit_s=0.3)

    assert request.failure == "stalled"


def test_what_is_no_http_is_told() -> None:
    """A port of somebody else."""
    assert play([Send(b"SSH-2.0-OpenSSH_9.2\r\n"), Close()]).failure == "not-http"


def test_mush_is_whole_and_told_by_its_text() -> None:
    """Status 200, finish length, [DONE]: only the text gives it away."""
    text = {"choices": [{"index": 0, "delta": {"content": "!" * 40}, "finish_reason": "length"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 40}}

    request = play([Send(answer(event(text) + event(usage) + DONE))], tokens=40)

    assert request.ok
    assert broken_text(request.reply.answer) is not None


def generate_events(count: int, per_chunk: int) -> list[bytes]:
    return [
        event(
            {
                "text": " a" * end,
                "meta_info": {
                    "completion_tokens": end,
                    "finish_reason": {"type": "length", "length": count} if end == count else None,
                },
            }
        )
        for end in range(per_chunk, count + 1, per_chunk)
    ]


def test_many_tokens_per_chunk_give_time_per_token() -> None:
    """Four tokens every 20 ms are 5 ms a token; the gap between chunks stays 20 ms."""
    request = play(paced(generate_events(32, 4), 0.05, 0.02), "generate", tokens=32)

    between, per_token = request.gaps()
    assert request.ok
    assert mean(between) == pytest.approx(0.02, abs=0.004)
    assert mean(gap for gap, _ in per_token) == pytest.approx(0.005, abs=0.001)


def test_no_time_is_earlier_than_the_truth() -> None:
    """32 streams at once: every stamp comes after the byte that it stands for, and none is lost.

    How much later is measured by `python -m benchmarks.smoke_load`, with the server in another process.
    """
    count, streams = 10, 32
    steps = paced(generate_events(count, 1), 0.1, 0.02)

    async def all_streams(server: SseServer) -> list[Request]:
        return await asyncio.gather(
            *(exchange(server, "generate", tokens=count, limit_s=30) for _ in range(streams))
        )

    with serving(lambda _number: steps) as server:
        requests = asyncio.run(all_streams(server))

    assert all(request.ok for request in requests)
    assert all(len(request.reply.chunk_s) == count for request in requests)
    for request in requests:
        for number, stamp in enumerate(request.reply.chunk_s):
            assert stamp - request.sent_s >= 0.1 + number * 0.02 - 0.002


def test_decoding_never_raises_on_any_truncation_of_any_case() -> None:
    """Every stream of the cases, cut at every byte, on both routes."""
    for path in sorted(CASES.glob("12?-*.log")):
        body = case(path.name)
        for cut in range(len(body) + 1):
            for api in ("chat", "generate"):
                reply = decode(api, [0.0], [body[:cut]], "text/event-stream")
                assert isinstance(json.dumps(reply.text), str)
