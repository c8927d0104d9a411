"""A ledger with what a page has to show: good and bad runs of two servers, a smoke, a crash, an open run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opsctl.ledger import Ledger
from opsctl.smoke.store import save_result
from tests.unit.smoke.test_reports import stored

HOSTILE = "</script><script>alert(1)</script>"
BEGUN_S = 1_764_000_000.0
DIAGNOSIS = {
    "category": "shape-mismatch",
    "explanation": "160 = 10 requests x 16 draft tokens",
    "next": ["find the first bad level"],
    "first_record": f"RuntimeError: size of tensor a (160) {HOSTILE}",
    "last_batch": "Decode batch, #running-req: 10",
    "signature": "shape-mismatch:c7b5",
}
LEVELS = [
    {"concurrency": c, "outcome": "passed", "requests": 3 * c, "ok": 3 * c, "failed": 0,
     "output_tok_s": 90.0 * c, "ttft_ms": {"p50": 20.0, "p99": 30.0}, "itl_ms": None}
    for c in (1, 2, 5)
]  # fmt: skip
CONTENT = {
    "package": "sglang",
    "package_version": "0.5.12.post1",
    "gpu_model": "NVIDIA H200",
    "patches": {"spec-disable-v2": "ab" * 32},
    "arguments": ["--tp", "8", "--api-key", "sk-do-not-show"],
    "environment": {"HF_TOKEN": "(secret)"},
}


def make_history(state: Path) -> Ledger:
    """Write the runs, oldest first, and return the open ledger."""
    ledger = Ledger.open(state)
    add(ledger, 1, "glm5", "restart", 0, {"smoke": {"levels": LEVELS}}, steps=True)
    crash = {"diagnosis": DIAGNOSIS, "bracket": {"last_good": 5, "first_bad": 10}}
    add(ledger, 2, "glm5", "restart", 60, crash, signature="shape-mismatch:c7b5", steps=True)
    add(ledger, 3, "glm5", "restart", 50, {})
    run = add(ledger, 4, "other", "smoke", 60, stored(), signature="shape-mismatch:c7b5")
    save_result(state, run, stored())
    add(ledger, 5, "other", "stop", None, {})
    return ledger


def add(
    ledger: Ledger,
    number: int,
    server: str,
    playbook: str,
    exit_code: int | None,
    data: Mapping[str, Any],
    *,
    signature: str | None = None,
    steps: bool = False,
) -> str:
    run = f"20261129-0{number}0000-{number:04x}"
    at_s = BEGUN_S + number * 3600
    ledger.begin(
        run, server=server, playbook=playbook, at_s=at_s, who="ann@desk",
        reason=f"page <b>{HOSTILE}", inputs={},
    )  # fmt: skip
    if steps:
        ledger.set_facts(run, {"content": CONTENT}, "87db6bc73613771e")
        for position, name in enumerate(("lock", "collect", "stop", "launch")):
            turn = ledger.begin_step(run, position, name, "read", at_s + position)
            body = {"data": {"summary": f"{name} <i>did it", "log": f"old log {HOSTILE}"}}
            ledger.end_step(
                run, position, turn, at_s=at_s + 2.0 * position + 0.5, outcome="done",
                changed=True, body=body,
            )  # fmt: skip
    if exit_code is not None:
        finding = {"code": "c", "subject": "glm5", "text": f"it broke {HOSTILE}", "next": "look"}
        ledger.finish(
            run, at_s=at_s + 60, outcome="done" if exit_code == 0 else "failed",
            exit_code=exit_code, signature=signature,
            document={"findings": [finding], "data": dict(data)},
        )  # fmt: skip
    return run
