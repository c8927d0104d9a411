"""HTTP/1.1 on asyncio streams, as much of it as the endpoints need."""

import asyncio
import json
import time
from email.utils import formatdate

from sglang.standin import log

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}
REASONS.update({405: "Method Not Allowed", 500: "Internal Server Error", 502: "Bad Gateway"})
REASONS.update({429: "Too Many Requests", 503: "Service Unavailable"})
LARGEST_BODY = 1 << 26


class Cut(Exception):
    """Close the connection here and now, in the middle of the answer."""


class Request:
    """One request, read whole."""

    def __init__(self, method, target, headers, body, peer):
        self.method = method
        self.path = target.partition("?")[0]
        self.headers = headers
        self.body = body
        self.peer = peer

    def json(self):
        """Return the body's object; anything else is a ValueError."""
        found = json.loads(self.body.decode("utf-8"))
        if not isinstance(found, dict):
            raise ValueError("Input should be a dictionary")
        return found


class Connection:
    """One client, request after request."""

    def __init__(self, reader, writer, dispatch):
        self.reader = reader
        self.writer = writer
        self.dispatch = dispatch
        self.request = None
        self.began = False

    async def serve(self):
        """Answer until the client goes."""
        try:
            while await self._read_one():
                keep = self.request.headers.get("connection", "").lower() != "close"
                self.began = False
                await self.dispatch(self, self.request)
                if not keep:
                    break
        except (Cut, ConnectionError, asyncio.IncompleteReadError):
            self.writer.transport.abort()
        finally:
            self.writer.close()

    def gone(self):
        """Return whether the client has closed its end."""
        return self.reader.at_eof() or self.writer.transport.is_closing()

    async def answer(self, status, body=b"", kind="application/json"):
        """Send a whole response; anything but bytes is sent as JSON."""
        if not isinstance(body, bytes):
            body = json.dumps(body, separators=(",", ":")).encode()
        fields = ["content-length: %d" % len(body)]
        if body:
            fields.append("content-type: " + kind)
        self._head(status, fields)
        self.writer.write(body)
        await self.writer.drain()

    def begin_stream(self):
        """Send the head of an event stream."""
        fields = ["content-type: text/event-stream; charset=utf-8", "Transfer-Encoding: chunked"]
        self._head(200, fields)

    async def event(self, data):
        """Send one event: an object, or the text [DONE]."""
        if not isinstance(data, str):
            data = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
        payload = b"data: " + data.encode() + b"\n\n"
        self.writer.write(b"%x\r\n%s\r\n" % (len(payload), payload))
        await self.writer.drain()

    async def end_stream(self):
        """Send the last chunk."""
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def cut(self):
        """Close without ending the answer."""
        await asyncio.sleep(0.01)
        raise Cut

    def _head(self, status, fields):
        reason = REASONS.get(status, "Unknown")
        head = [
            "HTTP/1.1 %d %s" % (status, reason),
            "date: " + formatdate(time.time(), usegmt=True),
        ]
        self.writer.write("\r\n".join([*head, "server: uvicorn", *fields, "", ""]).encode())
        request = self.request
        log.access(
            '%s:%d - "%s %s HTTP/1.1" %d %s'
            % (*request.peer[:2], request.method, request.path, status, reason)
        )

    async def _read_one(self):
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        length = int(headers.get("content-length") or 0)
        if length > LARGEST_BODY:
            return False
        body = await self.reader.readexactly(length) if length else b""
        peer = self.writer.get_extra_info("peername") or ("127.0.0.1", 0)
        self.request = Request(method, target, headers, body, peer)
        return True
