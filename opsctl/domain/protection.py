"""Processes that are never signalled, whatever they hold and whoever asks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import PurePosixPath

from opsctl.facts import Process
from opsctl.records import dataclass

# Killing these freezes cards or sessions (dcgm-exporter#84: Xid 119/120 until the reboot).
PROTECTED_PROGRAMS: dict[str, str] = {
    "nvidia-persistenced": "the driver's persistence daemon",
    "nv-hostengine": "the DCGM host engine",
    "dcgm-exporter": "the DCGM exporter (killing it froze cards, Xid 119 and 120)",
    "dcgmi": "a DCGM client",
    "nv-fabricmanager": "the NVSwitch fabric manager",
    "nvidia-fabricmanager": "the NVSwitch fabric manager",
    "nvlsm": "the NVLink subnet manager",
    "nvidia-imex": "the IMEX daemon",
    "nvidia-cuda-mps-control": "the MPS control daemon",
    "nvidia-cuda-mps-server": "the MPS server",
    "nvidia-powerd": "the driver's power daemon",
    "Xorg": "the display server",
    "X": "the display server",
    "Xwayland": "the display server",
    "gnome-shell": "the desktop",
    "kwin_wayland": "the desktop",
    "kwin_x11": "the desktop",
    "mutter": "the desktop",
    "sway": "the desktop",
    "weston": "the desktop",
    "Hyprland": "the desktop",
    "gdm": "the login screen",
    "sddm": "the login screen",
    "systemd": "the service manager",
    "init": "the init process",
    "sshd": "an ssh login",
    "sshd-session": "an ssh login",
    "dbus-daemon": "the message bus",
    "lxc-start": "the monitor of a container",
    "containerd-shim-runc-v2": "the monitor of a container",
    "containerd": "the container runtime",
    "dockerd": "the container runtime",
    "conmon": "the monitor of a container",
}
_LOGIN_PROGRAMS = frozenset({"sshd", "sshd-session", "dropbear", "login", "agetty"})
_LOGIN_UNIT = re.compile(
    r"(?:ssh|sshd|sshd-session|dropbear|user|(?:[a-z]+-)?getty)(?:@.*)?\.service$"
)
_CONTAINER = re.compile(
    r"(?:^|/)(?:lxc/(?P<lxc>[^/]+)|lxc\.payload\.(?P<payload>[^/]+)"
    r"|docker[/-](?P<docker>[0-9a-f]{12,})(?:\.scope)?|cri-containerd-(?P<cri>[0-9a-f]{12,})\.scope"
    r"|crio-(?P<crio>[0-9a-f]{12,})\.scope|libpod-(?P<podman>[0-9a-f]{12,})(?:\.scope)?"
    r"|kubepods[^/]*/(?:.*/)?(?P<pod>[0-9a-f]{12,})|machine\.slice/(?P<machine>[^/]+))"
)


@dataclass(frozen=True, slots=True)
class View:
    """From where the process table was read, and what follows for it.

    Attributes:
        agent_pid: the reading agent, in its own numbers; it and its ancestors are never signalled.
        uid: user of the agent.
        owner_uid: user that the server's processes must have, in this view's numbers; None when the
            site names a user that this view could not resolve: then the name is compared.
        container: vmid or name of the server's container when this view looks into it from its
            host; None when the server runs where the agent runs.
        holders_here: NVML's pids are numbers of this view.
        network: network namespace of the place where the server runs; None when that is not known.
    """

    agent_pid: int
    uid: int
    owner_uid: int | None
    container: str | None = None
    holders_here: bool = True
    network: str | None = None


def container_of(cgroup: str) -> str | None:
    """Return the innermost container that a cgroup path names (``129`` of ``/lxc/129/ns``), or None."""
    names = [next(g for g in match.groups() if g) for match in _CONTAINER.finditer(cgroup)]
    return names[-1] if names else None


def unit_of(cgroup: str) -> str | None:
    """Return the systemd service of a cgroup path, or None for logins, containers and the root.

    A unit of a user's own service manager is none either: see ``user_unit_of``.
    """
    if "/user@" in cgroup:
        return None
    for element in reversed(cgroup.split("/")):
        if element.endswith(".service"):
            return element
        if element.endswith(".scope") and element not in ("init.scope",):
            return None
    return None


def unit_path_of(cgroup: str) -> str | None:
    """Return the cgroup path down to the service that ``unit_of`` names, or None."""
    unit = unit_of(cgroup)
    return None if unit is None else cgroup[: cgroup.rindex(unit) + len(unit)]


def in_unit_of(process: Process, processes: Iterable[Process]) -> list[Process]:
    """Return the living processes of the service that ``process`` runs in, itself among them."""
    path = unit_path_of(process.cgroup)
    if path is None:
        return []
    return [one for one in processes if not one.is_dead and unit_path_of(one.cgroup) == path]


def is_login_unit(unit: str, inside: Iterable[Process]) -> bool:
    """Say whether people log in through a service: what they start by hand stays in it, and is not it."""
    return bool(_LOGIN_UNIT.match(unit)) or any(
        program_of(process) in _LOGIN_PROGRAMS for process in inside
    )


def user_unit_of(cgroup: str) -> str | None:
    """Return the service of a user's own service manager that a cgroup path names, or None."""
    last = cgroup.rsplit("/", 1)[-1]
    return last if "/user@" in cgroup and last.endswith(".service") else None


