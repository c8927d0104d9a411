"""Read an SGLang log, whoever carried it: plain file, gzip, journal, container runtime, kernel log.

Lines become records without their prefixes; routine lines are counted, not kept, so that 100 MB are read
in seconds and in constant memory.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import IO, Any

from opsctl.domain.crash.launch import read_launch, read_stage
from opsctl.domain.crash.model import Activity, Kind, Launch, Record
from opsctl.domain.crash.rules import NOTABLE
from opsctl.sglang.prefix import Prefix, PrefixReader

MAX_LINE = 16_000
"""Characters that are kept of one line: a dump of ``reqs=[...]`` can be megabytes long."""
HEAD_LINES = 400
"""So many lines are kept whatever they say: a short capture is judged as a whole."""
MAX_REPEATS = 200
"""Lines that differ in digits only are looked at so many times; then they are counted."""
_TIME_KEYS = ("ts", "time", "timestamp", "@timestamp", "asctime")
_RECORD_KEYS = ("level", "severity", "levelname", "lvl", *_TIME_KEYS)
_MESSAGE_KEYS = ("message", "msg", "event", "log", "text", "textPayload")
_LOGFMT = re.compile(r'(?:[\w.]+=(?:"[^"]*"|\S+) )+(?:msg|message)=("(?:[^"\\]|\\.)*")')
_MAX_SKELETONS = 40_000
_CHUNK = 1 << 20


def open_log(path: Path) -> IO[bytes]:
    """Open a log for reading, unpacking gzip by content, not by name."""
    stream = path.open("rb")
    magic = stream.read(2)
    stream.seek(0)
    if magic == b"\x1f\x8b":
        stream.close()
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return stream


def unpack(stream: IO[bytes]) -> IO[bytes]:
    """Return a stream (standard input) unpacked when it is gzip."""
    buffered = io.BufferedReader(stream) if not hasattr(stream, "peek") else stream  # type: ignore[type-var]
    if buffered.peek(2)[:2] == b"\x1f\x8b":
        return gzip.open(buffered, "rb")  # type: ignore[return-value]
    return buffered


def read_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Return the lines of a stream, each cut to ``MAX_LINE``, in bounded memory.

    A carriage return ends a line as well: progress bars are separate lines. A gzip file that was cut
    short ends quietly where it ends.
    """
    rest = b""
    cut = False  # inside a line whose rest is thrown away
    while chunk := _read(stream):
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            if not cut:
                rest += chunk
                if len(rest) > _CHUNK:
                    yield _shorten(rest)
                    rest, cut = b"", True
            continue
        lines = (rest + head).split(b"\n")
        if cut:
            del lines[0]
            cut = False
        for line in lines:
            yield line if len(line) <= MAX_LINE else _shorten(line)
        rest = tail
    if rest and not cut:
        yield _shorten(rest)


def _read(stream: IO[bytes]) -> bytes:
    """Return the next piece; the end of a torn or damaged gzip file is simply its end."""
    try:
        piece: bytes = stream.read1(_CHUNK)  # type: ignore[attr-defined]
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return b""
    return piece


def _shorten(line: bytes) -> bytes:
    if len(line) <= MAX_LINE:
        return line
    return line[: MAX_LINE - 800] + b" ... " + line[-700:]


def records_of(text: str) -> Iterator[Record]:
    """Return the records of a piece of log that is already in memory."""
    return read_records(text.encode(errors="replace").split(b"\n"))


def read_records(lines: Iterable[bytes]) -> Iterator[Record]:
    """Return the records of a log; routine lines come as one ``ACTIVITY`` record per stretch.

    Bytes that are not UTF-8 become replacement characters.
    """
    prefixes = PrefixReader()
    repeats = Repeats()
    pending = Activity()
    number = 0
    for line in lines:
        number += 1
        if count_routine(line, pending):
            continue
        look = repeats.look(line, number)
        if look is Look.FLOOD or (look is Look.BORING and number > HEAD_LINES):
            continue
        if pending.lines:
            yield Record("", number - 1, Kind.ACTIVITY, activity=pending)
            pending = Activity()
        for text in _unwrap_json(line.decode(errors="replace")):
            prefix = prefixes.read(text)
            inner = _unwrap_json(prefix.body)
            if len(inner) == 1 and inner[0] is prefix.body:
                yield _make_record(prefix, number)
                continue
            carrier = text[: max(0, text.find(prefix.body))]
            for part in inner:  # a carrier's line around a structured logger's record
                yield _make_record(prefixes.read(carrier + part), number)
    if pending.lines:
        yield Record("", number, Kind.ACTIVITY, activity=pending)
    for first, count in repeats.counts():
        yield Record("", first, Kind.REPEAT, count=count)


class Look(Enum):
    """What one look at a line says."""

    BORING = 0
    NOTABLE = 1
    FLOOD = 2


