"""Load from the server's own host: an agent there sends and stamps, everything else stays here.

The agent is started for the run and ends with its connection. Its levels give back the same exchanges as
a level of this machine, on this machine's clock, so measuring and judging know no difference.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from opsctl.agent.client import Agent, RemoteAgent, start
from opsctl.errors import AgentError, OpsctlError
from opsctl.sglang.client import Ended, Exchange
from opsctl.smoke.load import Job, Limits, RawLevel, Sign
from opsctl.transport.base import Transport

CLOCK_READINGS = 7
LOST = "the load generator on the server's host was lost"
LEVEL_S = 86_400.0
FEED_FACTOR = 4  # requests that wait there, per slot, before more are sent (only with --seconds)


class HostLoad:
    """Makes levels that run on the server's host."""

    def __init__(self, agent: Agent, host: str, port: int) -> None:
        self.agent = agent
        self.host = host
        self.port = port
        self.offset_s, self.error_s = clock_offset(agent)

    def level(
        self,
        name: str,
        concurrency: int,
        jobs: int,
        make_job: Callable[[int], Job],
        *,
        limits: Limits,
        min_seconds: float,
        on_tick: Callable[[RawLevel, dict[str, Any]], None],
    ) -> HostLevel:
        """Return one level, not yet begun."""
        return HostLevel(self, name, concurrency, jobs, make_job, limits, min_seconds, on_tick)

    def describe(self) -> dict[str, Any]:
        """Return what a report says of it."""
        hello = getattr(self.agent, "hello", {})
        return {
            "from": "host",
            "host": self.agent.name,
            "python": hello.get("python"),
            "clock_error_ms": round(self.error_s * 1e3, 3),
        }


class HostLevel:
    """One level on the host, with the outside of a level of this machine."""

    def __init__(
        self,
        load: HostLoad,
        name: str,
        concurrency: int,
        jobs: int,
        make_job: Callable[[int], Job],
        limits: Limits,
        min_seconds: float,
        on_tick: Callable[[RawLevel, dict[str, Any]], None],
    ) -> None:
        self.raw = RawLevel(name, concurrency, jobs)
        self._load = load
        self._make_job = make_job
        ahead = FEED_FACTOR * concurrency if min_seconds else 0
        self._jobs = [make_job(index) for index in range(jobs + ahead)]
        self._limits = limits
        self._min_seconds = min_seconds
        self._on_tick = on_tick
        self._running = False
        self._feeding = False

    def trouble(self, sign: Sign) -> None:
        """Note the first sign and stop sending."""
        if self.raw.sign is None:
            self.raw.sign = sign
            self._tell("load.stop", {"sign": [sign.source, sign.detail, sign.hung]})

    def interrupt(self) -> None:
        """Stop sending because the operator wants to."""
        if not self.raw.interrupted:
            self.raw.interrupted = True
            self._tell("load.stop", {})

    async def run(self) -> RawLevel:
        """Send all requests of the level from there, and return what came back."""
        raw = self.raw
        raw.started_s = raw.ended_s = time.monotonic()
        if raw.sign is not None or raw.interrupted:
            return raw
        loop = asyncio.get_running_loop()
        batches: list[str] = []

        def on_event(event: dict[str, Any]) -> None:
            if "exchanges" in event:
                batches.append(event["exchanges"])
            else:
                loop.call_soon_threadsafe(self._take_progress, event["progress"])

        self._running = True
        try:
            facts = await asyncio.to_thread(
                self._load.agent.call,
                "load.level",
                self._request(),
                timeout_s=LEVEL_S,
                on_event=on_event,
            )
        except OpsctlError as error:
            raw.local = f"{LOST}: {error.message}"
            raw.ended_s = time.monotonic()
            return raw
        finally:
            self._running = False
        self._take(facts, batches)
        return raw

    def _request(self) -> dict[str, Any]:
        return {
            "host": self._load.host,
            "port": self._load.port,
            "name": self.raw.name,
            "concurrency": self.raw.concurrency,
            "count": self.raw.jobs,
            "jobs": pack_jobs(self._jobs),
            "limits": [self._limits.stall_s, self._limits.first_token_s],
            "min_seconds": self._min_seconds,
        }

    def _take_progress(self, told: dict[str, Any]) -> None:
        self._on_tick(self.raw, told)
        wanted = FEED_FACTOR * self.raw.concurrency
        if not self._min_seconds or self._feeding or told["unsent"] > wanted:
            return
        self._feeding = True
        first = len(self._jobs)
        count = max(wanted, 2 * told["ended"])
        more = [self._make_job(first + index) for index in range(count)]
        self._jobs += more
        self._tell("load.feed", {"jobs": pack_jobs(more)})

    def _tell(self, operation: str, request: dict[str, Any]) -> None:
        """Tell the host without waiting: the event loop that calls this must go on."""
        if not self._running:
            return

        def call() -> None:
            try:
                self._load.agent.call(operation, request)
            except OpsctlError:
                pass  # the level's own call says what happened
            self._feeding = False

        threading.Thread(target=call, daemon=True, name="host-load").start()

    def _take(self, facts: dict[str, Any], batches: list[str]) -> None:
        raw, offset_s = self.raw, self._load.offset_s
        raw.local = facts["local"]
        if "started_s" not in facts:
            return
        raw.started_s = facts["started_s"] + offset_s
        raw.ended_s = facts["ended_s"] + offset_s
        raw.lags_s = facts["lags_s"]
        raw.cpu_s = facts["cpu_s"]
        raw.cancelled = facts["cancelled"]
        if facts["interrupted"] and not raw.interrupted:  # it lost us before we noticed
            raw.local = f"{LOST}: it stopped by itself"
        told = facts["sign"]
        if told is not None and (raw.sign is None or raw.sign.source != told[0]):
            source, at_s, detail, hung = told
            raw.sign = Sign(source, at_s + offset_s, detail, hung)
        for batch in batches:
            raw.exchanges += unpack_exchanges(batch, self._jobs, offset_s)