def program_of(process: Process) -> str:
    """Return the name that protection goes by: the executable, else argv[0], else comm.

    Taking comm here can only protect one process more; it never chooses one.
    """
    path = process.exe or (process.argv[0] if process.argv else process.comm)
    return PurePosixPath(path.removesuffix(" (deleted)")).name


@dataclass(frozen=True, slots=True)
class Table:
    """One snapshot of processes, with its tree."""

    by_pid: Mapping[int, Process]
    children: Mapping[int, tuple[Process, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, processes: Iterable[Process]) -> Table:
        """Index a snapshot; a child that started before its alleged parent is not counted as one."""
        by_pid = {process.pid: process for process in processes}
        children: dict[int, list[Process]] = {}
        for process in by_pid.values():
            parent = by_pid.get(process.ppid)
            if parent is None or parent.identity.start_ticks <= process.identity.start_ticks:
                children.setdefault(process.ppid, []).append(process)
        return cls(by_pid, {pid: tuple(group) for pid, group in children.items()})

    def ancestors(self, pid: int) -> list[Process]:
        """Return the parents of ``pid``, nearest first."""
        found: list[Process] = []
        seen = {pid}
        process = self.by_pid.get(pid)
        while process is not None and process.ppid not in seen:
            seen.add(process.ppid)
            process = self.by_pid.get(process.ppid)
            if process is not None:
                found.append(process)
        return found

    def descendants(self, pid: int) -> list[Process]:
        """Return everything below ``pid``, parents before children."""
        found: list[Process] = []
        queue = [pid]
        seen = {pid}
        while queue:
            for child in self.children.get(queue.pop(0), ()):
                if child.pid not in seen:
                    seen.add(child.pid)
                    found.append(child)
                    queue.append(child.pid)
        return found


def protections(table: Table, view: View, graphics_pids: frozenset[int]) -> dict[int, str]:
    """Return every protected pid with the reason in words, ownership and containers apart.

    Args:
        table: the snapshot.
        view: where it was read.
        graphics_pids: pids that NVML lists as graphics (type G) in this view's numbers.
    """
    found: dict[int, str] = {}
    for process in table.by_pid.values():
        reason = _reason(process, graphics_pids)
        if reason:
            found[process.pid] = reason
    for process in table.descendants(view.agent_pid):
        found[process.pid] = "started by opsctl's own agent"
    for process in table.ancestors(view.agent_pid):
        found[process.pid] = "an ancestor of opsctl's agent (your own login)"
    found[view.agent_pid] = "opsctl's own agent"
    return found


def _reason(process: Process, graphics_pids: frozenset[int]) -> str | None:
    if process.ns_pids[-1:] == (1,):
        where = "this system" if process.pid == 1 else "its container: stop the container instead"
        return f"pid 1 of {where}"
    if process.is_kernel_thread:
        return "a kernel thread"
    if process.pid in graphics_pids:
        return "draws on the GPU (type G)"
    named = PROTECTED_PROGRAMS.get(program_of(process))
    return f"{program_of(process)}: {named}" if named else None


def other_place(process: Process, table: Table, view: View) -> str | None:
    """Return why a process is outside the place where the server runs, or None when it is inside."""
    own = table.by_pid.get(view.agent_pid)
    theirs = container_of(process.cgroup)
    if view.container is not None:
        if theirs == view.container and len(process.ns_pids) <= 2:
            return None
        if theirs == view.container:
            return f"runs in a pid namespace of its own inside container {theirs}"
        return f"runs in container {theirs}" if theirs else "runs outside the server's container"
    mine = container_of(own.cgroup) if own else None
    if theirs != mine:
        return f"runs in container {theirs}" if theirs else "runs outside this container"
    if len(process.ns_pids) > 1:
        return "runs in a pid namespace of its own (a container)"
    known = own is not None and own.pid_namespace and process.pid_namespace
    if known and own is not None and process.pid_namespace != own.pid_namespace:
        return "runs in a pid namespace of its own (a container)"
    return None


def owner_of(process: Process) -> str:
    """Return the user as people write it."""
    return process.user or f"uid {process.uid}"


def owner_fits(process: Process, view: View, user: str | None) -> bool:
    """Say whether a process has the server's owner."""
    if view.owner_uid is not None:
        return process.uid == view.owner_uid
    return user is not None and user in (process.user, str(process.uid))
