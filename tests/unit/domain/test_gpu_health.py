"""Health before the next launch, and what an idle card used."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.domain.gpu import LARGEST_RESERVED_BYTES, MIB, Baseline
from opsctl.domain.gpu_health import judge_health, learn_baseline, learn_baselines
from opsctl.facts import GpuRead

from .tables import GPU0, GPU1, gpu, report

XID_79 = (
    "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
XID_31 = "NVRM: Xid (PCI:0000:3b:00): 31, pid=4200, name=python3, Ch 00000008"


@pytest.mark.parametrize(
    ("card", "code", "refuses"),
    [
        (gpu(recovery_action="reset"), "recovery-action", True),
        (gpu(recovery_action="reboot"), "recovery-action", True),
        (gpu(recovery_action="drain"), "recovery-action", True),
        (gpu(remap_failed=True), "remap-failed", True),
        (gpu(read=GpuRead.LOST), "gpu-lost", True),
        (gpu(remap_pending=True), "remap-pending", False),
        (gpu(ecc_uncorrected=3), "ecc-uncorrected", False),
        (gpu(throttle_thermal=True, temperature_c=92), "thermal", False),
    ],
)
def test_each_trouble_warns_or_refuses(card: Any, code: str, refuses: bool) -> None:
    """What needs a reset or a new card refuses; the rest warns."""
    (found,) = judge_health(report(card), [GPU0])
    assert (found.finding.code, found.refuses) == (code, refuses)


def test_a_healthy_card_has_no_finding() -> None:
    """Values that a card does not offer are no trouble either."""
    quiet = gpu(GPU1, 1, recovery_action=None, ecc_uncorrected=None, remap_pending=None)
    assert judge_health(report(gpu(), quiet), [GPU0, GPU1]) == []


def test_trouble_of_other_cards_is_not_ours() -> None:
    """Only the server's set counts."""
    assert judge_health(report(gpu(recovery_action="reset"), gpu(GPU1, 1)), [GPU1]) == []


@pytest.mark.parametrize(
    ("action", "refuses"), [("none", False), (None, True), ("reset", True)], ids=str
)
def test_a_fatal_xid_refuses_unless_the_driver_says_all_is_well(
    action: str | None, refuses: bool
) -> None:
    """The recovery action is fresher than a line of the kernel log."""
    seen = report(gpu(recovery_action=action), xids=(XID_79, XID_79))
    found = {item.finding.code: item for item in judge_health(seen, [GPU0])}
    assert found["xid-79"].refuses is refuses
    assert "2 times" in found["xid-79"].finding.text


def test_a_program_s_xid_only_warns() -> None:
    """Xid 31 is a fault of the program, and no reason to refuse."""
    (found,) = judge_health(report(gpu(recovery_action=None), xids=(XID_31,)), [GPU0])
    assert (found.finding.code, found.refuses) == ("xid-31", False)


def test_an_unreadable_kernel_log_is_said() -> None:
    """Not known is not 'no Xid'."""
    (found,) = judge_health(report(gpu(), xids=None), [GPU0])
    assert found.finding.code == "xid-unknown"


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (gpu(used=0), Baseline(0, 2)),
        (gpu(used=39 * MIB), Baseline(39 * MIB, 2)),
        (gpu(used=300 * MIB, holders=[(9, 290 * MIB, "G")]), Baseline(300 * MIB, 2)),
        (gpu(used=300 * MIB, holders=[(5, 290 * MIB, "M")]), Baseline(300 * MIB, 2)),
        (gpu(used=300 * MIB), None),
        (gpu(used=20 * MIB, holders=[(7, 5 * MIB)]), None),
        (gpu(used=20 * MIB, holders=[(7, None)]), None),
        (gpu(used=0, processes=None), None),
        (gpu(used=None), None),
        (gpu(used=0, read=GpuRead.LOST), None),
        (gpu(used=645 * MIB, memory_version=1, reserved_bytes=None), None),
    ],
)
def test_a_baseline_is_learned_from_an_idle_card_only(card: Any, expected: Baseline | None) -> None:
    """Compute processes, memory without an owner and gaps in the reading teach nothing."""
    assert learn_baseline(card, frozenset({5})) == expected


def test_an_operator_may_have_reserved_memory_learned() -> None:
    """On a v1 driver the idle reading is large; asking for it is a decision of a person."""
    card = gpu(used=645 * MIB, memory_version=1, reserved_bytes=None)
    assert learn_baseline(card, frozenset(), LARGEST_RESERVED_BYTES) == Baseline(645 * MIB, 1)


def test_only_news_is_learned() -> None:
    """A known value is not written again; a lower one replaces it."""
    seen = report(gpu(used=4 * MIB), gpu(GPU1, 1, used=8 * MIB))
    known = {GPU0: Baseline(4 * MIB, 2), GPU1: Baseline(30 * MIB, 2)}
    assert learn_baselines(seen, frozenset(), known) == {GPU1: Baseline(8 * MIB, 2)}
