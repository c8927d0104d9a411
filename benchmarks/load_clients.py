"""Load clients to measure, each in a process of its own: `python -m benchmarks.load_clients NAME PORT ...`.

``ours`` is the engine behind `opsctl smoke`; the peers are the usual minimal clients of two libraries.
Each prints its times, CPU and memory as one JSON object.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * 200}]}
clock = time.monotonic


async def ours(port: int, concurrency: int, requests: int, tokens: int) -> dict[str, Any]:
    from opsctl.sglang.endpoint import Endpoint
    from opsctl.smoke.load import Job, Level, Limits
    from opsctl.smoke.measure import measure, read_request
    from opsctl.smoke.prompts import Prompt

    endpoint = Endpoint("127.0.0.1", port)
    body = json.dumps(BODY | {"max_tokens": tokens}).encode()
    raw_request = endpoint.request("POST", "/v1/chat/completions", body)
    job = Job(Prompt("p", "x"), raw_request, tokens)
    level = Level(
        endpoint, "bench", concurrency, requests, lambda _: job, api="chat", limits=Limits()
    )
    raw = await level.run()
    done = [read_request(exchange, "chat") for exchange in raw.exchanges]
    report = measure(raw, done, {})
    assert report.failed == 0, report.first_error
    ttft, gaps = [], []
    for request in done:
        assert request.first_s is not None
        ttft.append(request.first_s - request.sent_s)
        gaps += request.gaps()[0]
    assert report.in_flight is not None
    return {"ttft": ttft, "gaps": gaps, "tokens": report.tokens, "peak": report.in_flight.peak}


async def aiohttp(port: int, concurrency: int, requests: int, tokens: int) -> dict[str, Any]:
    import aiohttp as library

    connector = library.TCPConnector(limit=0)
    async with library.ClientSession(connector=connector) as session:

        async def lines() -> AsyncIterator[bytes]:
            async with session.post(
                f"http://127.0.0.1:{port}/v1/chat/completions", json=BODY | {"max_tokens": tokens}
            ) as response:
                async for line in response.content:
                    yield line

        return await _drive(lines, concurrency, requests)


async def httpx(port: int, concurrency: int, requests: int, tokens: int) -> dict[str, Any]:
    import httpx as library

    limits = library.Limits(max_connections=None, max_keepalive_connections=None)
    async with library.AsyncClient(limits=limits, timeout=120) as session:

        async def lines() -> AsyncIterator[bytes]:
            async with session.stream(
                "POST",
                f"http://127.0.0.1:{port}/v1/chat/completions",
                json=BODY | {"max_tokens": tokens},
            ) as response:
                async for line in response.aiter_lines():
                    yield line.encode()

        return await _drive(lines, concurrency, requests)


async def _drive(lines: Any, concurrency: int, requests: int) -> dict[str, Any]:
    """The usual closed loop: decode each event when it arrives, stamp it then."""
    ttft: list[float] = []
    gaps: list[float] = []
    counted = left = running = peak = 0
    left = requests

    async def slot() -> None:
        nonlocal counted, left, running, peak
        while left > 0:
            left -= 1
            running += 1
            peak = max(peak, running)
            sent = before = clock()
            first = True
            async for line in lines():
                if not line.startswith(b"data: {"):
                    continue
                document = json.loads(line[6:])
                now = clock()
                if document.get("usage"):
                    counted += document["usage"]["completion_tokens"]
                    continue
                if first:
                    ttft.append(now - sent)
                    first = False
                else:
                    gaps.append(now - before)
                before = now
            running -= 1

    await asyncio.gather(*(slot() for _ in range(concurrency)))
    return {"ttft": ttft, "gaps": gaps, "tokens": counted, "peak": peak}


LIBRARIES = {
    "ours": ("opsctl.smoke.load", "opsctl.smoke.measure", "opsctl.smoke.prompts"),
    "aiohttp": ("aiohttp",),
    "httpx": ("httpx",),
}
CLIENTS = {"ours": ours, "aiohttp": aiohttp, "httpx": httpx}


def main() -> None:
    import uvloop

    name, *numbers = sys.argv[1:]
    port, concurrency, requests, tokens = map(int, numbers)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.get_loop()
        for module in LIBRARIES[name]:  # loading them is no cost of a token
            importlib.import_module(module)
        cpu = time.process_time()
        found = runner.run(CLIENTS[name](port, concurrency, requests, tokens))
        found["cpu_s"] = time.process_time() - cpu
    gc.collect()
    found["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    data = json.dumps(found).encode()
    while data:  # an unbuffered print may write less than all into a pipe
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()
