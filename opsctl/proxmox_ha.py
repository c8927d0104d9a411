"""Containers that Proxmox's HA manager runs: it is only asked, and does the work in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from opsctl.domain.container import ha_state
from opsctl.errors import CheckFailed
from opsctl.proxmox import NO_CONFIG, PveError

if TYPE_CHECKING:
    from opsctl.proxmox_container import Container

LOOK_S = 1.0  # it works in rounds of some 10 s


def wait_for_ha(
    container: Container,
    verb: str,
    end_s: float,
    on_progress: Callable[[str], None] | None = None,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until the HA manager has done what it was asked for.

    Args:
        container: which one.
        verb: start, stop or shutdown.
        end_s: until when, on ``clock``.

    Raises:
        CheckFailed: it has not by then, its resource is in error, or the container is on another node now.
    """
    wanted = "running" if verb == "start" else "stopped"
    vmid, where = container.vmid, f"container {container.vmid} on {container.node}"
    while True:
        try:
            seen = container.status()
        except PveError as error:
            if not NO_CONFIG.search(error.text):
                raise
            raise CheckFailed(
                f"container {vmid} is not on {container.node} any more: the HA manager moved it",
                next_step="where it is: ha-manager status; then name that node in the site file",
                code="container-moved",
                subject=str(vmid),
            ) from error
        if seen.get("status") == wanted:
            return
        state = ha_state(seen)
        if state in (None, "error") or clock() >= end_s:
            raise CheckFailed(
                f"{where}: the HA manager was asked to {verb} it; it is {seen.get('status')} "
                f"(HA state: {state or 'none any more'})",
                next_step="on the node: ha-manager status; what is in error there is reset by: "
                f"ha-manager set ct:{vmid} --state disabled",
                code="ha-not-done",
                subject=str(vmid),
            )
        if on_progress is not None:
            on_progress(f"the HA manager is to {verb} container {vmid} (HA state: {state})")
        sleep(LOOK_S)
