"""The plain connection frames answers as llhttp does, wherever the network cuts them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from opsctl.agent.ops.load_http import PlainConnection
from opsctl.agent.ops.load_wire import Exchange, Pulse, StreamConnection
from opsctl.sglang.client import Connection


class FakeTransport:
    """Takes what is written; remembers that it was closed."""

    def __init__(self) -> None:
        self.closed = False

    def write(self, data: bytes) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
ANSWERS = {
    "chunks": CHUNKED + b"6\r\ndata: \r\n5;x=1\r\n0\r\n\r\n\r\n0\r\n\r\n",
    "upper-case-size": CHUNKED + b"A\r\n0123456789\r\n0\r\nX-Trailer: 1\r\n\r\n",
    "length": HEAD + b"Content-Length: 11\r\n\r\nhello world",
    "empty": HEAD + b"Content-Length: 0\r\n\r\n",
    "no-content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "to-the-end": HEAD + b"\r\ndata: a\n\ndata: b\n\n",
    "http-1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "close": HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nok",
    "continue": b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 2\r\n\r\nok",
    "error": b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy",
    "no-reason": b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok",
    "not-http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "bad-chunk": CHUNKED + b"zz\r\nxx\r\n0\r\n\r\n",
    "long-chunk": CHUNKED + b"2\r\nabcd\r\n0\r\n\r\n",
    "bad-length": HEAD + b"Content-Length: many\r\n\r\nxx",
}


def play(make: Callable[[Pulse], StreamConnection], pieces: list[bytes]) -> dict[str, Any]:
    """Feed the pieces to a connection, then end it; return what the exchange says."""

    async def run() -> dict[str, Any]:
        connection = make(Pulse())
        transport = FakeTransport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        exchange = Exchange(b"")
        connection.send(exchange)
        for piece in pieces:
            if not transport.closed:
                connection.data_received(piece)  # type: ignore[attr-defined]
        whole = exchange.ended is not None
        reusable = not transport.closed
        connection.connection_lost(None)
        return {
            "ended": exchange.ended,
            "status": exchange.status,
            "type": exchange.content_type,
            "body": exchange.body,
            "before the end": whole,
            "reusable": reusable,
            "error": exchange.error.split(":")[0],
        }

    return asyncio.run(run())


@pytest.mark.parametrize("name", ANSWERS)
def test_frames_as_llhttp_at_every_cut(name: str) -> None:
    """Cut in two at each byte, and truncated at each byte: the same end, status and body."""
    data = ANSWERS[name]
    for at in range(1, len(data) + 1):
        for pieces in ([data[:at], data[at:]], [data[:at]]):
            given = [piece for piece in pieces if piece]
            ours, theirs = play(PlainConnection, given), play(Connection, given)
            if name in ("not-http", "bad-chunk", "long-chunk", "bad-length"):
                # where damage is noticed may differ by a few bytes, not what it is called at the end
                if len(b"".join(given)) == len(data):
                    assert ours["ended"] == theirs["ended"] == "protocol", (at, pieces)
                continue
            if not ours["status"]:  # llhttp tells of a header before all of them are there
                theirs |= {"type": "", "status": 0}
            assert ours == theirs, (at, pieces)


def test_byte_by_byte_is_the_same() -> None:
    """The slowest network: one byte at a time."""
    for name, data in ANSWERS.items():
        pieces = [data[i : i + 1] for i in range(len(data))]
        ours, theirs = play(PlainConnection, pieces), play(Connection, pieces)
        assert (ours["ended"], ours["body"]) == (theirs["ended"], theirs["body"]) or theirs[
            "ended"
        ] == "protocol", name


def test_headers_without_an_end_are_bounded() -> None:
    """A peer that sends headers for ever is not an HTTP server; nothing grows."""
    found = play(PlainConnection, [HEAD] + [b"X-Filler: " + b"y" * 1000 + b"\r\n"] * 100)
    assert found["ended"] == "protocol"


def test_answer_that_nobody_asked_for_closes_the_connection() -> None:
    """It could be taken for the next request's answer otherwise."""

    async def run() -> bool:
        connection, transport = PlainConnection(Pulse()), FakeTransport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        connection.data_received(b"HTTP/1.1 408 Timeout\r\n\r\n")
        return transport.closed

    assert asyncio.run(run())
