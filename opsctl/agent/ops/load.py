"""Far side of a load test: one level against a port of this host, and what came back. Python 3.8.

The requests come ready to be written; what comes back are times and bytes, decoded and judged by the client.
"""

from __future__ import annotations

import array
import asyncio
import binascii
import json
import time
import zlib

from opsctl.agent.ops import load_http, load_level
from opsctl.agent.ops.load_level import Job, Level, Limits, RawLevel, Sign

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.ops.load_wire import Exchange, Pulse
    from opsctl.agent.remote import Context

TELL_S = 0.2  # how often progress is told, and a withdrawal looked for
BATCH_BYTES = 512 << 10
HELD = "load"


class Run:
    """One level in hand; fed, stopped and read from the agent's other threads."""

    def __init__(self, request: dict[str, Any], context: Context) -> None:
        self._request = request
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._jobs: list[Job] = []
        self._level: Level | None = None
        self._early: dict[str, Any] | None = None
        self.feed(request)

    def feed(self, request: dict[str, Any]) -> None:
        """Take more requests: base64 of zlib of JSON, [[request, abort_after], ...]."""
        rows = json.loads(zlib.decompress(binascii.a2b_base64(request["jobs"])))
        first = len(self._jobs)
        self._jobs += [
            Job(first + index, text.encode("latin-1"), 0, abort)
            for index, (text, abort) in enumerate(rows)
        ]

    def stop(self, request: dict[str, Any]) -> None:
        """End the level early: for a sign of trouble that the client saw, or as it wishes."""
        self._early = request
        self._loop.call_soon_threadsafe(self._apply)

    def run(self) -> RawLevel:
        """Run the level on a loop of this thread."""
        asyncio.set_event_loop(self._loop)
        try:
            return self._loop.run_until_complete(self._drive())
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()

    async def _drive(self) -> RawLevel:
        request = self._request
        host, port = request["host"], request["port"]

        async def open_one(pulse: Pulse) -> load_http.PlainConnection:
            return await load_http.connect(host, port, pulse)

        level = self._level = Level(
            request["name"],
            request["concurrency"],
            request["count"],
            self._job,
            connect=open_one,
            digest=compress,
            limits=Limits(*request["limits"]),
            min_seconds=request["min_seconds"],
        )
        level.place = "the server's host"
        self._apply()
        teller = asyncio.ensure_future(self._tell(level))
        try:
            return await level.run()
        finally:
            teller.cancel()

    def _job(self, index: int) -> Job | None:
        return self._jobs[index] if index < len(self._jobs) else None

    def _apply(self) -> None:
        if self._level is None or self._early is None:
            return
        if "sign" in self._early:
            source, detail, hung = self._early["sign"]
            self._level.trouble(Sign(source, time.monotonic(), detail, hung))
        else:
            self._level.interrupt()

    async def _tell(self, level: Level) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            if self._context.cancelled.is_set():
                level.interrupt()
                return
            progress = load_level.progress_of(level.raw)
            progress["unsent"] = len(self._jobs) - len(level.raw.exchanges)
            self._context.emit({"progress": progress})


def compress(exchange: Exchange) -> None:
    """Keep a finished answer small: its pieces joined and compressed, their sizes and times packed."""
    sizes = array.array("L", [len(piece) for piece in exchange.pieces])
    packed = zlib.compress(b"".join(exchange.pieces), 1)
    exchange.cached = (array.array("d", exchange.times), sizes, packed)
    exchange.pieces.clear()
    exchange.times.clear()


def _row(exchange: Exchange) -> tuple[list[Any], bytes]:
    if exchange.cached is not None:
        times, sizes, packed = exchange.cached
        body = zlib.decompress(packed)
    else:
        times, sizes = exchange.times, [len(piece) for piece in exchange.pieces]
        body = b"".join(exchange.pieces)
    assert exchange.ended is not None
    head = [
        exchange.tag.prompt,
        exchange.sent_s,
        exchange.header_s,
        exchange.end_s,
        exchange.status,
        exchange.content_type,
        exchange.ended.value,
        exchange.error,
        exchange.retried,
        [round(at_s, 7) for at_s in times],
        list(sizes),
    ]
    return head, body


def tell_exchanges(raw: RawLevel, context: Context) -> None:
    """Send what came back, in pieces of a bounded size; only now, when nothing is timed any more."""
    heads: list[list[Any]] = []
    bodies: list[bytes] = []
    size = 0
    for exchange in raw.exchanges:
        if exchange.ended is None:
            continue
        head, body = _row(exchange)
        heads.append(head)
        bodies.append(body)
        size += len(body) + 10 * len(head[-1])
        if size > BATCH_BYTES:
            _emit(heads, bodies, context)
            heads, bodies, size = [], [], 0
    if heads:
        _emit(heads, bodies, context)


def _emit(heads: list[list[Any]], bodies: list[bytes], context: Context) -> None:
    data = json.dumps(heads).encode("ascii") + b"\n" + b"".join(bodies)
    packed = binascii.b2a_base64(zlib.compress(data, 1), newline=False)
    context.emit({"exchanges": packed.decode("ascii")})


def level(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Run one level: ``jobs`` against ``host``:``port`` with ``concurrency`` slots.

    Events: ``progress`` while it runs, then ``exchanges``. Times are this host's monotonic clock.
    """
    if HELD in context.held:
        raise context.Error("busy", "another level is running")
    allowed = load_level.raise_descriptor_limit(request["concurrency"])
    if allowed < request["concurrency"] + 16:
        return {
            "local": "the server's host allows %d open files and the level needs %d; raise the hard limit "
            "(ulimit -Hn)" % (allowed, request["concurrency"] + 16)
        }
    run = context.held[HELD] = Run(request, context)
    try:
        raw = run.run()
    finally:
        del context.held[HELD]
    tell_exchanges(raw, context)
    sign = raw.sign
    return {
        "started_s": raw.started_s,
        "ended_s": raw.ended_s,
        "lags_s": [round(lag_s, 6) for lag_s in raw.lags_s],
        "cpu_s": raw.cpu_s,
        "sign": None if sign is None else [sign.source, sign.at_s, sign.detail, sign.hung],
        "local": raw.local,
        "interrupted": raw.interrupted,
        "cancelled": raw.cancelled,
    }


def _in_hand(context: Context) -> Run | None:
    run: Run | None = context.held.get(HELD)
    return run


def feed(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Add requests to the level in hand."""
    run = _in_hand(context)
    if run is not None:
        run.feed(request)
    return {"taken": run is not None}


def stop(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Stop sending; ``sign``: [source, words, hung] of what the client saw, else it is an interruption."""
    run = _in_hand(context)
    if run is not None:
        run.stop(request)
    return {"taken": run is not None}


def clock(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return this host's monotonic clock, to place its times on the client's."""
    return {"monotonic_s": time.monotonic()}


OPERATIONS = {"clock": clock, "feed": feed, "level": level, "stop": stop}
