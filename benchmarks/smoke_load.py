"""The load client of `opsctl smoke` against ground truth and peers: `python -m benchmarks.smoke_load`.

A server of our own writes down when each request came and each chunk left. What a client reports, minus
that, is the client's error. C=256, 200 ms to the first token, 10 ms between tokens; median of three.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks import load_peers
from benchmarks.measure import Figure
from opsctl.domain.report import percentile

CONCURRENCY = 256
TTFT_MS, ITL_MS = 200.0, 10.0
LIMITS = {"ttft_mean": 1.0, "ttft_p99": 4.0, "itl_p99": 1.0, "cpu": 12.0, "rss": 60.0}
NAMES = {
    "ttft_mean": "TTFT error, mean",
    "ttft_p99": "TTFT error, p99",
    "itl_p99": "ITL error, p99",
    "cpu": "CPU per 1,000 tokens",
    "rss": "memory",
}
UNITS = {"rss": "MB"} | dict.fromkeys(("ttft_mean", "ttft_p99", "itl_p99", "cpu"), "ms")


@dataclass(frozen=True, slots=True)
class Result:
    """One client's errors and costs."""

    ttft_mean: float
    ttft_p99: float
    itl_p99: float
    cpu: float
    rss: float
    peak: int


def run_client(name: str, port: int, concurrency: int, requests: int, tokens: int) -> Result:
    """Run one client once and subtract the server's truth."""
    _truth(port)
    words = [str(number) for number in (port, concurrency, requests, tokens)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load_clients", name, *words],
        stdout=subprocess.PIPE,
        timeout=300,
        check=True,
    )
    said = json.loads(done.stdout)
    ttft, gaps, _ = _truth(port)
    if said["tokens"] != requests * tokens:
        raise SystemExit(f"{name} counted {said['tokens']} tokens of {requests * tokens}")

    def off(reported: list[float], real: list[float], share: float | None) -> float:
        if share is None:
            return (statistics.fmean(reported) - statistics.fmean(real)) * 1e3
        return (percentile(sorted(reported), share) - percentile(sorted(real), share)) * 1e3

    return Result(
        off(said["ttft"], ttft, None),
        off(said["ttft"], ttft, 0.99),
        off(said["gaps"], gaps, 0.99),
        said["cpu_s"] * 1e6 / said["tokens"],
        said["rss_mb"],
        said["peak"],
    )


def _truth(port: int) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/truth", timeout=30) as answer:
        return json.load(answer)


def median(results: list[Result]) -> Result:
    """Return the median of each number."""
    columns = zip(
        *((r.ttft_mean, r.ttft_p99, r.itl_p99, r.cpu, r.rss, r.peak) for r in results), strict=True
    )
    a, b, c, d, e, f = (statistics.median(column) for column in columns)
    return Result(a, b, c, d, e, int(f))


def first_request_s() -> float:
    """Return the time from the start of `opsctl smoke` to its first request, at the server."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(20)
        begun = time.monotonic()
        child = subprocess.Popen(
            [sys.executable, "-m", "opsctl", "smoke", "--url", f"http://127.0.0.1:{port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            connection, _ = server.accept()
            connection.close()
            return time.monotonic() - begun
        finally:
            child.kill()
            child.wait()


def measure_all(
    concurrency: int = CONCURRENCY, requests: int = 512, tokens: int = 100, repeats: int = 3
) -> tuple[dict[str, Result], list[load_peers.Cost]]:
    """Return each client's median result, and what tokens cost whole tools, all against one server."""
    peers = [name for name in ("aiohttp", "httpx") if importlib.util.find_spec(name)]
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.truth_server", *map(str, (TTFT_MS, ITL_MS, tokens))],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        clients = {
            name: median(
                [run_client(name, port, concurrency, requests, tokens) for _ in range(repeats)]
                if name != "httpx"
                else [
                    run_client(name, port, concurrency, concurrency, tokens)  # it is slow
                ]
            )
            for name in ("ours", *peers)
        }
        tools = [
            load_peers.measure(peer, port, concurrency, tokens, _truth) for peer in load_peers.PEERS
        ]
        return clients, tools
    finally:
        server.kill()
        server.wait()


def run() -> Iterator[Figure]:
    """Yield the promised figures; the peers' numbers stand beside them."""
    found, tools = measure_all()
    mine = found["ours"]
    for key, limit in LIMITS.items():
        others = [f"{name} {getattr(r, key):.1f}" for name, r in found.items() if name != "ours"]
        note = f"C={CONCURRENCY}; {', '.join(others)}"
        yield Figure(
            f"smoke client: {NAMES[key]}", abs(getattr(mine, key)), None, limit, UNITS[key], note
        )
    for name, result in found.items():
        if name != "ours":
            label = f"smoke client: CPU per token against {name}"
            yield Figure(label, mine.cpu, result.cpu, 1.0, "ms", "of 1,000 tokens")
    for tool in tools:
        if tool.cpu_ms is not None:
            label = f"smoke client: CPU per token against {tool.name}"
            note = f"of 1,000 tokens; it had {tool.peak} of {CONCURRENCY} in flight"
            yield Figure(label, mine.cpu, tool.cpu_ms, 1.0, "ms", note)
    left_out = {**{tool.name: tool.why for tool in tools if tool.why}, **load_peers.LEFT_OUT}
    for name, why in left_out.items():
        print(f"smoke client: {name} is left out: {why}", flush=True)
    missing = CONCURRENCY - mine.peak
    yield Figure("smoke client: requests missing in flight", missing, None, 0, "", "none may miss")
    start = statistics.median(first_request_s() for _ in range(3))
    yield Figure("smoke: first request after the start", start * 1e3, None, 1000, "ms")


def main() -> int:
    """Print the figures; return 1 when one is over its limit."""
    bad = 0
    for figure in run():
        print(figure.line(), flush=True)
        bad += not figure.holds
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
