"""HTTP/1.1 to an inference server: bytes are stamped when they arrive and looked at later.

The framing is llhttp's (httptools) on asyncio.Protocol; TLS is asyncio's. Proxy variables of the
environment are never read: a proxy between the client and the server would be measured instead.
"""

from __future__ import annotations

import asyncio
import errno
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

import httptools

from opsctl.sglang.endpoint import Endpoint

CONNECT_TIMEOUT_S = 5.0
BURST = 8
DENSE_S = 0.001


class Ended(StrEnum):
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
        for at, piece in zip(reversed(self.times), reversed(self.pieces), strict=True):
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


class Connection(asyncio.Protocol):
    """One kept connection; carries one exchange at a time."""

    def __init__(self, pulse: Pulse) -> None:
        self.pulse = pulse
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.parser: Any = httptools.HttpResponseParser(self)
        self.used = 0
        self.closed = False
        self.clock = time.monotonic
        self.now = 0.0

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop does not subclass it

    def data_received(self, data: bytes) -> None:
        self.now = self.pulse.stamp()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(Ended.PROTOCOL, f"the answer is not HTTP: {error}")
            self.close()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        exchange = self.exchange
        if exchange is None:
            return
        self.now = self.clock()
        if isinstance(exc, ssl.SSLError):
            self._end(Ended.TLS, str(exc))
        elif exc is not None:
            self._end(Ended.RESET, describe_os_error(exc))
        elif exchange.body_open and not exchange.framed:
            self._end(Ended.COMPLETE, "")
        elif exchange.body_open:
            self._end(Ended.CUT, "the server closed the connection inside the answer")
        else:
            self._end(Ended.CUT, "the server closed the connection without an answer")

    # httptools' side

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.lower()
        if self.exchange is None:
            return
        if key == b"content-type":
            self.exchange.content_type = value.decode("latin-1").lower()
        elif key in (b"content-length", b"transfer-encoding"):
            self.exchange.framed = True

    def on_headers_complete(self) -> None:
        if self.exchange is not None:
            self.exchange.status = self.parser.get_status_code()
            self.exchange.header_s = self.now
            self.exchange.body_open = True

    def on_body(self, body: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            return
        exchange.times.append(self.now)
        exchange.pieces.append(body)
        if exchange.abort_after and len(exchange.pieces) >= exchange.abort_after:
            self._end(Ended.CANCELLED, "closed by the client on purpose")
            self.close()

    def on_message_complete(self) -> None:
        exchange = self.exchange
        if exchange is None:
            return
        if 100 <= exchange.status < 200:  # an informational answer precedes the real one
            exchange.framed = exchange.body_open = False
            return
        if not self.parser.should_keep_alive():
            self.close()
        self._end(Ended.COMPLETE, "")

    # the caller's side

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
            self._end(Ended.CUT, "the server closed the connection before the request", now)
            return done
        self.transport.write(exchange.request)
        return done

    def give_up(self, ended: Ended, error: str) -> None:
        """End the exchange in hand from our side and close the connection."""
        self._end(ended, error, self.clock())
        self.close()

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        self.closed = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def _end(self, ended: Ended, error: str, now: float | None = None) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.finish(ended, self.now if now is None else now, error)


class ConnectFailed(Exception):
    """No connection; ``ended`` says of which kind."""

    def __init__(self, ended: Ended, error: str) -> None:
        super().__init__(error)
        self.ended = ended
        self.error = error


async def connect(
    endpoint: Endpoint,
    pulse: Pulse | None = None,
    *,
    context: ssl.SSLContext | None = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> Connection:
    """Open one connection.

    Raises:
        ConnectFailed: refused, unreachable, no TLS, or this machine was the limit.
    """
    host, port = endpoint.host, endpoint.port
    if endpoint.tls and context is None:
        context = endpoint.context()
    loop = asyncio.get_running_loop()
    made = pulse or Pulse()
    name = host if context is not None else None

    async def open_one() -> Connection:
        if endpoint.dial is not None:
            ready = await asyncio.to_thread(endpoint.dial, timeout_s)
            ready.setblocking(False)
            _, connection = await loop.create_unix_connection(
                lambda: Connection(made), sock=ready, ssl=context, server_hostname=name
            )
            return connection
        _, connection = await loop.create_connection(
            lambda: Connection(made), host, port, ssl=context, server_hostname=name
        )
        return connection

    try:
        return await asyncio.wait_for(open_one(), timeout_s)
    except TimeoutError as error:
        if context is not None and await _answers_tcp(host, port):
            words = f"no TLS handshake within {timeout_s:g} s: the port does not speak TLS"
            raise ConnectFailed(Ended.TLS, words) from error
        raise ConnectFailed(Ended.UNREACHABLE, f"no connection within {timeout_s:g} s") from error
    except ssl.SSLError as error:
        raise ConnectFailed(Ended.TLS, describe_tls_error(error)) from error
    except OSError as error:
        raise ConnectFailed(_kind_of(error), describe_os_error(error)) from error


async def _answers_tcp(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), 1.0)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


LOCAL_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}


def _kind_of(error: OSError) -> Ended:
    if isinstance(error, ConnectionRefusedError):
        return Ended.REFUSED
    if isinstance(error, ConnectionResetError | BrokenPipeError):
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


def describe_tls_error(error: ssl.SSLError) -> str:
    """Return why TLS failed in words that say which side is wrong."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {error.verify_message}"
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return "the port does not speak TLS"
    return f"no TLS connection: {(error.reason or str(error)).lower().replace('_', ' ')}"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole short answer."""

    status: int
    body: bytes
    seconds: float

    def json(self) -> Any:
        """Return the decoded body, or None when it is no JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


async def ask(
    endpoint: Endpoint,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    timeout_s: float,
) -> Answer:
    """Send one request on a connection of its own and return the whole answer.

    Raises:
        ConnectFailed: also when the answer did not arrive whole in time (``ended`` is then
            stalled, cut or reset).
    """
    connection = await connect(endpoint, timeout_s=min(timeout_s, CONNECT_TIMEOUT_S))
    raw = b"" if body is None else json.dumps(body).encode()
    exchange = Exchange(endpoint.request(method, path, raw))
    try:
        await asyncio.wait_for(connection.send(exchange), timeout_s)
    except TimeoutError:
        connection.give_up(Ended.STALLED, f"no answer within {timeout_s:g} s")
    finally:
        connection.close()
    if exchange.ended is not Ended.COMPLETE:
        raise ConnectFailed(exchange.ended or Ended.CUT, exchange.error)
    return Answer(exchange.status, exchange.body, exchange.end_s - exchange.sent_s)
