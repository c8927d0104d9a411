"""Read an SGLang log, whoever carried it: plain file, gzip, journal, container runtime, kernel log.

Lines become records without their prefixes; routine lines are counted, not kept, so that 100 MB are read
in seconds and in constant memory.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from opsctl.domain.crash.launch import read_launch, read_stage
from opsctl.domain.crash.model import Activity, Kind, Launch, Record
from opsctl.domain.crash.rules import NOTABLE
from opsctl.sglang.prefix import Prefix, PrefixReader

MAX_LINE = 4000
"""Characters that are kept of one line: a dump of ``reqs=[...]`` can be megabytes long."""
HEAD_LINES = 400
"""So many lines are kept whatever they say: a short capture is judged as a whole."""
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


def read_lines(stream: IO[bytes]) -> Iterator[str]:
    """Return the lines of a stream, each cut to ``MAX_LINE``, in bounded memory.

    A carriage return ends a line as well: progress bars are separate lines. Bytes that are not UTF-8
    become replacement characters. A gzip file that was cut short ends quietly where it ends.
    """
    rest = b""
    cut = False  # inside a line whose rest is thrown away
    while True:
        try:
            chunk = stream.read(_CHUNK)
        except EOFError:
            chunk = b""
        if not chunk:
            break
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            if not cut:
                rest += chunk
                if len(rest) > 16 * MAX_LINE:
                    yield rest[:MAX_LINE].decode(errors="replace")
                    rest, cut = b"", True
            continue
        text = (rest + head).decode(errors="replace")
        lines = text.split("\n")
        if cut:
            lines, cut = lines[1:], False
        for line in lines:
            yield line if len(line) <= MAX_LINE else _shorten(line)
        rest = tail
    if rest:
        yield _shorten(rest.decode(errors="replace"))


def _shorten(line: str) -> str:
    if len(line) <= MAX_LINE:
        return line
    return f"{line[: MAX_LINE - 800]} ... {line[-700:]}"


def read_records(lines: Iterable[str]) -> Iterator[Record]:
    """Return the records of a log; routine lines come as one ``ACTIVITY`` record per stretch."""
    prefixes = PrefixReader()
    pending = Activity()
    dirty = False
    number = 0
    for line in lines:
        number += 1
        if _count_routine(line, pending):
            dirty = True
            continue
        if number > HEAD_LINES and NOTABLE.search(line) is None:
            continue
        if dirty:
            yield Record("", number - 1, Kind.ACTIVITY, activity=pending)
            pending, dirty = Activity(), False
        yield from _records_of(line, number, prefixes)
    if dirty:
        yield Record("", number, Kind.ACTIVITY, activity=pending)


def _count_routine(line: str, activity: Activity) -> bool:
    """Count a routine line; False when the line is none."""
    if "Decode batch" in line and "#running-req" in line:
        _count_decode(line, activity)
        return True
    if "Prefill batch" in line and "#new-seq" in line:
        activity.prefill_lines += 1
        activity.last_batch = line
        return True
    if "HTTP/1." in line and ('" 200' in line or '" 5' in line or '" 4' in line or '" 3' in line):
        if '" 200' in line:
            activity.answers_ok += 1
        elif '" 5' in line:
            activity.answers_failed += 1
        return True
    return False


def _count_decode(line: str, activity: Activity) -> None:
    activity.decode_lines += 1
    activity.last_batch = line
    running = _number_after(line, "#running-req: ")
    if running > activity.max_running:
        activity.max_running = running
    if "cuda graph: True" in line:
        activity.decode_with_graph += 1
    elif "cuda graph: False" in line:
        activity.decode_without_graph += 1
        if running > activity.max_running_without_graph:
            activity.max_running_without_graph = running


def _number_after(line: str, key: str) -> int:
    start = line.find(key)
    if start < 0:
        return 0
    start += len(key)
    end = start
    while end < len(line) and line[end].isdigit():
        end += 1
    return int(line[start:end] or 0)


def _records_of(line: str, number: int, prefixes: PrefixReader) -> Iterator[Record]:
    for text in _unwrap_json(line):
        prefix = prefixes.read(text)
        yield _make_record(prefix, number)


def _unwrap_json(line: str) -> list[str]:
    """Return the message of a line of ``journalctl -o json`` or of Docker's json-file driver."""
    if not line.startswith("{"):
        return [line]
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
    return [line]


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
