"""The numbers that a message holds, said as sentences."""

from __future__ import annotations

import pytest

from opsctl.domain.crash import Context, Launch, diagnose
from opsctl.sglang.log import records_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Subprocess scheduler_0 (pid=7) crashed with exit code -9.", "exit code -9 (SIGKILL, by the OOM"),
        ("Subprocess scheduler_0 (pid=7) crashed with exit code -11.", "exit code -11 (SIGSEGV"),
        ("sglang exited with code 137", "exit code 137 (SIGKILL"),
        ('"ExitCode": 139', "exit code 139 (SIGSEGV"),
        ("x.service: Main process exited, code=dumped, status=11/SEGV", "exit code 11 (SIGSEGV"),
        ("NVRM: Xid (PCI:0000:44:00): 79, pid=1, name=python3, GPU has", "Xid 79: the GPU fell off the bus"),
        ("RuntimeError: NCCL error: unhandled system error", "NCCL_DEBUG=INFO and look at /dev/shm"),
    ],
)  # fmt: skip
def test_codes_are_told_with_their_meaning(text: str, words: str) -> None:
    """Nobody has to look up a signal or an Xid at night."""
    found = diagnose(records_of(f"[2026-11-29 10:00:00 TP0] {text}"))

    assert words in found.explanation


def test_pages_explain_why_free_tokens_did_not_suffice() -> None:
    """148 tokens wanted, 2048 free, and yet it failed: allocation is by page."""
    lines = ("RuntimeError: Decode out of memory. Try to lower your batch size.",
             "Try to allocate 148 tokens.", "Avaliable tokens: 2048")  # fmt: skip

    found = diagnose(records_of("\n".join(lines)), Context(launch=Launch(page_size=64)))

    assert "148 tokens need 3 pages for one request and up to 148 pages" in found.explanation
    assert "2048 free tokens are 32 pages" in found.explanation


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "torch.AcceleratorError: CUDA error: device-side assert triggered",
    ],
)
def test_stack_of_an_asynchronous_error_is_where_it_was_noticed(error: str) -> None:
    """The frame is shown as what it is, and the next step finds the real one."""
    lines = (
        "[2026-11-29 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "sglang/srt/managers/scheduler.py", line 1, in process_batch_result',
        error,
    )

    found = diagnose(records_of("\n".join(lines)))

    assert "the stack is where it was noticed" in found.explanation
    assert found.noticed_in == "scheduler.py:process_batch_result"
    assert "CUDA_LAUNCH_BLOCKING=1" in " ".join(found.next)
