"""A streaming server whose times are known: it writes down when it got a request and sent each chunk.

`python -m benchmarks.truth_server TTFT_MS ITL_MS TOKENS` prints its port. GET /truth returns and forgets
the times since the last call. A plain epoll loop: a stamp stands beside each system call, so little of
what is measured is this server's own work.
"""

from __future__ import annotations

import heapq
import json
import re
import select
import socket
import sys
import time

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH = re.compile(rb"(?i)content-length: (\d+)")
SENDS_PER_TURN = 8  # then look for new requests again
clock = time.monotonic


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(number: int, last: bool) -> bytes:
    body = (
        b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795'
        b'980000,"model":"m","choices":[{"index":0,"delta":{"content":" t%d"},"logprobs":null,"fini'
        b'sh_reason":%s,"matched_stop":null}],"usage":null}\n\n'
    )
    return chunk(body % (number, b'"length"' if last else b"null"))


class Server:
    """All connections, and the heap of what is due on them."""

    def __init__(self, ttft_s: float, itl_s: float, tokens: int) -> None:
        self.ttft_s = ttft_s
        self.itl_s = itl_s
        usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}}
        end = chunk(b"data: " + json.dumps(usage).encode() + b"\n\n")
        self.pieces = [event(number, number == tokens - 1) for number in range(tokens)]
        self.pieces[0] = HEAD + self.pieces[0]
        self.pieces.append(end + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.listener.setblocking(False)
        self.epoll = select.epoll()
        self.epoll.register(self.listener, select.EPOLLIN)
        self.sockets: dict[int, socket.socket] = {}
        self.received: dict[int, bytes] = {}
        self.due: list[tuple[float, int, int, float]] = []  # when, socket, piece, time before
        self.forget()

    def forget(self) -> None:
        self.ttft: list[float] = []
        self.gaps: list[float] = []
        self.running = self.peak = 0

    def serve(self) -> None:
        while True:
            wait_s = max(0.0, self.due[0][0] - clock()) if self.due else 1.0
            for number, _ in self.epoll.poll(wait_s):
                if number == self.listener.fileno():
                    self.accept()
                else:
                    self.receive(number)
            for _ in range(SENDS_PER_TURN):
                if not self.due or self.due[0][0] > clock():
                    break
                self.send(*heapq.heappop(self.due))

    def accept(self) -> None:
        try:
            made, _ = self.listener.accept()
        except BlockingIOError:
            return
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sockets[made.fileno()] = made
        self.epoll.register(made, select.EPOLLIN)

    def receive(self, number: int) -> None:
        now = clock()
        try:
            data = self.sockets[number].recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            self.epoll.unregister(number)
            self.sockets.pop(number).close()
            return
        data = self.received.pop(number, b"") + data
        head, found, body = data.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if not found or (length is not None and len(body) < int(length.group(1))):
            self.received[number] = data
        elif head.startswith(b"GET"):
            self.answer_get(number, head)
        else:
            heapq.heappush(self.due, (now + self.ttft_s, number, 0, now))
            self.running += 1
            self.peak = max(self.peak, self.running)

    def answer_get(self, number: int, head: bytes) -> None:
        status, body = b"404 X", b"{}"
        if b" /truth " in head:
            status = b"200 OK"
            body = json.dumps([self.ttft, self.gaps, self.peak]).encode()
            self.forget()
        elif b" /v1/models " in head or b" /health" in head:  # some tools ask first
            status, body = b"200 OK", b'{"object":"list","data":[{"id":"m","object":"model"}]}'
        answer = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)
        made = self.sockets[number]
        made.setblocking(True)
        made.sendall(answer)

    def send(self, due: float, number: int, piece: int, before: float) -> None:
        made = self.sockets.get(number)
        if made is None:
            return  # the client went away
        now = clock()
        try:
            made.send(self.pieces[piece])
        except OSError:
            return
        if piece == len(self.pieces) - 1:
            self.running -= 1
            return
        (self.gaps if piece else self.ttft).append(now - before)
        heapq.heappush(self.due, (due + self.itl_s, number, piece + 1, now))


if __name__ == "__main__":
    server = Server(float(sys.argv[1]) / 1e3, float(sys.argv[2]) / 1e3, int(float(sys.argv[3])))
    print(server.listener.getsockname()[1], flush=True)
    server.serve()
