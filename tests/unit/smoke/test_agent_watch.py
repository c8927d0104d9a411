"""Which line of a server's log tells a smoke that something ended."""

from __future__ import annotations

import pytest

from opsctl.smoke.agent_watch import first_crash_line

HEALTHY = [
    "[t TP0] Decode batch, #running-req: 3, #token: 9, token usage: 0.01, cuda graph: True",
    "[t TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.1 -> 0.2",
    "[t TP0] Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.14 -> 0.18",
    "[t] Receive: obj=GenerateReqInput(text='why: CUDA error: device-side assert triggered?')",
    "[t] Finish: obj=GenerateReqInput(rid='1'), out={'text': 'Fatal Python error: Segmentation fault'}",
    "[t] Received request cmpl-1: prompt: 'Scheduler hit an exception'",
]


def test_retractions_and_logged_requests_are_no_signs() -> None:
    """Warnings and what users write name crashes and are none."""
    assert first_crash_line(HEALTHY) is None


@pytest.mark.parametrize(
    "line",
    [
        "IndexKernel.cu:111: block: [0,0,0] Assertion `index out of bounds` failed.",
        "Fatal Python error: Segmentation fault",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "[t] DetokenizerManager hit an exception: Traceback (most recent call last):",
        "[t] TokenizerManager hit an exception: Traceback (most recent call last):",
        "[t TP3] Scheduler hit an exception: Traceback (most recent call last):",
        "[t TP3] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
    ],
)
def test_each_way_to_end_is_a_sign(line: str) -> None:
    """Also without any traceback of Python, and from each of SGLang's processes."""
    assert first_crash_line([*HEALTHY, line]) == len(HEALTHY)
