"""The framing of HTTP/1.1 answers with the standard library alone. Python 3.8.

asyncio has no HTTP parser, and ``http.client`` reads from blocking files. What is read here is what an
inference server sends: a status line, headers, and a body in chunks, of a length, or to the end.
"""

from __future__ import annotations

import asyncio
import re

from opsctl.agent.ops import load_wire
from opsctl.agent.ops.load_wire import Ended, Exchange

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from opsctl.agent.ops.load_wire import Pulse

STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: |$)")
HEAD_LIMIT = 1 << 16
CHUNK_LINE_LIMIT = 4096
LENGTH = re.compile(rb"[0-9]{1,18}")
CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")


class PlainConnection(load_wire.StreamConnection):
    """A connection that frames answers by itself."""

    def __init__(self, pulse: Pulse) -> None:
        super().__init__(pulse)
        self._buffer = b""
        self._step = self._head
        self._left = 0  # bytes of the body, or of the chunk, that are still to come
        self._keep = True

    def send(self, exchange: Exchange) -> asyncio.Future[None]:
        self._step = self._head
        return super().send(exchange)

    def data_received(self, data: bytes) -> None:
        self.now = self.pulse.stamp()
        if self.exchange is None and not self._buffer:
            self.close()  # an answer that nobody asked for: the next one could not be told from it
            return
        self._buffer = self._buffer + data if self._buffer else data
        while self._buffer and self.exchange is not None and self._step():
            pass

    def _wrong(self, what: str) -> bool:
        self.end(Ended.PROTOCOL, "the answer is not HTTP: %s" % what)
        self.close()
        return False

    def _head(self) -> bool:
        """Take the status line and the headers once all of them are there."""
        exchange = self.exchange
        assert exchange is not None
        head, mark, rest = self._buffer.partition(b"\r\n\r\n")
        if not mark:
            start = b"HTTP/1."
            if self._buffer[: len(start)] != start[: len(self._buffer)]:
                return self._wrong("no status line")
            if len(self._buffer) > HEAD_LIMIT:
                return self._wrong("its headers do not end")
            return False
        first, *lines = head.split(b"\r\n")
        found = STATUS.match(first)
        if found is None:
            return self._wrong("no status line")
        self._buffer = rest
        status = int(found.group(2))
        if 100 <= status < 200:  # an informational answer precedes the real one
            return True
        length, chunked, self._keep = None, False, found.group(1) == b"1"
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon:
                return self._wrong("a header without a colon")
            name, value = name.strip().lower(), value.strip()
            if name == b"content-type":
                exchange.content_type = value.decode("latin-1").lower()
            elif name == b"content-length":
                if LENGTH.fullmatch(value) is None:
                    return self._wrong("a length that is no number")
                length = int(value)
            elif name == b"transfer-encoding":
                chunked = value.lower().endswith(b"chunked")
            elif name == b"connection":
                self._keep = value.lower() != b"close" and (
                    self._keep or value.lower() == b"keep-alive"
                )
        exchange.status = status
        exchange.header_s = self.now
        exchange.body_open = True
        exchange.framed = chunked or length is not None
        if chunked:
            self._step = self._chunk_size
        elif length is not None or status in load_wire.NO_BODY:
            self._left = length or 0
            self._step = self._counted
            if not self._left:
                self._complete()
        else:
            self._keep = False
            self._step = self._to_the_end
        return True

    def _counted(self) -> bool:
        piece, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
        self._left -= len(piece)
        self.take_body(piece)
        if not self._left:
            self._complete()
        return True

    def _to_the_end(self) -> bool:
        piece, self._buffer = self._buffer, b""
        self.take_body(piece)
        return True

    def _chunk_size(self) -> bool:
        line, mark, rest = self._buffer.partition(b"\r\n")
        if not mark:
            if len(line) > CHUNK_LINE_LIMIT:
                return self._wrong("a chunk without its size")
            return False
        found = CHUNK.fullmatch(line)
        if found is None:
            return self._wrong("a chunk without its size")
        self._left = int(found.group(1), 16)
        self._buffer = rest
        self._step = self._chunk if self._left else self._trailer
        return True

    def _chunk(self) -> bool:
        left, buffer = self._left, self._buffer
        if len(buffer) < left:
            self._buffer = b""
            self._left = left - len(buffer)
            self.take_body(buffer)
            return True
        self._left = 0
        self._buffer = buffer[left:]
        self._step = self._chunk_end
        self.take_body(buffer[:left])
        return True

    def _chunk_end(self) -> bool:
        if len(self._buffer) < 2:
            return False if self._buffer == b"\r" else self._wrong("a chunk longer than its size")
        if self._buffer[:2] != b"\r\n":
            return self._wrong("a chunk longer than its size")
        self._buffer = self._buffer[2:]
        self._step = self._chunk_size
        return True

    def _trailer(self) -> bool:
        line, mark, rest = self._buffer.partition(b"\r\n")
        if not mark:
            return False
        self._buffer = rest
        if not line:
            self._complete()
        return True

    def _complete(self) -> None:
        if not self._keep or self._buffer:
            self.close()
        self._buffer = b""
        self.end(Ended.COMPLETE, "")


async def connect(host: str, port: int, pulse: Pulse) -> PlainConnection:
    """Open one connection. Raises ConnectFailed: refused, unreachable, or this machine was the limit."""
    loop = asyncio.get_running_loop()
    making = loop.create_connection(lambda: PlainConnection(pulse), host, port)
    try:
        _, connection = await asyncio.wait_for(making, load_wire.CONNECT_TIMEOUT_S)
    except asyncio.TimeoutError as error:
        words = "no connection within %g s" % load_wire.CONNECT_TIMEOUT_S
        raise load_wire.ConnectFailed(Ended.UNREACHABLE, words) from error
    except OSError as error:
        words = load_wire.describe_os_error(error)
        raise load_wire.ConnectFailed(load_wire.kind_of(error), words) from error
    return connection
