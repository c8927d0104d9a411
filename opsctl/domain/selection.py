"""Which processes are the server, which only hold its GPUs, which are never touched: decided purely.

This says in which order it is decided, and takes what is below a proven process or in its session. The
rest is beside it: ``selection_scene`` what is known, ``selection_proof`` who is the server by itself,
``selection_doubts`` who may be it, ``orphans`` workers whose server is gone, ``selection_outside`` who is
not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from opsctl.domain.gpu import GpuHolder
from opsctl.domain.launch_line import is_supervisor, own_script, read_title
from opsctl.domain.orphans import Orphans
from opsctl.domain.process import Ambiguity, Judged, ProcessClass, Selection, is_command
from opsctl.domain.protection import View, other_place, unit_of
from opsctl.domain.selection_doubts import near_misses
from opsctl.domain.selection_outside import judge_outsider, outside_holders, outside_listeners
from opsctl.domain.selection_proof import proof_by_argv, proof_by_record
from opsctl.domain.selection_scene import Scene
from opsctl.domain.server import ServerIdentity
from opsctl.facts import Process, ProcessDetail
from opsctl.records import dataclass


def select(
    server: ServerIdentity,
    processes: Sequence[Process],
    details: Mapping[int, ProcessDetail],
    holders: Sequence[GpuHolder],
    view: View,
    others: Sequence[ServerIdentity] = (),
) -> Selection:
    """Decide for one snapshot which processes are the server's.

    Args:
        server: what the site and the launch record say.
        processes: every process that the view shows.
        details: what was read for the candidates (see ``candidates``).
        holders: NVML's list for all GPUs of the machine, in its own pid numbers.
        view: from where the table was read.
        others: the other servers that the site places on the same host.
    """
    return _Judge(Scene.of(server, processes, details, holders, view, others)).selection()


@dataclass(slots=True)
class _Judge:
    scene: Scene
    proven: dict[int, str] = field(default_factory=dict)
    unsure: dict[int, Ambiguity] = field(default_factory=dict)
    distant: dict[int, str] = field(
        default_factory=dict
    )  # fit, but serve in another network namespace
    spared: dict[int, str] = field(
        default_factory=dict
    )  # of the server's session, with scripts apart

    def selection(self) -> Selection:
        self._prove_directly()
        direct = frozenset(self.proven)
        self._add_trees()
        self._add_sessions(direct)
        self._add_trees()
        for doubt in near_misses(self.scene, self.proven, self.distant):
            self.unsure[doubt.pid] = doubt
        self._add_orphans()
        return self._result()

    def _doubt(self, process: Process, reason: str, candidates: tuple[str, ...] = ()) -> None:
        self.unsure[process.pid] = self.scene.doubt(process, reason, candidates)

    def _prove_directly(self) -> None:
        never = self.scene.never
        for process in self.scene.table.by_pid.values():
            reason = self._direct_proof(process)
            if reason is None:
                continue
            if self.scene.is_eligible(process):
                self.proven[process.pid] = reason
            elif process.pid in never:
                self._doubt(process, f"{reason}, but it is {never[process.pid]}")

    def _direct_proof(self, process: Process) -> str | None:
        if is_supervisor(process.argv):
            return None
        recorded = proof_by_record(self.scene, process)
        if recorded is not None:
            return recorded
        reason = proof_by_argv(self.scene, process)
        if reason and self.scene.is_in_other_network(process.pid):
            self.distant[process.pid] = reason
            return None
        return reason

    def _add_trees(self) -> None:
        scene = self.scene
        for pid in list(self.proven):
            for child in self._family(pid):
                if child.pid not in self.proven and scene.is_eligible(child):
                    owner = scene.claimed_by_other(child.pid)
                    if owner:
                        names = (scene.server.describe(), owner.describe())
                        self._doubt(child, f"a child of pid {pid}, and also {owner.name}", names)
                    else:
                        self.proven[child.pid] = f"child of pid {child.ppid}"

    def _family(self, pid: int) -> list[Process]:
        """Return everything below ``pid``; without what a shell had begun before it became the server.

        ``train.py & exec python -m sglang.launch_server`` makes a stranger the server's child, and SGLang
        kills its children as it ends: a doubt. What opsctl launched itself has no such past.
        """
        table = self.scene.table
        if self.scene.is_known_launch(pid) or pid not in self.scene.lines:
            return table.descendants(pid)
        found: list[Process] = []
        for child in table.children.get(pid, ()):
            script = self._script_of_its_own(child, pid)
            if script is None:
                found += [child, *table.descendants(child.pid)]
            elif self.scene.is_eligible(child):
                text = f"{script} runs on its own below the server's pid {pid}, which ends what is below it"
                self._doubt(child, text)
        return found

    def _script_of_its_own(self, process: Process, root: int) -> str | None:
        """Return the script by which a process is known to be a program apart from the server's, or None.

        In a service, a container's or systemd's, all is part of it.
        """
        scene, unit = self.scene, unit_of(process.cgroup)
        if process.pid in scene.lines or (
            unit and unit == unit_of(scene.table.by_pid[root].cgroup)
        ):
            return None
        return None if scene.server.command is not None else own_script(process.argv)

    def _add_sessions(self, direct: frozenset[int]) -> None:
        scene = self.scene
        leaders = {pid for pid in direct if scene.table.by_pid[pid].session == pid}
        for process in scene.table.by_pid.values():
            inside = process.session in leaders and process.pid not in self.proven
            if not inside or process.pid in scene.lines or not scene.is_eligible(process):
                continue
            leader = process.session
            if scene.is_known_launch(leader) or not self._is_apart(process, leader):
                self.proven[process.pid] = f"in the session of the server's pid {leader}"

    def _is_apart(self, process: Process, root: int) -> bool:
        family = [process, *self.scene.table.ancestors(process.pid)]
        inside = [one for one in family if one.session == root and one.pid != root]
        apart = {one.pid: self._script_of_its_own(one, root) for one in inside}
        self.spared.update({pid: script for pid, script in apart.items() if script})
        return any(apart.values())

    def _add_orphans(self) -> None:
        scene = self.scene
        if scene.server.command is not None:
            return  # titles are SGLang's: a server of another kind has no such workers
        eligible = [
            process
            for process in scene.table.by_pid.values()
            if process.pid not in self.proven and read_title(process.argv)
            if scene.is_eligible(process)
        ]
        rivals = {
            pid: scene.claimed_by_other(pid)
            for pid in scene.lines
            if pid not in self.proven
            and other_place(scene.table.by_pid[pid], scene.table, scene.view) is None
        }
        openers = frozenset(pid for pid, seen in scene.details.items() if seen.gpu_devices)
        blind = None if scene.view.holders_here or scene.others else openers
        orphans = Orphans(
            scene.server, scene.table, scene.holders, self.proven, rivals, scene.lines, blind
        )
        for claim in orphans.judge(eligible):
            if claim.is_ours:
                self.proven[claim.pid] = claim.reason
            else:
                names = (scene.server.describe(), *claim.rivals)
                self._doubt(scene.table.by_pid[claim.pid], claim.reason, names)

    def _find_roots(self) -> frozenset[int]:
        """Return who gets TERM first: the launched process; workers without a parent only without it."""
        server, by_pid = self.scene.server, self.scene.table.by_pid
        tops = {pid for pid in self.proven if by_pid[pid].ppid not in self.proven}
        launched = {
            pid
            for pid in tops
            if pid in self.scene.lines
            or is_command(server, by_pid[pid])
            or server.is_recorded(by_pid[pid])
        }
        return frozenset(launched or tops)

    def _result(self) -> Selection:
        scene, roots = self.scene, self._find_roots()
        members = [
            scene.judged(pid, ProcessClass.MEMBER, why, is_root=pid in roots)
            for pid, why in self.proven.items()
        ]
        members.sort(key=lambda member: (not member.is_root, member.pid))
        foreign: list[Judged] = []
        protected: list[Judged] = []
        outside = outside_holders(scene) | self.spared.keys()
        for pid in sorted(outside - self.proven.keys() - self.unsure.keys()):
            judged = judge_outsider(scene, pid, self.spared)
            (protected if judged.kind is ProcessClass.PROTECTED else foreign).append(judged)
        return Selection(
            scene.server,
            tuple(members),
            tuple(foreign),
            tuple(protected),
            tuple(self.unsure[pid] for pid in sorted(self.unsure)),
            tuple(
                judge_outsider(scene, pid, self.spared)
                for pid in outside_listeners(scene, self.proven)
            ),
            tuple(
                f"pid {pid}: {line.describe()}"
                for pid, line in sorted(scene.lines.items())
                if pid not in self.proven
            ),
        )
