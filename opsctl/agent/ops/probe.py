"""Far side of the probes: one HTTP request beside the server, within a deadline that covers all of it."""

from __future__ import annotations

import http.client
import json
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

MAX_BYTES = 1 << 18


def request(wanted: dict[str, Any], context: Context) -> dict[str, Any]:
    """Send one request; a refusal, a hang and a cut answer are results: ``status`` None with an ``error``.

    Wanted: address, port, method, path, headers, body (an object), timeout_s. No proxy is ever used.
    """
    begun = time.monotonic()
    end = begun + wanted.get("timeout_s", 5.0)
    body = json.dumps(wanted["body"]).encode() if wanted.get("body") is not None else None
    headers = dict(
        {"Content-Type": "application/json"} if body else {}, **(wanted.get("headers") or {})
    )
    connection = http.client.HTTPConnection(wanted["address"], wanted["port"], timeout=left(end))
    try:
        connection.request(wanted.get("method", "GET"), wanted["path"], body, headers)
        response = connection.getresponse()
        data = read(response, connection, end, context)
        reply: dict[str, Any] = {
            "status": response.status,
            "error": None,
            "text": data.decode("utf-8", "replace"),
        }
    except (OSError, http.client.HTTPException) as error:
        kind = "refused" if isinstance(error, ConnectionRefusedError) else type(error).__name__
        reply = {"status": None, "error": "%s: %s" % (kind, error), "text": ""}
        reply["refused"] = isinstance(error, ConnectionRefusedError)
    except ValueError:  # its words would hold the header, and with it a key
        reply = {"status": None, "error": "a header or the path is none of HTTP's", "text": ""}
    finally:
        connection.close()
    reply["seconds"] = round(time.monotonic() - begun, 4)
    reply["json"] = parsed(reply["text"])
    reply["text"] = reply["text"][:4000]
    return reply


def read(
    response: http.client.HTTPResponse,
    connection: http.client.HTTPConnection,
    end: float,
    context: Context,
) -> bytes:
    """Read the body piece by piece, so that a server that drips is bounded as well."""
    data = b""
    while len(data) < MAX_BYTES:
        if context.cancelled.is_set():
            raise socket.timeout("withdrawn")
        if connection.sock is not None:
            connection.sock.settimeout(left(end))
        piece = response.read1(1 << 16)
        if not piece:
            break
        data += piece
    return data


def left(end: float) -> float:
    """Return the seconds until ``end``; past it the request has timed out."""
    seconds = end - time.monotonic()
    if seconds <= 0:
        raise socket.timeout("timed out")
    return seconds


def parsed(text: str) -> Any:
    """Return the object that the text holds, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


OPERATIONS = {"request": request}
