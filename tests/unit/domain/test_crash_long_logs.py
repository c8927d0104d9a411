"""Logs as they are at 3 a.m.: thousands of lines, many ranks, consequences before causes."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from opsctl.domain.crash import Context, Diagnosis, Launch, diagnose
from opsctl.domain.crash.collect import MAX_EVIDENCE, Collector
from opsctl.sglang.log import records_of

CAUSE = (
    "RuntimeError: The size of tensor a (160) must match the size of tensor b (10) at dimension 0"
)
GONE = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:20991"
SIGQUIT = "SIGQUIT received. signum=None, frame=None. It usually means one child failed."


def stamp(second: float, rank: str = "") -> str:
    return f"[2026-11-29 10:{int(second) // 60:02d}:{int(second) % 60:02d}{' ' + rank if rank else ''}]"


def serving(start: int, count: int, ranks: int = 8) -> Iterator[str]:
    for n in range(count):
        yield (
            f"{stamp(start + n // 50, f'TP{n % ranks}')} Decode batch, #running-req: {n % 10 + 1}, "
            f"#token: {n}, token usage: 0.01, cuda graph: True, gen throughput (token/s): 12.2, #queue-req: 0"
        )
        yield f'{stamp(start + n // 50)} INFO:     10.0.0.7:{n} - "POST /v1/chat/completions HTTP/1.1" 200 OK'


def crash(second: int, rank: str, error: str) -> list[str]:
    return [
        f"{stamp(second, rank)} Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/opt/sglang/srt/managers/scheduler.py", line 3160, in run_scheduler_process',
        "    scheduler.run_event_loop()",
        '  File "/opt/sglang/srt/model_executor/cuda_graph_runner.py", line 117, in foreach_copy',
        "    torch._foreach_copy_(dsts, srcs)",
        error,
        "",
    ]


def read(lines: list[str], context: Context | None = None) -> Diagnosis:
    return diagnose(records_of("\n".join(lines)), context)


def test_cause_is_found_after_thousands_of_lines_and_before_its_consequences() -> None:
    """Eight ranks, the cause on one, the others lose their peer; the main process tells first."""
    lines = [
        f"{stamp(0)} server_args=ServerArgs(model_path='m', tp_size=8, speculative_num_draft_tokens=16)",
        f"{stamp(1)} The server is fired up and ready to roll!",
        *serving(2, 3000),
        f"{stamp(90)} {SIGQUIT}",
    ]
    for rank in range(8):
        lines += crash(90, f"TP{rank}", CAUSE if rank == 5 else GONE)

    found = read(lines)

    assert found.category == "shape-mismatch"
    assert found.rank == "TP5"
    assert found.sizes is not None
    assert found.sizes.requests == 10
    assert {first.rank for first in found.ranks} == {None, *(f"TP{rank}" for rank in range(8))}
    assert found.last_batch is not None
    assert "Decode batch" in found.last_batch


def test_earlier_of_two_causes_wins_by_time_not_by_position() -> None:
    """Ranks write late; the stamps tell who failed first."""
    lines = [
        *serving(2, 10),
        *crash(
            95,
            "TP0",
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        ),
        *crash(90, "TP3", CAUSE),
    ]

    found = read(lines)

    assert (found.category, found.rank) == ("shape-mismatch", "TP3")
    assert "illegal-access" in found.also


def test_mixed_ranks_lower_the_confidence() -> None:
    """When tracebacks are interleaved, the words count and the stack does not."""
    clean = read(crash(90, "TP0", CAUSE))
    first, second = crash(90, "TP0", CAUSE), crash(90, "TP1", CAUSE)
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]

    found = read(mixed)

    assert found.category == "shape-mismatch"
    assert found.confidence < clean.confidence


def test_order_of_unrelated_ranks_does_not_matter() -> None:
    """Shuffling whole tracebacks of the same second never changes the verdict."""
    blocks = [crash(90, f"TP{rank}", CAUSE if rank == 2 else GONE) for rank in range(8)]
    shuffle = random.Random(7)
    for _ in range(20):
        shuffle.shuffle(blocks)
        found = read([*serving(2, 20), *(line for block in blocks for line in block)])
        assert (found.category, found.rank) == ("shape-mismatch", "TP2")


@pytest.mark.parametrize("count", [1, 40, 3000])
def test_evidence_is_bounded(count: int) -> None:
    """A flood of different errors does not grow without end."""
    collector = Collector()
    words = (
        f"{'abcdefghij'[n % 10] * (n % 97 + 1)}-{'xyz'[n % 3] * (n % 89)}" for n in range(count)
    )
    lines = [line for word in words for line in crash(90, "TP0", f"ValueError: {word} is wrong")]

    collector.collect(records_of("\n".join(lines)))

    assert len(collector.run.evidence) <= MAX_EVIDENCE


def test_first_life_that_ended_badly_decides() -> None:
    """The second start fails for memory that the first crash left behind: a symptom."""
    lines = [
        f"{stamp(0)} server_args=ServerArgs(model_path='m')",
        f"{stamp(1)} The server is fired up and ready to roll!",
        *serving(2, 10),
        "Fatal Python error: Segmentation fault",
        f"{stamp(20)} server_args=ServerArgs(model_path='m')",
        f"{stamp(21, 'TP0')} Load weight begin. avail mem=3.10 GB",
        *crash(
            22, "TP0", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB."
        ),
    ]

    found = read(lines)

    assert found.category == "child-died"
    assert "cuda-oom-startup" in found.also


def test_wanted_stop_is_healthy_whatever_its_last_words() -> None:
    """SIGTERM first, then the usual noise of a tree that is taken down."""
    lines = [
        f"{stamp(1)} The server is fired up and ready to roll!",
        *serving(2, 10),
        f"{stamp(30)} SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
        *crash(31, "TP0", GONE),
        f"{stamp(32)} {SIGQUIT}",
        "Killed",
    ]

    assert read(lines).category is None


def test_crash_before_a_stop_is_still_a_crash() -> None:
    """The service manager stops what is left of a crash."""
    lines = [
        f"{stamp(1)} The server is fired up and ready to roll!",
        *crash(29, "TP0", CAUSE),
        f"{stamp(30)} SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
    ]

    assert read(lines).category == "shape-mismatch"


def test_context_of_the_caller_wins_and_is_told() -> None:
    """Smoke knows the level, the threshold and the patches."""
    context = Context(
        level=10, launch=Launch(draft_tokens=16, threshold=5), patches=("spec-disable",)
    )

    found = read(crash(90, "TP0", CAUSE), context)

    assert "160 = 10 requests x 16 draft tokens" in found.explanation
    assert "above the speculation threshold 5" in found.explanation
    assert "spec-disable" in found.explanation
    assert "without spec-disable" in found.next[0]


def test_hang_that_the_caller_saw_needs_no_line() -> None:
    """A healthy log and a client without tokens: silent hang."""
    assert read([*serving(2, 10)], Context(hung=True)).category == "silent-hang"
    assert read([*serving(2, 10)]).category is None


def test_live_port_after_a_death_is_a_zombie() -> None:
    """Smoke asks the port; the log alone would say that a child died."""
    lines = [*serving(2, 10), "Fatal Python error: Segmentation fault"]

    assert read(lines).category == "child-died"
    assert read(lines, Context(port_alive=True)).category == "zombie-service"


def test_first_line_that_a_rotation_has_torn_is_nobodys_evidence() -> None:
    """The rest of a prompt, or of a line whose beginning says what it was, decides nothing."""
    batch = (
        "[2026-11-29 10:00:00 TP0] Decode batch, #running-req: 3, #token: 90, token usage: 0.01, "
        "cuda graph: True, gen throughput (token/s): 9.1, #queue-req: 0,\n"
    )
    for torn in (
        "mentation fault (core dumped)?', sampling_params={})\n",
        "size of tensor a (160) must match the size of tensor b (10)')\n",
        "'why CUDA error: device-side assert triggered')\n",
    ):
        assert diagnose(records_of(torn + batch)).category is None


def test_first_line_that_is_whole_counts() -> None:
    """An exception, a native abort in a log without stamps: they stand at the beginning of a line."""
    stamped = "[2026-11-29 10:00:00] SIGQUIT received. signum=None, frame=None.\n"

    first = diagnose(records_of("torch.OutOfMemoryError: CUDA out of memory.\n" + stamped))
    bare = diagnose(records_of("terminate called after throwing an instance of 'x'\nAborted\n"))

    assert (first.category or "").startswith("cuda-oom")
    assert bare.category == "child-died"
