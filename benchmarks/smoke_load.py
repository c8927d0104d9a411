"""The load client of `opsctl smoke` against ground truth and peers: `python -m benchmarks.smoke_load`.

A server of our own writes down when each request came and each chunk left. What a client reports, minus
that, is the client's error. C=256, 200 ms to the first token, 10 ms between tokens; median of three.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from typing import Any

from opsctl.domain.report import percentile

TTFT_MS, ITL_MS = 200.0, 10.0
LIMITS = {"ttft_mean": 1.0, "ttft_p99": 4.0, "itl_p99": 1.0, "cpu": 12.0, "rss": 60.0}
NAMES = {
    "ttft_mean": "TTFT error, mean (ms)",
    "ttft_p99": "TTFT error, p99 (ms)",
    "itl_p99": "ITL error, p99 (ms)",
    "cpu": "CPU ms per 1,000 tokens",
    "rss": "memory (MB)",
}


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


def main(argv: list[str] | None = None) -> int:
    """Print every client's numbers and our ratios; return 1 when a limit is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args(argv)
    peers = [name for name in ("aiohttp", "httpx") if importlib.util.find_spec(name)]
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "benchmarks.truth_server",
            *map(str, (TTFT_MS, ITL_MS, given.tokens)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        found = {
            name: median(
                [
                    run_client(name, port, given.concurrency, given.requests, given.tokens)
                    for _ in range(given.repeats if name != "httpx" else 1)
                ]
            )
            for name in ("ours", *peers)
        }
    finally:
        server.kill()
        server.wait()
    return report(found, given.concurrency)


def report(found: dict[str, Result], concurrency: int) -> int:
    """Print the table and judge our own column."""
    bad = 0
    print(f"smoke load client, C={concurrency}, true TTFT {TTFT_MS:g} ms, ITL {ITL_MS:g} ms")
    for key, limit in LIMITS.items():
        mine = getattr(found["ours"], key)
        met = abs(mine) <= limit
        bad += not met
        peers = []
        for name, result in found.items():
            if name == "ours":
                continue
            theirs = getattr(result, key)
            ratio = f", ratio {theirs / mine:.1f}" if mine > 0.01 and key in ("cpu", "rss") else ""
            peers.append(f"{name} {theirs:.2f}{ratio}")
        print(
            f"  {NAMES[key]:<26} ours {mine:.2f} (limit {limit:g}: {'met' if met else 'NOT MET'})  "
            + "; ".join(peers)
        )
    for name, result in found.items():
        mark = "" if result.peak >= concurrency else "  <- did not hold the concurrency"
        print(f"  in flight at most, {name}: {result.peak} of {concurrency}{mark}")
        bad += name == "ours" and result.peak < concurrency
    start = statistics.median(first_request_s() for _ in range(3))
    bad += start > 1.0
    print(f"  first request after start  ours {start:.2f} s (limit 1 s)")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
