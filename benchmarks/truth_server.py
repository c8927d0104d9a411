"""A streaming server whose times are known: it writes down when it got a request and sent each chunk.

`python -m benchmarks.truth_server TTFT_MS ITL_MS` prints its port. GET /truth returns and forgets the
times since the last call.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
clock = time.monotonic
LENGTH = re.compile(rb"(?i)content-length: (\d+)")
WANTED = re.compile(rb'"max_tokens": ?(\d+)')


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Truth:
    """Times of all requests, in seconds."""

    def __init__(self) -> None:
        self.ttft: list[float] = []
        self.gaps: list[float] = []
        self.running = 0
        self.peak = 0
        self.pass_s = 0.0

    def begin_pass(self, loop: asyncio.AbstractEventLoop) -> float:
        self.pass_s = now = clock()
        loop.call_soon(self.end_pass)
        return now

    def end_pass(self) -> None:
        self.pass_s = 0.0


class Server(asyncio.Protocol):
    def __init__(self, truth: Truth, ttft_s: float, itl_s: float) -> None:
        self.truth = truth
        self.ttft_s = ttft_s
        self.itl_s = itl_s
        self.buffer = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        # Stamped when the pass of the loop began, parsed after all its reads: our own work is no
        # client's error.
        self.loop.call_soon(self.take, data, self.truth.pass_s or self.truth.begin_pass(self.loop))

    def take(self, data: bytes, now: float) -> None:
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = LENGTH.search(head)
        if length is not None and len(body) < int(length.group(1)):
            return
        self.buffer = b""
        if head.startswith(b"GET"):
            self.answer_get(head)
            return
        wanted = WANTED.search(body)
        assert wanted is not None
        self.truth.running += 1
        self.truth.peak = max(self.truth.peak, self.truth.running)
        due = self.loop.time() + self.ttft_s - (clock() - now)
        self.loop.call_at(due, self.first, now, int(wanted.group(1)))

    def answer_get(self, head: bytes) -> None:
        status, body = b"404 X", b"{}"
        if b" /truth " in head:
            truth = self.truth
            status = b"200 OK"
            body = json.dumps([truth.ttft, truth.gaps, truth.peak]).encode()
            truth.ttft, truth.gaps, truth.peak = [], [], 0
        self.transport.write(
            b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)
        )

    def first(self, arrived: float, wanted: int) -> None:
        self.transport.write(HEAD + self.event(0))
        now = clock()
        self.truth.ttft.append(now - arrived)
        self.loop.call_at(self.loop.time() + self.itl_s, self.next, 1, wanted, now)

    def next(self, number: int, wanted: int, before: float) -> None:
        if number < wanted:
            self.transport.write(self.event(number))
            now = clock()
            self.truth.gaps.append(now - before)
            self.loop.call_at(
                self.loop.time() + self.itl_s - (now - before - self.itl_s) * 0.5,
                self.next,
                number + 1,
                wanted,
                now,
            )
            return
        usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": wanted}}
        last = chunk(b"data: " + json.dumps(usage).encode() + b"\n\n")
        self.transport.write(last + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        self.truth.running -= 1

    def event(self, number: int) -> bytes:
        body = (
            b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795'
            b'980000,"model":"m","choices":[{"index":0,"delta":{"content":" t%d"},"logprobs":null,"fini'
            b'sh_reason":%s,"matched_stop":null}],"usage":null}\n\n'
        )
        finish = b'"length"' if number == self.last else b"null"
        return chunk(body % (number, finish))

    last = -1


async def main() -> None:
    ttft_s, itl_s, tokens = (float(word) / 1e3 for word in sys.argv[1:4])
    Server.last = round(tokens * 1e3) - 1
    truth = Truth()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Server(truth, ttft_s, itl_s), "127.0.0.1", 0, backlog=2048
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    # asyncio's own loop writes at once; uvloop writes at the end of a pass, after all stamps of it
    asyncio.run(main())
