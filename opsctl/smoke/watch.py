"""Is the server dead, stuck, or was it only one stream? Signs from everywhere, and the last word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from opsctl.domain.report import Outcome
from opsctl.records import dataclass
from opsctl.sglang.client import ConnectFailed, Ended, Exchange, connect
from opsctl.sglang.endpoint import Endpoint
from opsctl.sglang.stream import decode
from opsctl.smoke.load import Sign

CONFIRM_S = 6.0  # a dying SGLang takes 0.7 s from the scheduler's end to the port's
REFUSED_AGAIN_S = 0.15
PROBE_S = 5.0  # one generation on a server that has just lost its load


class Watch(Protocol):
    """A second pair of eyes on the server's host: its processes and its log."""

    def start(self, on_sign: Callable[[Sign], None]) -> None:
        """Begin to watch; ``on_sign`` is called from another thread, at most once per source."""

    def level_log(self) -> str:
        """Return what the log gained since the last call; "" where it cannot be read."""

    def evidence(self) -> dict[str, Any]:
        """Return what is worth keeping after a crash; takes 10 s at most."""

    def stop(self) -> None:
        """Stop watching; safe to call twice."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The last word on one sign."""

    outcome: Outcome
    reason: str
    confirmed_by: str  # process, port, generation


async def confirm(
    endpoint: Endpoint,
    api: str,
    request: bytes,
    sign: Sign,
    process_sign: Callable[[], Sign | None],
    *,
    limit_s: float = CONFIRM_S,
) -> Verdict:
    """Find out what a sign means, by the processes, the port and one real generation.

    A cut stream alone may be a proxy's doing: only a server that cannot generate any more, or whose
    port or process is gone, has crashed.
    """
    until = time.monotonic() + limit_s
    last = sign.detail
    while True:
        process = process_sign()
        if process is not None:
            return Verdict(Outcome.CRASHED, process.detail, "process")
        if await _is_refused(endpoint):
            await asyncio.sleep(REFUSED_AGAIN_S)
            if await _is_refused(endpoint):
                words = f"{sign.detail}; nothing listens on port {endpoint.port} any more"
                if sign.detail == "connection refused":
                    words = f"nothing listens on port {endpoint.port} any more"
                return Verdict(Outcome.CRASHED, words, "port")
            continue
        problem = await _generate(endpoint, api, request, min(PROBE_S, limit_s))
        if problem is None:
            if sign.hung:
                return Verdict(Outcome.FAILED, f"{sign.detail}; it answers again now", "generation")
            words = f"{sign.detail}; the server lives and still generates"
            return Verdict(Outcome.FAILED, words, "generation")
        last = problem
        if time.monotonic() >= until or sign.hung:
            break
        await asyncio.sleep(0.1)
    process = process_sign()
    if process is not None:
        return Verdict(Outcome.CRASHED, process.detail, "process")
    if sign.hung:
        return Verdict(Outcome.HUNG, f"{sign.detail}, and a new request: {last}", "generation")
    words = f"{sign.detail}; the port still answers, but no generation ends: {last}"
    return Verdict(Outcome.CRASHED, words, "generation")


async def is_listening(endpoint: Endpoint) -> bool:
    """Return False only when the port refuses twice."""
    if not await _is_refused(endpoint):
        return True
    await asyncio.sleep(REFUSED_AGAIN_S)
    return not await _is_refused(endpoint)


async def _is_refused(endpoint: Endpoint) -> bool:
    try:
        connection = await connect(endpoint, timeout_s=2.0)
    except ConnectFailed as failed:
        return failed.ended is Ended.REFUSED
    connection.close()
    return False


async def _generate(endpoint: Endpoint, api: str, request: bytes, timeout_s: float) -> str | None:
    """Try one generation; return None when it worked, else what went wrong."""
    try:
        connection = await connect(endpoint, timeout_s=2.0)
    except ConnectFailed as failed:
        return failed.error
    exchange = Exchange(request)
    try:
        await asyncio.wait_for(connection.send(exchange), timeout_s)
    except TimeoutError:
        connection.give_up(Ended.STALLED, f"no answer within {timeout_s:g} s")
    finally:
        connection.close()
    if exchange.ended is not Ended.COMPLETE:
        return exchange.error
    if exchange.status != 200:
        return f"HTTP {exchange.status}"
    reply = decode(api, exchange.times, exchange.pieces, exchange.content_type)
    return reply.error or (None if reply.chunk_s else "an empty answer")
