"""One machine or two: whether the host of the processes and the host of the GPUs share a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """``one`` is None where it could not be told; ``how`` says how it is known, for people."""

    one: bool | None
    how: str

    def describe(self) -> str:
        """Return the verdict with its proof."""
        verdict = {True: "one machine", False: "two machines", None: "one machine or two: unknown"}
        return f"{verdict[self.one]} ({self.how})"


def compare_machines(
    boot_id: str | None,
    gpu_boot_id: str | None,
    uuids: Sequence[str] = (),
    gpu_uuids: Sequence[str] = (),
    *,
    same_entry: bool = False,
) -> Machine:
    """Decide from boot ids, and from GPU UUIDs where both sides see GPUs.

    A boot id is random per boot (/proc/sys/kernel/random/boot_id, random(4)) and shared by all
    containers of a kernel, so equal ids are one kernel. A GPU has one UUID and one owner: when both
    sides show the same UUID it is one machine too, whatever a container puts over its boot id.

    Args:
        boot_id: of the host where the processes are.
        gpu_boot_id: of the host that is asked for the GPUs.
        uuids: GPU UUIDs that the first host shows, empty when it shows none.
        gpu_uuids: GPU UUIDs that the second host shows.
        same_entry: both are the same host entry of the site.
    """
    if same_entry:
        return Machine(True, "the site names one host for both")
    shared = sorted(set(uuids) & set(gpu_uuids))
    if boot_id is None or gpu_boot_id is None:
        if shared:
            return Machine(True, f"both show GPU {shared[0]}")
        return Machine(None, "a boot id could not be read")
    if boot_id == gpu_boot_id:
        return Machine(True, f"both have boot id {boot_id[:8]}")
    if shared:
        return Machine(True, f"both show GPU {shared[0]}, although their boot ids differ")
    return Machine(False, f"boot ids {boot_id[:8]} and {gpu_boot_id[:8]} differ")
