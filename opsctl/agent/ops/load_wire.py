"""HTTP/1.1 streams as a load generator sees them: what one request left behind, and a plain connection.

``Exchange`` is what both load generators fill: the one of this machine (``opsctl.sglang.client``, with
llhttp) and the one on the server's host (``PlainConnection``, standard library only). Python 3.8.
"""

from __future__ import annotations

import asyncio
import errno
import time
from enum import Enum

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any, Callable

CONNECT_TIMEOUT_S = 5.0
BURST = 8
DENSE_S = 0.001
NO_BODY = (204, 304)
LOCAL_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}


class Ended(str, Enum):  # StrEnum is Python 3.11
    """How one exchange ended on the wire."""

    COMPLETE = "complete"
    CUT = "cut"  # the connection closed inside the answer
    RESET = "reset"  # the peer reset the connection
    REFUSED = "refused"  # nothing listens any more
    UNREACHABLE = "unreachable"  # no route, no such name, time-out while connecting
    LOCAL = "local"  # this machine was the limit: descriptors, ports
    PROTOCOL = "protocol"  # the answer is not HTTP
    TLS = "tls"
    STALLED = "stalled"  # we gave up waiting
    CANCELLED = "cancelled"  # we closed it on purpose


class Exchange:
    """One request and what came back: raw pieces of the body, each with its time of arrival."""

    __slots__ = (
        "abort_after",
        "body_open",
        "cached",
        "content_type",
        "done",
        "end_s",
        "ended",
        "error",
        "framed",
        "header_s",
        "pieces",
        "request",
        "retried",
        "sent_s",
        "status",
        "tag",
        "times",
    )

    def __init__(self, request: bytes, tag: Any = None, abort_after: int = 0) -> None:
        self.request = request
        self.tag = tag
        self.abort_after = abort_after  # close after so many pieces; 0: never
        self.sent_s = 0.0
        self.header_s: float | None = None
        self.end_s = 0.0
        self.status = 0
        self.content_type = ""
        self.framed = False  # a length or chunks say where the body ends
        self.body_open = False
        self.times: list[float] = []
        self.pieces: list[bytes] = []
        self.ended: Ended | None = None
        self.error = ""
        self.retried = False
        self.cached: Any = None  # the decoded answer, once somebody needed it
        self.done: asyncio.Future[None] | None = None

    def finish(self, ended: Ended, now: float, error: str = "") -> None:
        """Record the end, once; later ends of the same exchange are ignored."""
        if self.ended is not None:
            return
        self.ended = ended
        self.end_s = now
        self.error = error
        if self.done is not None and not self.done.done():
            self.done.set_result(None)

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def last_token_s(self) -> float | None:
        """Return when the last piece arrived that is no comment: those keep proxies awake, no more."""
        for at, piece in zip(reversed(self.times), reversed(self.pieces)):
            if piece[:1] != b":":
                return at
        return None


class Pulse:
    """The times of arrival of one event loop.

    All sockets that one pass of the loop finds ready had their bytes when the pass began. In a burst
    they share one time, so the work on the first does not make the last look late. Knowing where a
    pass ends costs a turn of the loop, so it is asked for only once ``BURST`` arrivals are dense.
    """

    __slots__ = ("_count", "_since_s", "pass_s")

    def __init__(self) -> None:
        self.pass_s = 0.0
        self._since_s = 0.0
        self._count = 0

    def stamp(self) -> float:
        """Return the time of what has just arrived."""
        if self.pass_s:
            return self.pass_s
        now = time.monotonic()
        if now - self._since_s > DENSE_S:
            self._since_s = now
            self._count = 0
        self._count += 1
        if self._count >= BURST:
            self.pass_s = now
            asyncio.get_running_loop().call_soon(self.end_pass)
        return now

    def end_pass(self) -> None:
        """Forget the pass: what is scheduled in a pass runs after all its ready sockets."""
        self.pass_s = 0.0
        self._count = 0


class ConnectFailed(Exception):
    """No connection; ``ended`` says of which kind."""

    def __init__(self, ended: Ended, error: str) -> None:
        super().__init__(error)
        self.ended = ended
        self.error = error


def kind_of(error: OSError) -> Ended:
    """Return how a failed connect counts."""
    if isinstance(error, ConnectionRefusedError):
        return Ended.REFUSED
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return Ended.RESET
    if error.errno in LOCAL_ERRNOS:
        return Ended.LOCAL
    if "Multiple exceptions" in str(error) and "Connect call failed" in str(error):
        return Ended.REFUSED  # asyncio tried IPv6 and IPv4 and joined both errors
    return Ended.UNREACHABLE


def describe_os_error(error: BaseException) -> str:
    """Return an operating system's error as words, without Python's class names."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ConnectionResetError):
        return "connection reset by the server"
    number = getattr(error, "errno", None)
    if number == errno.EMFILE:
        return "too many open files"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


class StreamConnection(asyncio.Protocol):
    """One kept connection that carries one exchange at a time; how an answer is framed is a subclass's."""

    def __init__(self, pulse: Pulse) -> None:
        self.pulse = pulse
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.used = 0
        self.closed = False
        self.clock: Callable[[], float] = time.monotonic
        self.now = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop does not subclass Transport

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        exchange = self.exchange
        if exchange is None:
            return
        self.now = self.clock()
        if exc is not None:
            self.broke(exc)
        elif exchange.body_open and not exchange.framed:
            self.end(Ended.COMPLETE, "")
        elif exchange.body_open:
            self.end(Ended.CUT, "the server closed the connection inside the answer")
        else:
            self.end(Ended.CUT, "the server closed the connection without an answer")

    def broke(self, exc: Exception) -> None:
        """Record that the connection was lost with an error."""
        self.end(Ended.RESET, describe_os_error(exc))

    def take_body(self, body: bytes) -> None:
        """Keep one piece of the answer."""
        exchange = self.exchange
        if exchange is None:
            return
        exchange.times.append(self.now)
        exchange.pieces.append(body)
        if exchange.abort_after and len(exchange.pieces) >= exchange.abort_after:
            self.end(Ended.CANCELLED, "closed by the client on purpose")
            self.close()

    def send(self, exchange: Exchange) -> asyncio.Future[None]:
        """Write the request and return the future of its end. The time of sending is taken here."""
        assert self.transport is not None
        self.exchange = exchange
        self.used += 1
        done = exchange.done
        if done is None:
            done = exchange.done = asyncio.get_running_loop().create_future()
        now = exchange.sent_s = self.clock()
        if self.closed or self.transport.is_closing():
            self.end(Ended.CUT, "the server closed the connection before the request", now)
            return done
        self.transport.write(exchange.request)
        return done

    def give_up(self, ended: Ended, error: str) -> None:
        """End the exchange in hand from our side and close the connection."""
        self.end(ended, error, self.clock())
        self.close()

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        self.closed = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def end(self, ended: Ended, error: str, now: float | None = None) -> None:
        """End the exchange in hand."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.finish(ended, self.now if now is None else now, error)
