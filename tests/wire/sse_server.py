"""A server that plays scripts byte by byte: what a client must survive, on a real socket.

A script says what is sent for the n-th request, and how it ends. Nothing here knows HTTP beyond
reading a request, so every oddity of framing can be written down as it is on the wire. It runs in a
thread of its own, on a port that the kernel chooses.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Until:
    """Wait until so many seconds after the request was read: the ground truth of every time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection in order (FIN)."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the connection (RST)."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Say nothing more, and keep the connection open."""


Step = Send | Until | Close | Reset | Stall
Script = Callable[[int], Sequence[Step]]


def event(body: Any) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    """Return one chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def head(status: int = 200, framing: str = "chunked", length: int = 0) -> bytes:
    """Return a status line and headers; framing is chunked, close or sized."""
    lines = [f"HTTP/1.1 {status} X", "Content-Type: text/event-stream"]
    if framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
    elif framing == "sized":
        lines.append(f"Content-Length: {length}")
    else:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode()


def answer(body: bytes, framing: str = "chunked", status: int = 200) -> bytes:
    """Return a whole answer as one piece of bytes."""
    if framing == "chunked":
        return head(status) + chunk(body) + b"0\r\n\r\n"
    return head(status, framing, len(body)) + body


def plain(status: int, body: Any) -> list[Step]:
    """Return the script of an answer that is no stream."""
    raw = json.dumps(body).encode()
    lines = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    return [Send(lines.encode() + raw)]


def paced(events: Sequence[bytes], ttft_s: float, itl_s: float) -> list[Step]:
    """Return a chunked stream whose first event leaves at ``ttft_s`` and the others ``itl_s`` apart."""
    steps: list[Step] = [Send(head())]
    for number, data in enumerate(events):
        steps += [Until(ttft_s + number * itl_s), Send(chunk(data))]
    return [*steps, Send(chunk(DONE) + b"0\r\n\r\n")]


@dataclass(slots=True)
class SseServer:
    """Plays ``script`` for every request; ``requests`` holds what was read."""

    script: Script
    port: int = 0
    requests: list[bytes] = field(default_factory=list)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await read_request(reader)
                number = len(self.requests)
                self.requests.append(request)
                await self.play(self.script(number), writer)
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def play(self, steps: Sequence[Step], writer: asyncio.StreamWriter) -> None:
        start = time.perf_counter()
        for step in steps:
            if isinstance(step, Send):
                writer.write(step.data)
                await writer.drain()
            elif isinstance(step, Until):
                await asyncio.sleep(max(0.0, start + step.seconds - time.perf_counter()))
            elif isinstance(step, Stall):
                await asyncio.sleep(3600)
            elif isinstance(step, Reset):
                linger = struct.pack("ii", 1, 0)
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
                return
            else:
                writer.close()
                return


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Read one request with its body."""
    top = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in top.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return top + (await reader.readexactly(length) if length else b"")


@contextmanager
def serving(script: Script) -> Iterator[SseServer]:
    """Run a server in a thread until the block ends."""
    server = SseServer(script)
    ready = threading.Event()
    stop: list[Callable[[], object]] = []

    async def run() -> None:
        listener = await asyncio.start_server(server.connection, "127.0.0.1", 0, backlog=1024)
        server.port = listener.sockets[0].getsockname()[1]
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(ended.set))
        ready.set()
        async with listener:
            await ended.wait()

    runner = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    runner.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        stop[0]()
        runner.join(10)
        assert not runner.is_alive()
