"""Reading logs: prefixes, routine lines, floods, endless lines, packed and broken files."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

from opsctl.domain.crash import diagnose
from opsctl.domain.crash.model import Kind, Record
from opsctl.sglang.log import (
    MAX_LINE,
    MAX_REPEATS,
    open_log,
    read_launch_facts,
    read_lines,
    read_records,
    records_of,
    unpack,
)
from opsctl.sglang.prefix import PrefixReader

DECODE = (
    "[2026-11-29 10:00:01 TP{rank}] Decode batch, #running-req: {running}, #token: 9, token usage: 0.01, "
    "cuda graph: {graph}, gen throughput (token/s): 9.10, #queue-req: 0"
)
ASSERT = "IndexKernel.cu:{n}: block: [{n},0,0] Assertion `index out of bounds` failed."


def texts(records: list[Record]) -> list[Record]:
    return [record for record in records if record.kind is Kind.TEXT]


@pytest.mark.parametrize(
    ("line", "body", "rank"),
    [
        ("[2026-11-29 10:00:00 TP0] hello", "hello", "TP0"),
        ("[2026-11-29 10:00:00.123 DP3 TP3 EP3] hello", "hello", "DP3 TP3 EP3"),
        ("[2026-11-29 10:00:00] hello", "hello", None),
        ("[TIME TP13] hello", "hello", "TP13"),
        ("[TP1] hello", "hello", "TP1"),
        ("[rank3]:[E1001 16:06:04.5 NCCL.cpp:607] hello", "[E1001 16:06:04.5 NCCL.cpp:607] hello", "rank3"),
        ("Nov 29 10:00:00 gpu1 python3[4242]: [2026-11-29 10:00:00 TP1] hello", "hello", "TP1"),
        ("2026-11-29T10:00:00+0000 gpu1 opsctl-glm5[4242]: hello", "hello", None),
        ("2026-11-29T10:00:00.123456789Z stderr F [2026-11-29 10:00:00 TP2] hello", "hello", "TP2"),
        ("sglang-1  | [2026-11-29 10:00:00 TP2] hello", "hello", "TP2"),
        ("[ 514.682838] hello", "hello", None),
        ("(Worker_TP1 pid=77) ERROR 11-29 10:00:00 [core.py:7] hello", "hello", "TP1"),
        ("(RayWorkerWrapper pid=4009, ip=10.0.0.4) hello", "hello", None),
        ("\x1b[31m[2026-11-29 10:00:00 TP0] hello\x1b[0m", "hello", "TP0"),
        ("  File \"x.py\", line 1, in f", "  File \"x.py\", line 1, in f", None),
    ],
)  # fmt: skip
def test_prefixes_of_carriers_are_taken_off(line: str, body: str, rank: str | None) -> None:
    """Whoever carried the line, its words are the same."""
    found = PrefixReader().read(line)

    assert (found.body, found.rank) == (body, rank)


def test_times_compare_across_stamps_of_one_log() -> None:
    """A stamp without a year takes the year that the log has shown."""
    reader = PrefixReader()

    first = reader.read("[2026-11-29 10:00:00 TP0] a").time_s
    second = reader.read("Nov 29 10:00:05 gpu1 kernel: b").time_s
    third = reader.read("[10:00:07 TP0] c").time_s

    assert first is not None
    assert second is not None
    assert third is not None
    assert first < second < third


def test_routine_lines_are_counted_not_kept() -> None:
    """Decode, prefill and access lines of a stretch come as one record."""
    lines = [
        DECODE.format(rank=0, running=7, graph=True),
        DECODE.format(rank=0, running=40, graph=False),
        "[2026-11-29 10:00:02] INFO:     10.0.0.7:1 - \"POST /generate HTTP/1.1\" 200 OK",
        "[2026-11-29 10:00:02] INFO:     10.0.0.7:1 - \"GET /health HTTP/1.1\" 503 Service Unavailable",
    ]  # fmt: skip

    records = list(records_of("\n".join(lines)))

    assert [record.kind for record in records] == [Kind.ACTIVITY]
    activity = records[0].activity
    assert activity is not None
    assert (activity.decode_lines, activity.decode_with_graph, activity.decode_without_graph) == (
        2,
        1,
        1,
    )
    assert (activity.max_running, activity.max_running_without_graph) == (40, 40)
    assert (activity.answers_ok, activity.answers_failed) == (1, 1)


def test_a_flood_is_counted_after_its_first_lines() -> None:
    """Lines that differ in digits only stop costing anything, and their number is known."""
    total = 5000
    flood = "\n".join(ASSERT.format(n=n) for n in range(total))

    records = list(records_of(flood))
    found = diagnose(records)

    assert len(texts(records)) < MAX_REPEATS + 500
    assert found.category == "index-out-of-bounds"
    assert f"{total} such lines" in found.explanation


def test_an_endless_line_is_cut_and_its_end_is_kept() -> None:
    """A dump of requests can be megabytes long; what stands after it still counts."""
    dump = (
        "[2026-11-29 10:00:00 TP0] self.cur_batch.reqs=["
        + "Req(rid=1, input_ids=[1, 2]), " * 200_000
    )
    stream = io.BytesIO(f"{dump}] available_size=7\nnext\n".encode())

    lines = list(read_lines(stream))

    assert len(lines[0]) <= MAX_LINE
    assert lines[-1] == b"next"
    assert diagnose(records_of(lines[0].decode())).category is not None


def test_a_file_without_a_newline_is_read_in_bounded_memory() -> None:
    """Eight megabytes in one line give a few short pieces."""
    lines = list(read_lines(io.BytesIO(b"x" * (8 << 20))))

    assert sum(len(line) for line in lines) <= 4 * MAX_LINE


def test_progress_bars_are_lines_of_their_own() -> None:
    """A carriage return ends a line, so an error after a bar is seen."""
    lines = list(read_lines(io.BytesIO(b"loading 1%\rloading 2%\r\nRuntimeError: x\n")))

    assert lines[:3] == [b"loading 1%", b"loading 2%", b"RuntimeError: x"]


def test_gzip_is_known_by_content_and_may_be_cut(tmp_path: Path) -> None:
    """A rotated log needs no suffix, and one that was cut in the middle says what it still holds."""
    packed = gzip.compress(b"RuntimeError: CUDA error: device-side assert triggered\n" * 2000)
    whole, torn = tmp_path / "server.log.1", tmp_path / "torn.gz"
    whole.write_bytes(packed)
    torn.write_bytes(packed[: len(packed) // 2])

    for path in (whole, torn):
        with open_log(path) as stream:
            found = diagnose(read_records(read_lines(stream)))
        assert found.category == "index-out-of-bounds"


def test_standard_input_may_be_gzip() -> None:
    """`zcat` is not needed."""
    stream = unpack(io.BufferedReader(io.BytesIO(gzip.compress(b"hello\n"))))  # type: ignore[arg-type]

    assert list(read_lines(stream)) == [b"hello"]


@pytest.mark.parametrize(
    "junk", [b"", b"\n\n\n", bytes(range(256)) * 40, b"\xff\xfe" * 500, b'{"a":' * 300]
)
def test_junk_is_unknown_and_breaks_nothing(junk: bytes) -> None:
    """Whatever the bytes are, there is an answer."""
    found = diagnose(read_records(read_lines(io.BytesIO(junk))))

    assert found.category == "unknown"
    assert found.explanation


def test_launch_facts_are_read_from_arguments_and_from_what_the_server_chose() -> None:
    """The arguments come first; what the server prints later wins."""
    text = """\
