"""Who is not the server and in its way: holders of its GPUs, listeners on its port; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from opsctl.domain.process import Judged, ProcessClass, describe
from opsctl.domain.protection import other_place, owner_fits, owner_of
from opsctl.domain.selection_scene import Scene
from opsctl.facts import Process


def outside_holders(scene: Scene) -> set[int]:
    """Return who holds the server's GPUs, by NVML, or has a device open and no GPU known as its own."""
    wanted = scene.server.gpu_uuids
    pids = {hold.pid for hold in scene.holders if hold.uuid in wanted}
    if wanted:
        placed = {
            hold.pid for hold in scene.holders
        }  # a neighbour on other GPUs opens devices, too
        opened = {pid for pid, detail in scene.details.items() if detail.gpu_devices}
        pids |= opened - placed
    return pids


def outside_listeners(scene: Scene, proven: Collection[int]) -> list[int]:
    """Return who else listens on the server's port, in the server's network."""
    return sorted(
        pid
        for pid in scene.details
        if pid not in proven and scene.listens(pid) and not scene.is_in_other_network(pid)
    )


def judge_outsider(scene: Scene, pid: int, spared: Mapping[int, str]) -> Judged:
    """Say what a process is that is not the server's.

    Args:
        scene: what is known.
        pid: the process.
        spared: who is of the server's session, with the script that makes it a program of its own.
    """
    process = scene.table.by_pid.get(pid)
    if process is None:
        return scene.judged(pid, ProcessClass.FOREIGN, "not visible from here")
    if pid in scene.never:
        return scene.judged(pid, ProcessClass.PROTECTED, scene.never[pid])
    place = other_place(process, scene.table, scene.view)
    if place:
        return scene.judged(pid, ProcessClass.PROTECTED, place)
    reason = describe(process)
    neighbour = _neighbour_of(scene, process)
    if neighbour is not None:
        reason = f"server {neighbour} of this site: {reason}"
    if pid in spared:
        reason = f"a program of its own ({spared[pid]}), though in the server's session: {reason}"
    if not owner_fits(process, scene.view, scene.server.user):
        reason = f"{owner_of(process)}'s: {reason}"
    if pid not in spared and not any(hold.pid == pid for hold in scene.holders):
        detail = scene.details.get(pid)
        devices = (detail.gpu_devices if detail else None) or ()
        reason += f"; has {', '.join(devices[:2])} open, NVML names no memory of it"
    return replace(scene.judged(pid, ProcessClass.FOREIGN, reason), server=neighbour)


def _neighbour_of(scene: Scene, process: Process) -> str | None:
    """Return the other server of the site that a process is of, by its line or one above it."""
    for one in (process, *scene.table.ancestors(process.pid)):
        owner = scene.claimed_by_other(one.pid)
        if owner is not None:
            return owner.name
    return None
