"""The load engine: one level, closed loop, every slot sends its next request when the last one ended.

Connections are open before the timed request; bytes are stamped in ``data_received`` and looked at
after the level, or between requests once much is retained. The garbage collector rests meanwhile.
It runs on this machine (``opsctl.smoke.load``) and on the server's host (``load``). Python 3.8.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections import deque
from dataclasses import dataclass, field

from opsctl.agent.ops.load_wire import ConnectFailed, Ended, Exchange, Pulse

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from collections.abc import Awaitable, Callable
    from typing import Any

    from opsctl.agent.ops.load_wire import StreamConnection

TICK_S = 0.05
LOOK_S = 0.2  # how often silence is looked for
STOOD_STILL_S = 0.5
SENDS_PER_BURST = 16
PACED_ABOVE_S = 0.05
BURST_S = 0.001  # 256 slots start within about 16 ms
CONNECTS_AT_ONCE = 64  # a listen backlog of 100 is common
RETAINED_LIMIT_BYTES = 16 << 20
DRAIN_S = 2.0  # after a crash sign: how long others may still end by themselves
INTERRUPT_S = 5.0  # after Ctrl-C: the same; an abort wave can kill a server (sglang PR 31965)
CLOSE_GAP_S = 0.01
LATER_S = 0.005
SPARE_DESCRIPTORS = 64


@dataclass(frozen=True)
class Job:
    """One request to send."""

    prompt: Any  # what it asks, as its maker knows it
    request: bytes
    tokens: int
    abort_after: int = 0


@dataclass(frozen=True)
class Limits:
    """How long silence may last, in seconds."""

    stall_s: float = (
        30.0  # no byte on any stream while requests run; or on one after its first token
    )
    first_token_s: float = 120.0  # one request's first token, queueing included


@dataclass(frozen=True)
class Sign:
    """One sign that the server is gone or stuck: where it was seen, when, in which words."""

    source: str  # http, stall, process, log, port
    at_s: float  # monotonic
    detail: str
    hung: bool = False


@dataclass
class RawLevel:
    """What one level left behind, undecoded."""

    name: str
    concurrency: int
    jobs: int
    exchanges: list[Exchange] = field(default_factory=list)
    started_s: float = 0.0
    ended_s: float = 0.0
    lags_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    sign: Sign | None = None
    local: str | None = None  # the machine that sends was the limit, and why
    interrupted: bool = False
    cancelled: int = 0  # streams that we closed before their end

    @property
    def in_flight(self) -> int:
        return sum(1 for e in self.exchanges if e.sent_s and e.ended is None)


def progress_of(raw: RawLevel) -> dict[str, Any]:
    """Return how far a running level is."""
    ended = [exchange for exchange in raw.exchanges if exchange.ended is not None]
    first = sorted(e.times[0] - e.sent_s for e in ended if e.times)
    return {
        "in_flight": raw.in_flight,
        "ended": len(ended),
        "failed": sum(1 for e in ended if e.status not in (0, 200) or e.error),
        "chunks": sum(len(exchange.times) for exchange in raw.exchanges),
        "ttft_ms": first[len(first) // 2] * 1e3 if first else None,
        "seconds": time.monotonic() - raw.started_s if raw.started_s else 0.0,
    }


LATER = Job(None, b"", 0)


class Level:
    """Runs one level on the running event loop."""

    place = "this machine"  # where the requests come from

    def __init__(
        self,
        name: str,
        concurrency: int,
        jobs: int,
        make_job: Callable[[int], Job | None],
        *,
        connect: Callable[[Pulse], Awaitable[StreamConnection]],
        digest: Callable[[Exchange], None],
        limits: Limits,
        min_seconds: float = 0.0,
        on_tick: Callable[[RawLevel], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.raw = RawLevel(name, concurrency, jobs)
        self._connect_one = connect
        self._digest = digest
        self._limits = limits
        self._min_seconds = min_seconds
        self._on_tick = on_tick
        self._clock = clock
        self._make_job = make_job
        self._ready = [make_job(index) for index in range(jobs)]
        self._sent = 0
        self._stopping = False
        self._pulse = Pulse()
        self._connections: set[StreamConnection] = set()
        self._over = asyncio.Event()
        self._decoded = 0
        self._silent_since_s = self._last_end_s = self._burst_s = 0.0
        self._in_burst = 0
        self._paced = True  # until an answer is so fast that pacing would leave slots idle
        self._retained_bytes = 0
        self._outbox: deque[tuple[StreamConnection, Exchange]] = deque()

    def trouble(self, sign: Sign) -> None:
        """Note the first sign and stop sending."""
        if self.raw.sign is None:
            self.raw.sign = sign
        self._stopping = True
        self._over.set()

    def interrupt(self) -> None:
        """Stop sending because the operator wants to."""
        self.raw.interrupted = True
        self._stopping = True
        self._over.set()

    async def run(self) -> RawLevel:
        """Send all requests of the level and return what came back."""
        raw = self.raw
        collecting = gc.isenabled()
        gc.disable()
        opened = await self._open_all()
        raw.started_s = self._clock()
        cpu = time.process_time()
        monitor = asyncio.create_task(self._monitor())
        try:
            if raw.local is None:
                slots = [asyncio.create_task(self._slot(connection)) for connection in opened]
                await self._wait(slots)
        finally:
            monitor.cancel()
            for connection in self._connections:
                connection.close()
            raw.cpu_s = time.process_time() - cpu
            raw.ended_s = max((e.end_s for e in raw.exchanges if e.ended), default=self._clock())
            if collecting:
                gc.enable()
        return raw

    async def _wait(self, slots: list[asyncio.Task[None]]) -> None:
        everything = asyncio.gather(*slots)
        over = asyncio.create_task(self._over.wait())
        both: set[asyncio.Future[Any]] = {everything, over}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not everything.done():
            hung = self.raw.sign is not None and self.raw.sign.hung
            grace = 0.0 if hung else INTERRUPT_S if self.raw.interrupted else DRAIN_S
            await asyncio.wait([everything], timeout=grace)
            await self._close_rest()
        await everything

    async def _close_rest(self) -> None:
        """Close what still streams, one after the other."""
        for connection in list(self._connections):
            if connection.exchange is not None:
                self.raw.cancelled += 1
                stuck = self.raw.sign is not None and self.raw.sign.hung
                connection.give_up(
                    Ended.STALLED if stuck else Ended.CANCELLED,
                    "no token arrived any more" if stuck else "closed when the level was stopped",
                )
                await asyncio.sleep(CLOSE_GAP_S)

    async def _open_all(self) -> list[StreamConnection | None]:
        gate = asyncio.Semaphore(CONNECTS_AT_ONCE)

        async def open_one() -> StreamConnection | None:
            async with gate:
                return None if self._stopping else await self._connect()

        count = min(self.raw.concurrency, max(len(self._ready), 1))
        return list(await asyncio.gather(*(open_one() for _ in range(count))))

    async def _connect(self) -> StreamConnection | None:
        """Return a new connection; None when there is none, with the reason noted."""
        try:
            connection = await self._connect_one(self._pulse)
        except ConnectFailed as failed:
            if failed.ended is Ended.LOCAL:
                self.raw.local = "%s was the limit: %s" % (self.place, failed.error)
                self._stopping = True
                self._over.set()
            else:
                self.trouble(Sign("http", self._clock(), failed.error))
            return None
        self._connections.add(connection)
        return connection

    async def _slot(self, connection: StreamConnection | None) -> None:
        while (job := self._next()) is not None:
            if job is LATER:
                await asyncio.sleep(LATER_S)
                continue
            exchange = Exchange(job.request, job, job.abort_after)
            if connection is None or connection.closed:
                if connection is not None:
                    self._connections.discard(connection)
                connection = await self._connect()
                if connection is None:
                    return
            self.raw.exchanges.append(exchange)
            connection = await self._perform(connection, exchange)
            self._last_end_s = exchange.end_s
            self._paced = self._paced and exchange.end_s - exchange.sent_s > PACED_ABOVE_S
            self._retained_bytes += sum(map(len, exchange.pieces))
            self._judge_wire(exchange)

    async def _perform(self, connection: StreamConnection, exchange: Exchange) -> StreamConnection:
        reused = connection.used > 0
        await self._send(connection, exchange)
        if not (reused and exchange.ended in (Ended.CUT, Ended.RESET) and not exchange.status):
            return connection
        # A server may close an idle connection just when we use it again (RFC 9112, 9.3.1).
        self._connections.discard(connection)
        again = await self._connect()
        if again is None:
            return connection
        exchange.ended = exchange.done = None
        exchange.error = ""
        exchange.retried = True
        await self._send(again, exchange)
        return again

    def _send(self, connection: StreamConnection, exchange: Exchange) -> asyncio.Future[None]:
        """Send in turn, one per pass of the loop.

        A pass writes only at its end, so stamps of one pass would be earlier than their bytes; and a
        burst of all slots at once would wait in the server's socket, unseen by both sides: so only
        a few are sent in one millisecond.
        """
        loop = asyncio.get_running_loop()
        done = exchange.done = loop.create_future()
        self._outbox.append((connection, exchange))
        if len(self._outbox) == 1:
            loop.call_soon(self._send_next)
        return done

    def _send_next(self) -> None:
        loop = asyncio.get_running_loop()
        now = self._clock()
        if now - self._burst_s >= BURST_S:
            self._burst_s, self._in_burst = now, 0
        if self._paced and self._in_burst >= SENDS_PER_BURST:
            loop.call_later(BURST_S, self._send_next)
            return
        self._in_burst += 1
        connection, exchange = self._outbox.popleft()
        connection.send(exchange)
        if self._outbox:
            loop.call_soon(self._send_next)

    def _next(self) -> Job | None:
        if self._stopping:
            return None
        index = self._sent
        if index >= len(self._ready):
            if self._clock() - self.raw.started_s >= self._min_seconds:
                return None
            made = self._make_job(index)
            if made is None:  # the next requests are on their way
                return LATER
            self._sent += 1
            return made
        self._sent += 1
        return self._ready[index]

    def _judge_wire(self, exchange: Exchange) -> None:
        if self.raw.interrupted or self._stopping:
            return
        if exchange.ended in (Ended.CUT, Ended.RESET, Ended.REFUSED):
            self.trouble(Sign("http", exchange.end_s, exchange.error))

    async def _monitor(self) -> None:
        """Measure our own lag, look for silence, keep memory bounded."""
        due = self._clock() + TICK_S
        look_s = 0.0
        while True:
            await asyncio.sleep(max(0.0, due - self._clock()))
            now = self._clock()
            late_s = now - due
            self.raw.lags_s.append(max(0.0, late_s))
            if late_s > STOOD_STILL_S:  # we were stopped or starved: the silence was ours
                self._silent_since_s = now
            due = now + TICK_S
            if now - look_s >= LOOK_S:
                self._look_for_silence(now)
                look_s = now
            if self._retained_bytes > RETAINED_LIMIT_BYTES:
                self._decode_some()
            if self._on_tick is not None:
                self._on_tick(self.raw)

    def _look_for_silence(self, now: float) -> None:
        if self._stopping:
            return
        waiting = [c for c in self._connections if c.exchange is not None]
        if not waiting:
            return
        last_s = max(_last_life_s(c.exchange) for c in waiting if c.exchange is not None)
        silent_s = now - max(last_s, self._last_end_s, self._silent_since_s)
        if silent_s > self._limits.stall_s:
            words = f"no token for {silent_s:.1f} s while {len(waiting)} requests run"
            self.trouble(Sign("stall", now, words, hung=True))
            return
        for connection in waiting:
            exchange = connection.exchange
            if exchange is None:
                continue
            last = max(_last_life_s(exchange), self._silent_since_s)
            limit = self._limits.stall_s if exchange.times else self._limits.first_token_s
            if now - last > limit:
                what = "a next token" if exchange.times else "a first token"
                connection.give_up(Ended.STALLED, f"waited {limit:g} s for {what}")

    def _decode_some(self, budget_s: float = 0.002) -> None:
        """Decode finished answers early, a little at a time, so that memory stays bounded."""
        until = self._clock() + budget_s
        exchanges = self.raw.exchanges
        for index in range(self._decoded, len(exchanges)):
            exchange = exchanges[index]
            if exchange.ended is None:
                return  # in order: what runs longest holds the rest, at most one level's worth
            if exchange.status == 200 and exchange.cached is None:
                self._retained_bytes -= sum(map(len, exchange.pieces))
                self._digest(exchange)
            self._decoded = index + 1
            if self._clock() > until:
                return


def _last_life_s(exchange: Exchange) -> float:
    """Return the last moment at which a request made progress: its last token, or its sending."""
    return exchange.last_token_s() or exchange.sent_s


def raise_descriptor_limit(wanted: int) -> int:
    """Raise this process's limit of open files to what ``wanted`` streams need; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + SPARE_DESCRIPTORS
    if soft < need:
        best = need if hard == resource.RLIM_INFINITY else min(need, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))
            soft = best
        except (OSError, ValueError):
            pass  # the level then says which limit stood in the way
    return soft
