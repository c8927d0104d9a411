"""One machine or two: whether the host of the processes and the host of the GPUs share a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opsctl.records import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """``one`` is None where it could not be told; ``how`` says how it is known, for people."""

    one: bool | None
    how: str

    def describe(self) -> str:
        """Return the verdict with its proof."""
        verdict = {True: "one machine", False: "two machines", None: "one machine or two: unknown"}
        return f"{verdict[self.one]} ({self.how})"

    def to_json(self) -> dict[str, Any]:
        """Return it as documents hold it: the verdict for people and for programs."""
        return {"machine": self.describe(), "one_machine": self.one}


def compare_machines(
    boot_id: str | None,
    gpu_boot_id: str | None,
    uuids: Sequence[str] = (),
    gpu_uuids: Sequence[str] = (),
    *,
    same_entry: bool = False,
    contained: bool = False,
) -> Machine:
    """Decide from boot ids, and from GPU UUIDs where both sides see GPUs.

    A boot id is random per boot (/proc/sys/kernel/random/boot_id, random(4)), so equal ids are one
    kernel. LXC (5.0 to 7.0) mounts a boot id of its own into each container, so ids that differ prove
    two kernels only between hosts. A GPU has one UUID and one owner: the same UUID on both sides is
    one machine, GPUs on both sides without one in common are two.

    Args:
        boot_id: of the host where the processes are.
        gpu_boot_id: of the host that is asked for the GPUs.
        uuids: GPU UUIDs that the first host shows, empty when it shows none.
        gpu_uuids: GPU UUIDs that the second host shows.
        same_entry: both are the same host entry of the site.
        contained: one of the two is a container, or it is not known whether it is one.
    """
    if same_entry:
        return Machine(True, "the site names one host for both")
    shared = sorted(set(uuids) & set(gpu_uuids))
    if boot_id is not None and boot_id == gpu_boot_id:
        return Machine(True, f"both have boot id {boot_id[:8]}")
    if shared:
        return Machine(True, f"both show {shared[0]}")
    if boot_id is None or gpu_boot_id is None:
        return Machine(None, "a boot id could not be read")
    differ = f"boot ids {boot_id[:8]} and {gpu_boot_id[:8]} differ"
    if uuids and gpu_uuids:
        return Machine(False, f"{differ}, no GPU in common")
    if contained:
        return Machine(None, f"{differ}, but a container has a boot id of its own")
    return Machine(False, differ)
