"""SGLang workers whose server is gone: whose they are, or that it cannot be told.

A worker carries only a title (``sglang::scheduler_TP0``), so the title and the owner are never enough:
it must also hold one of the server's GPUs (or share the session of one that does), and no other
living server may be able to own it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from opsctl.domain.gpu import GpuHolder
from opsctl.domain.launch_line import (
    LaunchLine,
    is_python,
    is_supervisor,
    own_script,
    read_title,
)
from opsctl.domain.protection import Table, program_of
from opsctl.domain.server import ServerIdentity
from opsctl.facts import Process
from opsctl.records import dataclass

# Programs that adopt orphans (subreapers) or start jobs, and are no engine's owner themselves.
_ADOPTERS = re.compile(
    r"^(?:(?:.*[-_])?init|systemd|busybox|runit|tini(?:-.*)?|catatonit|pid1|bwrap"
    r"|s6-(?:svscan|supervise)|runsv(?:dir)?|supervisord|supervise-daemon|monit"
    r"|bash|sh|dash|zsh|fish|ksh|login|tmux(?:: server)?|screen|SCREEN|dtach"
    r"|containerd-shim.*|conmon|lxc-start|lxc-attach|slurmstepd|pbs_mom|sshd.*|dropbear|su|sudo|nohup)$"
)
# The same, written in Python or for node: their executable is the interpreter.
_ADOPTERS_IN_PYTHON = ("supervisord", "circusd", "my_init", "honcho")


@dataclass(frozen=True, slots=True)
class Claim:
    """The verdict on one titled worker outside the server's tree."""

    pid: int
    is_ours: bool
    reason: str
    rivals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Orphans:
    """Judges titled workers that no proven process is the parent of.

    Attributes:
        proven: pids that are the server's already.
        rivals: other SGLang servers that live here, each with the site's server that it is, if any.
        blind_openers: workers with a GPU's device open, where NVML's pids cannot be joined; None
            where they can.
    """

    server: ServerIdentity
    table: Table
    holders: tuple[GpuHolder, ...]
    proven: Mapping[int, str]
    rivals: Mapping[int, ServerIdentity | None]
    lines: Mapping[int, LaunchLine]
    blind_openers: frozenset[int] | None = None

    def judge(self, titled: Iterable[Process]) -> list[Claim]:
        """Return a claim for each worker that is ours or may be; the others' workers are left out."""
        claims: list[Claim] = []
        waiting: list[Process] = []
        for process in titled:
            if self._has_another_owner(process) or self._holds_only_elsewhere(process):
                continue
            if self._holds_ours(process) or self._opens_blindly(process):
                claims.append(self._judge_holder(process))
            else:
                waiting.append(process)
        ours = {claim.pid for claim in claims if claim.is_ours}
        claims += [self._judge_by_session(process, ours) for process in waiting]
        return claims

    def _has_another_owner(self, process: Process) -> bool:
        """Say whether a living parent explains the worker: another server, or a program with an engine."""
        for parent in self.table.ancestors(process.pid):
            if parent.pid in self.rivals:
                return True
            if parent.is_dead or read_title(parent.argv) or is_supervisor(parent.argv):
                continue
            return not is_adopter(parent)
        return False

    def _held(self, pid: int) -> set[str]:
        return {hold.uuid for hold in self.holders if hold.pid == pid}

    def _holds_ours(self, process: Process) -> bool:
        return bool(self._held(process.pid) & self.server.gpu_uuids)

    def _opens_blindly(self, process: Process) -> bool:
        return self.blind_openers is not None and process.pid in self.blind_openers

    def _holds_only_elsewhere(self, process: Process) -> bool:
        held = self._held(process.pid)
        return bool(held) and not held & self.server.gpu_uuids

    def _judge_holder(self, process: Process) -> Claim:
        title = read_title(process.argv)
        if process.exe is not None and not is_python(process.exe.removesuffix(" (deleted)")):
            reason = f"titled {title}, but its executable is {process.exe}"
            return Claim(process.pid, False, reason)
        rivals = [pid for pid in self.rivals if self._could_own(pid, process)]
        if rivals:
            names = tuple(f"pid {pid} ({self.lines[pid].describe()})" for pid in rivals)
            return Claim(process.pid, False, f"{title} without its parent", names)
        held = ", ".join(sorted(self._held(process.pid) & self.server.gpu_uuids)) or "a GPU device"
        return Claim(
            process.pid, True, f"orphan {title}: holds {held}, and no other server could own it"
        )

    def _could_own(self, rival_pid: int, orphan: Process) -> bool:
        rival = self.table.by_pid[rival_pid]
        if rival.uid != orphan.uid or rival.identity.start_ticks > orphan.identity.start_ticks:
            return False
        claimed = self.rivals[rival_pid]
        if claimed and claimed.gpu_uuids and not claimed.gpu_uuids & self._held(orphan.pid):
            return False
        title = read_title(orphan.argv)
        family = self.table.descendants(rival_pid)
        return not any(read_title(child.argv) == title and not child.is_dead for child in family)

    def _judge_by_session(self, process: Process, ours: set[int]) -> Claim:
        title = read_title(process.argv)
        peers = [other for other in self.table.by_pid.values() if other.session == process.session]
        shared = [peer.pid for peer in peers if peer.pid in ours or peer.pid in self.proven]
        strangers = [
            peer.pid for peer in peers if peer.pid in self.rivals or self._is_a_strangers(peer)
        ]
        if shared and not strangers:
            return Claim(
                process.pid, True, f"orphan {title} in the session of the server's pid {shared[0]}"
            )
        names = tuple(f"pid {pid}" for pid in strangers)
        return Claim(
            process.pid,
            False,
            f"{title} without its parent, and on none of the server's GPUs",
            names,
        )

    def _is_a_strangers(self, peer: Process) -> bool:
        return read_title(peer.argv) is not None and self._holds_only_elsewhere(peer)


def is_adopter(process: Process) -> bool:
    """Say whether a process is the parent of workers by adoption alone, or of whatever is started in it.

    Pid 1 of any namespace adopts what loses its parent there, whatever program it is.
    """
    if process.pid == 1 or process.ns_pids[-1:] == (1,) or _ADOPTERS.match(program_of(process)):
        return True
    script = own_script(process.argv)
    if script is not None and PurePosixPath(script).name in _ADOPTERS_IN_PYTHON:
        return True
    return process.argv[:1] != () and process.argv[0].startswith(
        "PM2 v"
    )  # pm2's daemon, under node
