"""Whoever carried a log, the verdict is the same."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.domain.crash import Diagnosis, diagnose
from opsctl.sglang.log import read_lines, read_records, unpack

SAMPLES = Path(__file__).parents[2] / "data" / "diagnose"
# A listing is judged by its columns, and a client's error by the absence of stamps: no carriers there.
BARE = ("c-", "d-", "s-", "smi", "ps", "panel", "shm-list", "ssh-error", "a-emfile", "fd-client",
        "cut", "err", "ok-", "h-", "stream", "json-", "journal-json", "docker-json")  # fmt: skip
STEP = 6  # every so many samples a carrier: all of them would take a minute

CARRIERS: dict[str, Callable[[bytes], bytes]] = {
    "crlf": lambda line: line + b"\r",
    "ansi": lambda line: b"\x1b[2m" + line + b"\x1b[0m",
    "journal": lambda line: b"Nov 29 03:05:02 gpu07 python3[4100]: " + line,
    "journal-iso": lambda line: b"2026-11-29T03:05:02+0000 gpu07 sglang[4100]: " + line,
    "docker-timestamps": lambda line: b"2026-11-29T03:05:02.123456789Z " + line,
    "compose": lambda line: b"sglang-1  | " + line,
    "kubectl": lambda line: b"[pod/glm5-0/sglang] " + line,
    "cri": lambda line: b"2026-11-29T03:05:02.123456789Z stderr F " + line,
    "docker-json": lambda line: json.dumps(
        {"log": line.decode(errors="replace") + "\n", "stream": "stderr"}
    ).encode(),
    "structured": lambda line: json.dumps(
        {"level": "info", "ts": "2026-11-29T03:05:02Z", "msg": line.decode(errors="replace")}
    ).encode(),
    "kibana": lambda line: b"May 16, 2026 @ 20:44:54.728    " + line,
    "export-with-epoch": lambda line: b"1779264164797\t2026-05-20T08:02:44.797Z\t" + line,
    "terminal-pane": lambda line: (
        "\u2502 " + line.decode(errors="replace").ljust(180) + "\u2502"
    ).encode(),
    "cloud-json": lambda line: json.dumps(
        {"textPayload": line.decode(errors="replace"), "severity": "ERROR", "insertId": "x1"}
    ).encode(),
    "logfmt": lambda line: (
        "ts=2026-11-29T03:05:02Z level=info msg=" + json.dumps(line.decode(errors="replace"))
    ).encode(),
    "structured-in-journal": lambda line: (
        b"Nov 29 03:05:02 gpu07 python3[4100]: "
        + json.dumps({"level": "info", "message": line.decode(errors="replace")}).encode()
    ),
}


def read(data: bytes) -> Diagnosis:
    return diagnose(read_records(read_lines(unpack(io.BytesIO(data)))))


def samples(first: int) -> list[bytes]:
    names = sorted(path.stem for path in SAMPLES.glob("*.log"))
    chosen = [name for name in names if not name.startswith(BARE)][first::STEP]
    found = [(SAMPLES / f"{name}.log").read_bytes() for name in chosen]
    return [gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data for data in found]


@pytest.mark.parametrize("number", range(len(CARRIERS)), ids=list(CARRIERS))
def test_carrier_changes_no_verdict(number: int) -> None:
    """Each line gets the carrier's prefix or wrapping; category, signature and sizes stay what they were."""
    carry = list(CARRIERS.values())[number]
    for data in samples(number % STEP):
        lines = data.removesuffix(b"\n").split(b"\n")
        if len(lines) > 300:
            continue
        bare, carried = read(data), read(b"\n".join(map(carry, lines)) + b"\n")

        assert carried.category == bare.category, data[:400]
        if b"\n---" not in data:  # a note of ours, which no carrier ever carries
            assert carried.signature == bare.signature, (bare.normalised, carried.normalised)
        if bare.sizes is not None:
            assert carried.sizes is not None
            assert (carried.sizes.a, carried.sizes.b) == (bare.sizes.a, bare.sizes.b)
