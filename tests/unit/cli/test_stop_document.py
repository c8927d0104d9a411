"""The document of a stop, by the output contract: outcome and exit code say the same."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.cli.stop import _document
from opsctl.steps.base import StepOutcome, StepResult

PROCESS = {
    "pid": 78,
    "ns_pid": 16,
    "start_ticks": 5,
    "class": "member",
    "reason": "r",
    "outcome": "killed",
}
CARD = {"uuid": "GPU-1", "state": "free", "used_bytes": 0, "baseline_bytes": 0, "holders": []}


def stopped(exit_code: int = 0, changed: bool = True) -> StepResult:
    data = {"processes": [PROCESS] if changed else [], "ending_s": 0.5, "last_exit_s": 9.0}
    return StepResult(StepOutcome.DONE, changed=changed, data=data, exit_code=exit_code)


def memory(exit_code: int = 0) -> StepResult:
    data = {"gpus": [CARD], "proven_after_exit_s": 0.02, "proven_at": 9.02}
    return StepResult(StepOutcome.UNCHANGED, data=data, exit_code=exit_code)


def swept(*kinds: str) -> StepResult:
    left = [{"kind": kind, "path": "x"} for kind in kinds]
    return StepResult(StepOutcome.UNCHANGED, data={"leftovers": left})


@pytest.mark.parametrize(
    ("parts", "outcome", "exit_code"),
    [
        ((stopped(), memory(), swept()), "stopped", 0),
        ((stopped(changed=False), memory(), swept()), "already-stopped", 0),
        ((stopped(), memory(20), swept()), "memory-busy", 20),
        ((stopped(), memory(21), swept()), "memory-unknown", 21),
        ((stopped(20), memory(), swept()), "not-stopped", 20),
        ((stopped(20), memory(21), swept()), "not-stopped", 20),
        ((stopped(changed=False), memory(), swept("port")), "port-held", 20),
        ((stopped(changed=False), memory(21), swept("port")), "memory-unknown", 21),
        ((stopped(), memory(), swept("shm")), "stopped", 0),
    ],
)
def test_outcome_and_exit_code(parts: Any, outcome: str, exit_code: int) -> None:
    """0 only when the processes are gone, the memory is proven free and nothing holds the port."""
    document = _document("stop", *parts, total_s=1.0)
    assert (document.outcome, document.exit_code) == (outcome, exit_code)


def test_the_contract_s_fields_are_there() -> None:
    """Scripts read these names."""
    document = _document("stop", stopped(), memory(), swept(), 1.0)
    assert document.schema == "opsctl.stop/1"
    row = document.data["processes"][0]
    assert {"pid", "ns_pid", "start_ticks", "class", "reason", "outcome"} <= row.keys()
    card = document.data["gpus"][0]
    assert {"uuid", "state", "used_bytes", "baseline_bytes", "holders"} <= card.keys()
