"""HTTP/1.1 to an inference server: bytes are stamped when they arrive and looked at later.

The framing is llhttp's (httptools) on asyncio.Protocol; TLS is asyncio's. Proxy variables of the
environment are never read: a proxy between the client and the server would be measured instead.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from typing import Any

import httptools

from opsctl.agent.ops.load_wire import (
    CONNECT_TIMEOUT_S,
    ConnectFailed,
    Ended,
    Exchange,
    Pulse,
    StreamConnection,
    describe_os_error,
    kind_of,
)
from opsctl.records import dataclass
from opsctl.sglang.endpoint import Endpoint


class Connection(StreamConnection):
    """One kept connection whose answers llhttp frames."""

    def __init__(self, pulse: Pulse) -> None:
        super().__init__(pulse)
        self.parser: Any = httptools.HttpResponseParser(self)

    # asyncio's side

    def data_received(self, data: bytes) -> None:
        self.now = self.pulse.stamp()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.end(Ended.PROTOCOL, f"the answer is not HTTP: {error}")
            self.close()

    def broke(self, exc: Exception) -> None:
        if isinstance(exc, ssl.SSLError):
            self.end(Ended.TLS, str(exc))
        else:
            super().broke(exc)

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

    on_body = StreamConnection.take_body

    def on_message_complete(self) -> None:
        exchange = self.exchange
        if exchange is None:
            return
        if 100 <= exchange.status < 200:  # an informational answer precedes the real one
            exchange.framed = exchange.body_open = False
            return
        if not self.parser.should_keep_alive():
            self.close()
        self.end(Ended.COMPLETE, "")


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
        raise ConnectFailed(kind_of(error), describe_os_error(error)) from error


async def _answers_tcp(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), 1.0)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


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


__all__ = [
    "Answer",
    "ConnectFailed",
    "Connection",
    "Ended",
    "Exchange",
    "Pulse",
    "ask",
    "connect",
    "describe_os_error",
    "describe_tls_error",
]
