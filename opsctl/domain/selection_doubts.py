"""Servers that fit in part, where none is proven: a doubt and not an absence; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from opsctl.domain.launch_line import LaunchLine
from opsctl.domain.process import Ambiguity
from opsctl.domain.protection import other_place, owner_fits, owner_of
from opsctl.domain.selection_proof import is_other_program
from opsctl.domain.selection_scene import Scene


def near_misses(
    scene: Scene, proven: Collection[int], distant: Mapping[int, str]
) -> Iterator[Ambiguity]:
    """Yield what may be the server, with what does not fit.

    Args:
        scene: what is known.
        proven: who is proven to be the server's; with anybody there, nobody else is a doubt.
        distant: who fits and serves in another network namespace, and why it fits.
    """
    if proven:
        return
    for pid, reason in distant.items():
        process = scene.table.by_pid[pid]
        if other_place(process, scene.table, scene.view) is None:
            text = f"{reason}, but it runs in another network namespace than its host"
            yield scene.doubt(process, text)
    if scene.server.command is not None:
        return
    for pid, line in scene.lines.items():
        if pid in scene.never or pid in distant or scene.claimed_by_other(pid):
            continue
        why = _misfit(scene, pid, line) if _is_alike(scene, pid, line) else None
        if why is not None:
            names = (scene.server.describe(), f"pid {pid} ({line.describe()})")
            text = f"it serves {line.describe()}; {why}"
            yield scene.doubt(scene.table.by_pid[pid], text, names)


def _is_alike(scene: Scene, pid: int, line: LaunchLine) -> bool:
    """Say whether a port or the model is the server's, or may come to be."""
    fits = scene.server.fits_port(line) or scene.listens(pid) or _may_come(scene, pid, line)
    return bool(fits or scene.server.fits_model(line))


def _may_come(scene: Scene, pid: int, line: LaunchLine) -> bool:
    """Say whether its config file may name our port, on which it does not listen yet."""
    detail = scene.details.get(pid)
    ports = detail.listening_ports if detail else None
    return line.port is None and not ports and scene.server.fits_model(line) is not False


def _misfit(scene: Scene, pid: int, line: LaunchLine) -> str | None:
    """Return what does not fit; None for another container's server: its port is not ours."""
    process, server = scene.table.by_pid[pid], scene.server
    place = other_place(process, scene.table, scene.view)
    if place and (scene.view.container is not None or scene.is_in_other_network(pid)):
        return None
    if place or not owner_fits(process, scene.view, server.user):
        return place or f"belongs to {owner_of(process)}, and the site does not say so"
    if is_other_program(process):
        return f"its program is {process.exe}, which is no Python"
    if line.port is None:
        return f"it does not listen on {server.port}, and may still be starting"
    return f"the site says port {server.port}, model {server.model}"