class Repeats:
    """Knows lines that differ in digits only, so that a flood costs one look-up per line."""

    def __init__(self) -> None:
        self._boring: set[int] = set()
        self._seen: dict[int, list[int]] = {}  # hash of the skeleton -> first line, times

    def look(self, line: bytes, number: int) -> Look:
        """Say whether a line may mean something, and whether it has come too often."""
        bare = line.translate(None, b"0123456789")
        skeleton = hash(bare)
        if skeleton in self._boring:
            return Look.BORING
        known = self._seen.get(skeleton)
        if known is not None:
            known[1] += 1
            return Look.NOTABLE if known[1] <= MAX_REPEATS else Look.FLOOD
        lower = bare.lower()
        for word in NOTABLE:
            if word in lower:
                if len(self._seen) < _MAX_SKELETONS:
                    self._seen[skeleton] = [number, 1]
                return Look.NOTABLE
        if len(self._boring) > _MAX_SKELETONS:
            self._boring.clear()
        self._boring.add(skeleton)
        return Look.BORING

    def counts(self) -> Iterator[tuple[int, int]]:
        """Return first line and number of further times for what came too often."""
        for first, times in self._seen.values():
            if times > MAX_REPEATS:
                yield first, times - MAX_REPEATS


def count_routine(line: bytes, activity: Activity) -> bool:
    """Count a routine line; False when the line is none."""
    if b"Decode batch" in line and b"#running-req" in line:
        _count_decode(line, activity)
    elif b"HTTP/1." in line and (status := line.find(b'" ')) > 0:
        kind = line[status + 2 : status + 3]
        if kind == b"2":
            activity.answers_ok += 1
        elif kind == b"5":
            activity.answers_failed += 1
        elif kind not in (b"3", b"4"):
            return False
    elif b"Prefill batch" in line and b"#new-seq" in line:
        activity.prefill_lines += 1
        activity.last_batch = line
    else:
        return False
    activity.lines += 1
    return True


def _count_decode(line: bytes, activity: Activity) -> None:
    activity.decode_lines += 1
    activity.last_batch = line
    start = line.find(b"#running-req: ") + 14
    try:
        running = int(line[start : line.find(b",", start)])
    except ValueError:
        running = 0
    if running > activity.max_running:
        activity.max_running = running
    if b"cuda graph: True" in line:
        activity.decode_with_graph += 1
    elif b"cuda graph: False" in line:
        activity.decode_without_graph += 1
        if running > activity.max_running_without_graph:
            activity.max_running_without_graph = running


def _unwrap_json(line: str) -> list[str]:
    """Return the message of a line of ``journalctl -o json``, of Docker's json-file driver or of logfmt."""
    if not line.startswith("{"):
        return _of_logfmt(line) or [line]
    try:
        body = json.loads(line)
    except ValueError:
        return [line]
    if not isinstance(body, dict):
        return [line]
    if isinstance(message := body.get("MESSAGE"), str):
        name = body.get("SYSLOG_IDENTIFIER") or body.get("_COMM") or "journal"
        host = body.get("_HOSTNAME") or "host"
        stamp = "Jan  1 00:00:00"
        return [
            f"{stamp} {host} {name}[{body.get('_PID', 0)}]: {part}" for part in message.split("\n")
        ]
    if isinstance(log := body.get("log"), str) and "stream" in body:
        return log.rstrip("\n").split("\n")
    return _of_structured(body) or [line]


def _of_logfmt(line: str) -> list[str]:
    """Return the message of ``level=error msg="..."``; nothing for any other line."""
    told = 'msg="' in line or 'message="' in line
    found = _LOGFMT.match(line) if told and "=" in line[:40] else None
    if found is None:
        return []
    try:
        return str(json.loads(found[1])).rstrip("\n").split("\n")
    except ValueError:
        return []


def _of_structured(body: dict[str, Any]) -> list[str]:
    """Return the lines of a structured logger's record: a message beside a level or a time."""
    if not any(isinstance(body.get(name), str | int | float) for name in _RECORD_KEYS):
        return []
    if isinstance(payload := body.get("jsonPayload"), dict):
        body = body | payload
    told = next((body[name] for name in _MESSAGE_KEYS if isinstance(body.get(name), str)), None)
    if told is None:
        return []
    stamp = next((body[name] for name in _TIME_KEYS if isinstance(body.get(name), str)), "")
    parts = told.rstrip("\n").split("\n")
    for name in ("exc_info", "exception", "stack", "traceback"):
        if isinstance(body.get(name), str):
            parts += body[name].rstrip("\n").split("\n")
    return [f"{stamp} {parts[0]}" if stamp else parts[0], *parts[1:]]


def _make_record(prefix: Prefix, number: int) -> Record:
    body = prefix.body
    kind = Kind.TEXT
    if body.startswith(("data: ", "data:{", "data:[")):
        kind = Kind.STREAM
    elif (stage := read_stage(body)) is not None:
        kind = Kind.LAUNCH if stage == "launch" else Kind.STAGE
    return Record(
        body, number, kind, prefix.time, prefix.time_s, prefix.rank, prefix.source, prefix.client
    )


def read_launch_facts(records: Iterable[Record]) -> Launch:
    """Return what a log says of its launch; later lines win, because they are what the server chose."""
    facts = Launch()
    for record in records:
        if record.body:
            read_launch(record.body, facts)
    return facts
