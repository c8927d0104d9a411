"""A stream cut at every byte: never taken for a whole answer."""

from __future__ import annotations

import asyncio
import json

import pytest

from opsctl.sglang.client import Exchange, connect
from opsctl.sglang.endpoint import Endpoint
from opsctl.smoke.load import Job
from opsctl.smoke.measure import read_request
from opsctl.smoke.prompts import Prompt

pytestmark = pytest.mark.wire

CHAT = [
    {"choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 2}},
]
GENERATE = [
    {"text": "Hel", "meta_info": {"completion_tokens": 1, "finish_reason": None}},
    {"text": "Hello", "meta_info": {"completion_tokens": 2, "finish_reason": {"type": "stop"}}},
]


def whole_answer(documents: list[dict[str, object]], framing: str) -> bytes:
    events = [b"data: " + json.dumps(d).encode() + b"\n\n" for d in documents]
    events.append(b"data: [DONE]\n\n")
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    if framing == "chunked":
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in events)
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    return head + b"Connection: close\r\n\r\n" + b"".join(events)


async def failures_of_cuts(answer: bytes, api: str) -> list[str | None]:
    """Return what each prefix of an answer, then a closed connection, is taken for."""
    cuts = iter(range(len(answer) + 1))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer[: next(cuts)])
            await writer.drain()
        except (asyncio.IncompleteReadError, StopIteration):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
    job = Job(Prompt("p", "x"), endpoint.request("GET", "/"), 2)
    found = []
    for _ in range(len(answer) + 1):
        exchange = Exchange(job.request, job)
        connection = await connect(endpoint)
        await asyncio.wait_for(connection.send(exchange), 5.0)
        connection.close()
        found.append(read_request(exchange, api).failure)
    server.close()
    await server.wait_closed()
    return found


@pytest.mark.parametrize("framing", ["chunked", "until-close"])
@pytest.mark.parametrize(("api", "documents"), [("chat", CHAT), ("generate", GENERATE)])
def test_no_truncated_stream_passes(
    api: str, documents: list[dict[str, object]], framing: str
) -> None:
    """Every prefix fails; the whole answer passes.

    Without framing the end of the connection is the end of the body: there a prefix passes once it
    holds the finish reason and the token count, as nothing of the answer is missing then.
    """
    answer = whole_answer(documents, framing)

    found = asyncio.run(failures_of_cuts(answer, api))

    assert found[-1] is None
    if framing == "chunked":
        assert None not in found[:-1]
    else:
        complete = answer.index(json.dumps(documents[-1]).encode()) + len(json.dumps(documents[-1]))
        assert None not in found[:complete]
