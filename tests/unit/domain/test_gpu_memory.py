"""GPU memory: what is proven free, what is busy, and what could not be told."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.domain.gpu import IDLE_MARGIN_BYTES, MIB, Baseline, MemoryState, resolve_gpus
from opsctl.domain.gpu_memory import judge_memory
from opsctl.facts import GpuProcess, GpuRead, MigInstance

from .tables import GPU0, GPU1, gpu, report

GIB = 1 << 30


@pytest.mark.parametrize(
    ("card", "state", "exit_code", "code"),
    [
        (gpu(used=0), "free", 0, None),
        (gpu(used=39 * MIB), "free", 0, None),
        (gpu(used=IDLE_MARGIN_BYTES), "free", 0, None),
        (gpu(used=IDLE_MARGIN_BYTES + 1), "busy", 20, "memory-without-owner"),
        (gpu(used=50000 * MIB), "busy", 20, "memory-without-owner"),
        (gpu(used=9 * GIB, holders=[(7, 9 * GIB)]), "busy", 20, "held"),
        (gpu(used=9 * GIB, holders=[(7, None)]), "busy", 20, "held"),
        (gpu(used=9 * GIB, processes=None), "busy", 20, "processes-unknown"),
        (gpu(used=10 * MIB, holders=[(7, 5 * MIB)]), "busy", 20, "held"),
        (gpu(used=0, holders=[(7, None)]), "unknown", 21, "process-memory-unknown"),
        (gpu(used=10 * MIB, holders=[(9, 10 * MIB, "G")]), "free", 0, None),
        (gpu(used=0, processes=None), "unknown", 21, "processes-unknown"),
        (gpu(used=None), "unknown", 21, "memory-unknown"),
        (gpu(used=None, holders=[(7, None)]), "unknown", 21, "memory-unknown"),
        (gpu(used=None, holders=[(7, 19135 * MIB)]), "busy", 20, "held"),
        (gpu(used=600 * MIB, memory_version=1), "unknown", 21, "reserved-or-used"),
        (gpu(used=4096 * MIB, memory_version=1), "busy", 20, "memory-without-owner"),
        (gpu(used=10 * MIB, memory_version=1), "free", 0, "reserved-counted"),
        (gpu(read=GpuRead.LOST, used=None, error="GPU is lost"), "lost", 21, "gpu-lost"),
        (gpu(read=GpuRead.UNKNOWN, used=None, error="x"), "unknown", 21, "memory-unknown"),
        (
            gpu(used=0, mig_enabled=True, mig_instances=(MigInstance("MIG-1", None, None, None),)),
            "free",
            0,
            "mig",
        ),
        (gpu(used=None, mig_enabled=True), "unknown", 21, "memory-unknown"),
        (gpu(used=0, utilisation_percent=100), "free", 0, "ghost-utilisation"),
    ],
)
def test_one_card(card: Any, state: str, exit_code: int, code: str | None) -> None:
    """Every kind of reading has its state, its exit code and its own finding."""
    verdict = judge_memory(report(card), [card.uuid])

    assert verdict.gpus[0].state == state
    assert verdict.exit_code == exit_code
    codes = [finding.code for finding in verdict.all_findings]
    assert codes == ([] if code is None else codes)
    assert code is None or code in codes


@pytest.mark.parametrize(
    "state",
    [
        "no-library",
        "driver-not-loaded",
        "mismatch",
        "no-permission",
        "timeout",
        "error",
        "no-devices",
        "something-new",
    ],
)
def test_no_report_is_no_proof(state: str) -> None:
    """Whatever kept NVML from answering, the exit code is 21 and never 0."""
    verdict = judge_memory(report(state=state), [])

    assert verdict.exit_code == 21
    assert verdict.outcome == "unknown"
    assert verdict.findings[0].next


def test_fewer_cards_than_expected_could_not_be_told() -> None:
    """One free card of two is 21, and one busy of two is 20."""
    free, busy = gpu(), gpu(used=9 * GIB)

    assert judge_memory(report(free), [GPU0], expect=2).exit_code == 21
    assert judge_memory(report(busy), [GPU0], expect=2).exit_code == 20
    assert judge_memory(report(free), [GPU0, GPU1]).exit_code == 21


def test_more_cards_than_expected_are_said_and_proven_all() -> None:
    """Two free cards of one expected are free, and a finding; a busy neighbour is still busy."""
    free = judge_memory(report(gpu(), gpu(GPU1, 1)), [GPU0, GPU1], expect=1)
    busy = judge_memory(report(gpu(), gpu(GPU1, 1, used=9 * GIB)), [GPU0, GPU1], expect=1)

    assert [finding.code for finding in free.findings] == ["more-gpus"]
    assert free.findings[0].next
    assert (free.exit_code, busy.exit_code) == (0, 20)
    assert judge_memory(report(gpu()), [GPU0], expect=1).findings == ()


def test_an_empty_set_proves_nothing() -> None:
    """No selected card is not 'all free'."""
    assert judge_memory(report(gpu()), []).exit_code == 21


def test_one_lost_card_does_not_hide_the_others() -> None:
    """Each card has its own verdict; seen use wins over what could not be told."""
    lost = gpu(read=GpuRead.LOST, used=None)
    busy = gpu(GPU1, 1, used=9 * GIB)
    verdict = judge_memory(report(lost, busy), [GPU0, GPU1])

    assert [card.state for card in verdict.gpus] == [MemoryState.LOST, MemoryState.BUSY]
    assert verdict.exit_code == 20


def test_the_learned_baseline_moves_the_limit() -> None:
    """A display's 300 MiB pass, 400 do not; without the baseline neither does."""
    known = {GPU0: Baseline(300 * MIB, 2)}

    assert judge_memory(report(gpu(used=320 * MIB)), [GPU0], baselines=known).exit_code == 0
    assert judge_memory(report(gpu(used=400 * MIB)), [GPU0], baselines=known).exit_code == 20
    assert judge_memory(report(gpu(used=320 * MIB)), [GPU0]).exit_code == 20


