"""Lists of processes that NVML gives in two calls, between which processes come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from opsctl.agent import nvml

TOO_SMALL = pynvml.NVML_ERROR_INSUFFICIENT_SIZE
UNKNOWN_CALL = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND


def answering(*answers: Any) -> Callable[[Any], Any]:
    """Return a call that raises each number and returns each list, in turn."""
    left = list(answers)

    def call(_handle: Any) -> Any:
        answer = left.pop(0)
        if isinstance(answer, int):
            raise pynvml.NVMLError(answer)
        return answer

    return call


def test_a_list_that_grew_meanwhile_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """More processes than the buffer that the first call measured: no "unknown" for that."""
    calls = {3: answering(TOO_SMALL, TOO_SMALL, ["a"]), 2: answering()}
    for version, call in calls.items():
        monkeypatch.setattr(pynvml, f"nvmlDeviceGetComputeRunningProcesses_v{version}", call)

    assert nvml.listed("Compute", None) == ["a"]


def test_an_old_driver_has_version_2_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be too small there, too."""
    calls = {3: answering(UNKNOWN_CALL), 2: answering(TOO_SMALL, ["b"])}
    for version, call in calls.items():
        monkeypatch.setattr(pynvml, f"nvmlDeviceGetMPSComputeRunningProcesses_v{version}", call)

    assert nvml.listed("MPSCompute", None) == ["b"]


@pytest.mark.parametrize("error", [TOO_SMALL, UNKNOWN_CALL, pynvml.NVML_ERROR_GPU_IS_LOST])
def test_a_list_that_cannot_be_had_is_an_error_and_never_empty(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """An empty list would call the card free."""
    for version in (2, 3):
        call = answering(*[error] * 9)
        monkeypatch.setattr(pynvml, f"nvmlDeviceGetComputeRunningProcesses_v{version}", call)

    with pytest.raises(pynvml.NVMLError) as caught:
        nvml.listed("Compute", None)
    assert caught.value.value == error
