"""The load engine of this machine: llhttp on uvloop, answers decoded as they are read."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable

from opsctl.agent.ops.load_level import (
    BURST_S,
    SENDS_PER_BURST,
    Job,
    Limits,
    RawLevel,
    Sign,
    raise_descriptor_limit,
)
from opsctl.agent.ops.load_level import Level as Engine
from opsctl.sglang.client import Connection, Exchange, Pulse, connect
from opsctl.sglang.endpoint import Endpoint
from opsctl.sglang.stream import decode


class Level(Engine):
    """One level against an endpoint, from here."""

    def __init__(
        self,
        endpoint: Endpoint,
        name: str,
        concurrency: int,
        jobs: int,
        make_job: Callable[[int], Job],
        *,
        api: str,
        limits: Limits,
        min_seconds: float = 0.0,
        on_tick: Callable[[RawLevel], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        context: ssl.SSLContext | None = endpoint.context()

        async def open_one(pulse: Pulse) -> Connection:
            return await connect(endpoint, pulse, context=context)

        def digest(exchange: Exchange) -> None:
            exchange.cached = decode(api, exchange.times, exchange.pieces, exchange.content_type)
            exchange.pieces.clear()
            exchange.times.clear()

        super().__init__(
            name,
            concurrency,
            jobs,
            make_job,
            connect=open_one,
            digest=digest,
            limits=limits,
            min_seconds=min_seconds,
            on_tick=on_tick,
            clock=clock,
        )


__all__ = [
    "BURST_S",
    "SENDS_PER_BURST",
    "Job",
    "Level",
    "Limits",
    "RawLevel",
    "Sign",
    "raise_descriptor_limit",
]