def test_a_baseline_of_the_other_way_of_counting_is_not_used() -> None:
    """v1 and v2 numbers differ by the reserved memory."""
    known = {GPU0: Baseline(645 * MIB, 1)}

    assert judge_memory(report(gpu(used=600 * MIB)), [GPU0], baselines=known).exit_code == 20
    old = gpu(used=650 * MIB, memory_version=1)
    assert judge_memory(report(old), [GPU0], baselines=known).exit_code == 0


def test_only_daemons_and_displays_within_the_baseline_do_not_block() -> None:
    """The MPS server stays; a member, a stranger, another container's blocks however little it holds."""
    card = gpu(used=40 * MIB, holders=[(7, 30 * MIB, "M")])
    known = {GPU0: Baseline(40 * MIB, 2)}

    def code(kind: str, residents: frozenset[int] = frozenset()) -> int:
        classes = {7: (kind, "x")}
        verdict = judge_memory(
            report(card), [GPU0], baselines=known, classes=classes, residents=residents
        )
        return verdict.exit_code

    assert code("protected", frozenset({7})) == 0
    assert code("protected") == 20
    assert code("member") == 20
    assert code("foreign") == 20


def test_who_is_not_to_be_signalled_holds_its_memory_by_name() -> None:
    """Another container's server on our card is named: no word of memory without an owner, or of a reboot."""
    card = gpu(used=9 * GIB, holders=[(7, 9 * GIB)])
    classes = {7: ("protected", "runs in container 130")}

    (finding,) = judge_memory(report(card), [GPU0], classes=classes).all_findings

    assert finding.code == "held"
    assert "pid 7 (runs in container 130) holds 9216 MiB" in finding.text
    assert finding.next == "opsctl never signals it: stop it where it belongs"


def test_holders_carry_their_class() -> None:
    """With a process table each holder is named; an unknown pid is foreign."""
    card = gpu(used=9 * GIB, holders=[(7, 8 * GIB), (8, GIB)])
    verdict = judge_memory(report(card), [GPU0], classes={7: ("member", "scheduler")})
    assert [(h.holder.pid, h.kind) for h in verdict.gpus[0].holders] == [
        (7, "member"),
        (8, "foreign"),
    ]


def test_a_selection_names_cards_by_index_and_uuid() -> None:
    """A name that fits no card, or two, is a finding that forbids 'free'."""
    cards = report(gpu(), gpu(GPU1, 1))

    assert resolve_gpus("all", cards) == ((GPU0, GPU1), ())
    assert resolve_gpus([1, GPU0], cards) == ((GPU1, GPU0), ())
    uuids, found = resolve_gpus([0, 5], cards)
    assert uuids == (GPU0,)
    assert judge_memory(cards, uuids, found=found).exit_code == 21
    assert resolve_gpus(["GPU-"], cards)[1][0].text == "names 2 GPUs"


def test_a_mismatch_prints_both_versions() -> None:
    """Who reads it knows which side to change."""
    seen = report(state="mismatch", driver_version="550.107", kernel_module_version="550.90.07")
    text = judge_memory(seen, []).findings[0].text
    assert "550.107" in text
    assert "550.90.07" in text


@pytest.mark.parametrize(
    ("instances", "state"),
    [
        ((MigInstance("MIG-1", 1, 10 * MIB, ()), MigInstance("MIG-2", 1, 0, ())), "free"),
        ((MigInstance("MIG-1", 1, 9 * GIB, ()), MigInstance("MIG-2", 1, None, ())), "busy"),
        ((MigInstance("MIG-1", 1, 0, (GpuProcess(7, "C", None),)),), "busy"),
        ((MigInstance("MIG-1", 1, 0, ()), MigInstance("MIG-2", 1, None, None)), "unknown"),
        ((MigInstance("MIG-1", 1, 0, None),), "unknown"),
    ],
)
def test_instances_speak_for_a_card_that_does_not(
    instances: tuple[MigInstance, ...], state: str
) -> None:
    """Where the card's own number is denied, each MIG instance is judged."""
    card = gpu(used=None, read=GpuRead.UNKNOWN, mig_enabled=True, mig_instances=instances)
    assert judge_memory(report(card), [GPU0]).gpus[0].state == state


def test_a_card_without_numbers_but_with_a_holder_is_busy() -> None:
    """NVML's read is 'unknown', and its process list still proves use."""
    card = gpu(used=None, read=GpuRead.UNKNOWN, holders=[(7, 9 * GIB)])
    assert judge_memory(report(card), [GPU0]).exit_code == 20


def test_a_holder_of_another_server_of_the_site_is_named_with_its_stop() -> None:
    """Who asks why the memory is held can paste what frees it; a stranger has no such command."""
    card = gpu(used=9 * GIB, holders=[(7, 4 * GIB), (8, 5 * GIB)])
    classes = {7: ("foreign", "sglang::scheduler_TP0"), 8: ("foreign", "train.py")}

    ours, stranger = judge_memory(
        report(card), [GPU0], classes=classes, servers={7: "other"}
    ).all_findings

    assert ours.text == "pid 7 of server other (sglang::scheduler_TP0) holds 4096 MiB"
    assert ours.next == "opsctl stop other"
    assert stranger.text.startswith("foreign pid 8")
