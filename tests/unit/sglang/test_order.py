"""Logs that were exported newest line first."""

from __future__ import annotations

import pytest

from opsctl.domain.crash import Diagnosis, diagnose
from opsctl.sglang.log import read_records
from opsctl.sglang.order import in_order, mirrored

CRASH = """\
[2026-11-20 02:05:00] The server is fired up and ready to roll!
[2026-11-20 02:05:01 TP0] Decode batch, #running-req: 8, #token: 9000, token usage: 0.03, cuda graph: True
[2026-11-20 02:05:02 TP0] Decode batch, #running-req: 8, #token: 9320, token usage: 0.03, cuda graph: True
[2026-11-20 02:05:03 TP0] Decode batch, #running-req: 8, #token: 9640, token usage: 0.03, cuda graph: True
[2026-11-20 02:05:04 TP0] Decode batch, #running-req: 8, #token: 9960, token usage: 0.03, cuda graph: True
[2026-11-20 02:05:05 TP7] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/sglang/srt/managers/scheduler.py", line 1687, in process_batch_result
IndexError: list index out of range
[2026-11-20 02:05:06] SIGQUIT received. signum=None, frame=None. It usually means one child failed.
"""


def read(text: str) -> tuple[Diagnosis, int]:
    lines, turned = in_order(text.encode().splitlines())
    found = diagnose(read_records(lines))
    return (mirrored(found, turned) if turned else found), turned


@pytest.mark.parametrize(
    "carrier", ["", "2026-11-20T10:{:02d}:00+08:00\t", "May 16, 2026 @ 20:{:02d}:44.728    "]
)
def test_newest_line_first_gives_the_same_diagnosis(carrier: str) -> None:
    """Category, rank and signature are those of the log the right way round; the line is the file's."""
    lines = [carrier.format(minute) + line for minute, line in enumerate(CRASH.splitlines())]
    forth, _ = read("\n".join(lines))

    back, turned = read("\n".join(reversed(lines)))

    assert turned == len(lines)
    assert (back.category, back.rank) == ("scheduler-exception", "TP7")
    assert back.signature == forth.signature
    assert back.line is not None
    assert "IndexError" in list(reversed(lines))[back.line - 1]


def test_a_log_that_runs_forth_stays_as_it_is() -> None:
    """Also when the clock was set back once, and when it has no stamps at all."""
    again = CRASH + CRASH.replace("02:05", "02:04")

    assert read(CRASH)[1] == read(again)[1] == 0
    assert read("a line\n" * 40)[1] == 0