[2026-11-29 10:00:00] server_args=ServerArgs(model_path='m', tp_size=8, context_length=None)
[2026-11-29 10:00:00] server_args=ServerArgs(speculative_num_steps=5, speculative_eagle_topk=4)
[2026-11-29 10:00:00] server_args=ServerArgs(speculative_num_draft_tokens=16, max_running_requests=None)
[2026-11-29 10:00:01 TP0] Capture cuda graph bs [1, 2, 4, 8]
[2026-11-29 10:00:01 TP0] max_total_num_tokens=29801, max_running_requests=48, context_len=32768
[2026-11-29 10:00:02 TP0] [dynspec] ready: threshold=5, plain graphs bs=[1, 2]
"""

    facts = read_launch_facts(records_of(text))

    assert (facts.tp, facts.draft_tokens, facts.draft_steps, facts.topk) == (8, 16, 5, 4)
    assert (facts.context_length, facts.max_running_requests, facts.threshold) == (32768, 48, 5)
    assert facts.graph_sizes == (1, 2, 4, 8)
    assert not facts.graphs_disabled


def test_carriers_clock_in_another_zone_is_put_on_the_writers() -> None:
    """A log store stamps in its own zone; a line that has only its stamp is still comparable."""
    reader = PrefixReader()

    both = reader.read("2026-11-20T10:06:00+08:00 [2026-11-20 02:06:00 TP1] Scheduler hit it")
    outer_only = reader.read("2026-11-20T10:06:01+08:00 RuntimeError: the last line of a traceback")
    later = reader.read("2026-11-20T10:06:09+08:00 [2026-11-20 02:06:09 TP0] SIGQUIT received.")

    assert both.time_s is not None
    assert outer_only.time_s is not None
    assert later.time_s is not None
    assert both.time_s < outer_only.time_s < later.time_s


@pytest.mark.parametrize(
    "carrier",
    ["2026-11-20T10:06:01Z ", "2026-11-20T10:06:01Z\t", "May 16, 2026 @ 20:44:54.728    "],
)
def test_indentation_behind_a_carrier_stays(carrier: str) -> None:
    """A line of source inside a traceback is told by its indentation."""
    assert PrefixReader().read(f"{carrier}    batch = run()").body == "    batch = run()"