def clock_offset(agent: Agent) -> tuple[float, float]:
    """Return what to add to the host's monotonic clock, and by how much that may be wrong, in seconds."""
    best: tuple[float, float] | None = None
    for _ in range(CLOCK_READINGS):
        before = time.monotonic()
        there = agent.call("load.clock")["monotonic_s"]
        after = time.monotonic()
        half = (after - before) / 2
        if best is None or half < best[1]:
            best = before + half - there, half
    assert best is not None
    return best


def pack_jobs(jobs: list[Job]) -> str:
    """Return requests as the agent takes them."""
    rows = [[job.request.decode("latin-1"), job.abort_after] for job in jobs]
    return base64.b64encode(zlib.compress(json.dumps(rows).encode(), 1)).decode("ascii")


def unpack_exchanges(batch: str, jobs: list[Job], offset_s: float) -> Iterator[Exchange]:
    """Yield the exchanges of one event, on this machine's clock."""
    data = zlib.decompress(base64.b64decode(batch))
    end = data.index(b"\n")
    heads, at = json.loads(data[:end]), end + 1
    for number, sent_s, header_s, end_s, status, kind, ended, error, retried, times, sizes in heads:
        job = jobs[number]
        exchange = Exchange(job.request, job, job.abort_after)
        exchange.sent_s = sent_s + offset_s
        exchange.header_s = None if header_s is None else header_s + offset_s
        exchange.end_s = end_s + offset_s
        exchange.status, exchange.content_type = status, kind
        exchange.ended, exchange.error, exchange.retried = Ended(ended), error, retried
        exchange.times = [at_s + offset_s for at_s in times]
        for size in sizes:
            exchange.pieces.append(data[at : at + size])
            at += size
        yield exchange


@contextmanager
def open_host_load(
    transport: Transport, host: str, port: int, interpreter: str | None
) -> Iterator[HostLoad]:
    """Start the load generator on a host; ``interpreter`` is tried where no usual Python will do."""
    agent: RemoteAgent
    try:
        agent = start(transport)
    except AgentError:
        if interpreter is None:
            raise
        agent = start(transport, interpreter=interpreter)
    try:
        yield HostLoad(agent, host, port)
    finally:
        agent.close()
