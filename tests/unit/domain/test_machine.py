"""One machine or two, decided from boot ids and GPU UUIDs."""

from __future__ import annotations

import pytest

from opsctl.domain.machine import compare_machines


@pytest.mark.parametrize(
    ("boot", "gpu_boot", "uuids", "gpu_uuids", "one", "how"),
    [
        ("a" * 32, "a" * 32, [], [], True, "both have boot id"),
        ("a" * 32, "b" * 32, [], [], False, "differ"),
        ("a" * 32, "b" * 32, ["GPU-1"], ["GPU-1"], True, "both show GPU-1"),
        ("a" * 32, "b" * 32, ["GPU-1"], ["GPU-2"], False, "differ"),
        (None, "b" * 32, [], [], None, "could not be read"),
        (None, None, ["GPU-1"], ["GPU-1"], True, "both show GPU"),
    ],
)
def test_verdict_follows_the_proof(
    boot: str | None,
    gpu_boot: str | None,
    uuids: list[str],
    gpu_uuids: list[str],
    one: bool | None,
    how: str,
) -> None:
    """A missing boot id is unknown, never one machine."""
    machine = compare_machines(boot, gpu_boot, uuids, gpu_uuids)

    assert machine.one is one
    assert how in machine.how


def test_a_containers_own_boot_id_proves_nothing() -> None:
    """LXC gives each container a boot id of its own: different ids are then unknown, not two machines."""
    assert compare_machines("a" * 32, "b" * 32, contained=True).one is None
    assert compare_machines("a" * 32, "b" * 32, ["GPU-1"], ["GPU-1"], contained=True).one is True
    assert compare_machines("a" * 32, "b" * 32, ["GPU-1"], ["GPU-2"], contained=True).one is False


def test_one_entry_for_both_is_one_machine() -> None:
    """The site may simply name one host."""
    assert compare_machines(None, None, same_entry=True).one is True
