"""What a stop will do, decided before the first signal: the order, the units, what is refused."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import PurePosixPath

from opsctl.domain.launch_line import is_python
from opsctl.domain.process import Ambiguity, Judged, ProcessClass, Selection, describe
from opsctl.domain.protection import (
    Table,
    in_unit_of,
    is_login_unit,
    owner_of,
    program_of,
    unit_of,
    user_unit_of,
)
from opsctl.errors import SafetyRefusal, UsageError
from opsctl.facts import Process
from opsctl.output import Finding
from opsctl.records import dataclass

# Programs that start a service again when it ends.
_SUPERVISORS = {
    "supervisord": "supervisorctl stop",
    "runsv": "sv down",
    "s6-supervise": "s6-svc -d",
    "containerd-shim-runc-v2": "stop the container (docker stop, kubectl delete pod)",
    "containerd-shim": "stop the container (docker stop, kubectl delete pod)",
    "conmon": "podman stop",
    "monit": "monit stop",
    "circusd": "circusctl stop",
    "pm2": "pm2 stop",
}


class Outcome(StrEnum):
    """How it ended for one process of the plan."""

    TERMINATED = "terminated"  # ended after TERM (or with its unit)
    KILLED = "killed"  # ended only after KILL
    ALREADY_GONE = "already-gone"
    ENDED_BY_ITSELF = "ended"  # between the plan and its turn, without a signal to it
    ZOMBIE = "zombie"  # exited; its parent has not collected it
    STUCK = "stuck"  # in D state: no signal can end it
    DENIED = "denied"  # the agent may not signal it
    RECYCLED = "recycled"  # the pid belongs to a younger process now, which was left alone
    ALIVE = "alive"  # still there after KILL
    UNTOUCHED = "untouched"

    @property
    def is_gone(self) -> bool:
        """Say whether the planned process no longer runs."""
        return self not in (Outcome.STUCK, Outcome.DENIED, Outcome.ALIVE, Outcome.UNTOUCHED)


UNTOLD = "untold"


@dataclass(frozen=True, slots=True)
class UnitFact:
    """What systemd says of one unit."""

    name: str
    restart: str | None  # Restart=: no, always, on-failure, ...; UNTOLD where it does not answer
    main_pid: int | None = None


@dataclass(frozen=True, slots=True)
class StopPlan:
    """The exact processes a stop signals, in order, and what else it does or says."""

    selection: Selection
    roots: tuple[Judged, ...]
    rest: tuple[Judged, ...]
    evicted: tuple[Judged, ...]
    units: tuple[str, ...]  # systemd units that hold this server and nothing else
    findings: tuple[Finding, ...]

    @property
    def targets(self) -> tuple[Judged, ...]:
        return (*self.roots, *self.rest, *self.evicted)

    @property
    def is_empty(self) -> bool:
        return not self.targets

    @property
    def left_alone(self) -> tuple[Judged, ...]:
        chosen = {target.pid for target in self.evicted}
        foreign = [judged for judged in self.selection.foreign if judged.pid not in chosen]
        return (*foreign, *self.selection.protected)


def plan_stop(
    selection: Selection,
    table: Table,
    evict: Iterable[int] = (),
    unit_facts: Iterable[UnitFact] = (),
) -> StopPlan:
    """Turn a selection into a plan.

    Args:
        selection: what was decided about the processes.
        table: the snapshot it was decided from.
        evict: pids that the operator named with ``--evict``.
        unit_facts: what systemd says of the units of the members.

    Raises:
        SafetyRefusal: something is ambiguous, or a protected process was to be evicted.
        UsageError: ``--evict`` names a process that does not hold the server's GPUs.
    """
    wanted = set(evict)
    evicted = [_evictable(selection, pid) for pid in sorted(wanted)]
    open_doubts = [doubt for doubt in selection.ambiguous if doubt.pid not in wanted]
    if open_doubts:
        doubt = open_doubts[0]
        more = f" (and {len(open_doubts) - 1} more)" if len(open_doubts) > 1 else ""
        raise SafetyRefusal(
            f"pid {doubt.pid} cannot be attributed: {doubt.reason}{more}; "
            f"it may be: {' or '.join(doubt.candidates)}",
            next_step=_doubt_step(doubt),
            code="ambiguous",
            subject=str(doubt.pid),
        )
    roots = selection.roots
    rest = tuple(member for member in selection.members if not member.is_root)
    units = own_units(selection, table)
    facts = {fact.name: fact for fact in unit_facts}
    findings = _restart_loops(selection, table, units, facts) + _listeners(selection)
    return StopPlan(selection, roots, rest, tuple(evicted), units, tuple(findings))


def _doubt_step(doubt: Ambiguity) -> str:
    if doubt.is_protected:
        return "it is never signalled: stop the container, or the service that it belongs to"
    if "on its own below the server" in doubt.reason:
        return f"wait for it to end; or, if it may end with the server: --evict {doubt.pid}"
    if "the site does not say so" in doubt.reason:
        return "if it is this server, add its `user:` to the server's entry in the site file"
    return (
        "nothing was signalled. if it is another server, give it an entry in the site file; if it is "
        f"this one, correct port and model; if it must go: --evict {doubt.pid}"
    )


def _evictable(selection: Selection, pid: int) -> Judged:
    for judged in selection.protected:
        if judged.pid == pid:
            raise SafetyRefusal(
                f"pid {pid} is protected: {judged.reason}",
                next_step="it is never signalled, with or without --evict",
                code="protected",
                subject=str(pid),
            )
    for judged in selection.foreign:
        if judged.pid == pid:
            if judged.process is None:
                raise SafetyRefusal(
                    f"pid {pid} is not visible from here, so what it is cannot be proven",
                    next_step="run opsctl against the host that owns its pid namespace",
                    code="not-visible",
                    subject=str(pid),
                )
            return judged
    for doubt in selection.ambiguous:
        if doubt.pid == pid and not doubt.is_protected:
            return Judged(pid, doubt.process, ProcessClass.FOREIGN, doubt.reason)
    if pid in selection.pids:
        raise UsageError(f"pid {pid} is the server's own: it is stopped anyway", subject=str(pid))
    raise UsageError(
        f"pid {pid} holds none of the server's GPUs: --evict is for what stands in its way",
        next_step="look at the plan with --dry-run",
        subject=str(pid),
    )


def own_units(selection: Selection, table: Table) -> tuple[str, ...]:
    """Return the systemd services in which every living process is the server's."""
    units: list[str] = []
    for root in selection.roots:
        unit = unit_of(root.process.cgroup) if root.process else None
        if root.process is None or unit is None or unit in units:
            continue
        inside = in_unit_of(root.process, table.by_pid.values())
        if is_login_unit(unit, inside):
            continue
        if all(process.pid in selection.pids for process in inside):
            units.append(unit)
    return tuple(units)


def _restart_loops(
    selection: Selection, table: Table, units: tuple[str, ...], facts: dict[str, UnitFact]
) -> list[Finding]:
    findings: list[Finding] = []
    for root in selection.roots:
        if root.process is None:
            continue
        unit = unit_of(root.process.cgroup)
        fact = facts.get(unit) if unit else None
        if unit and is_login_unit(unit, in_unit_of(root.process, table.by_pid.values())):
            text = f"was started from a login ({unit}): the unit is not its own and is left alone"
            findings.append(Finding("login-unit", unit, text))
        elif unit and unit not in units:
            text = (
                f"runs in {unit} beside others, so the unit is not stopped; it may start it again"
            )
            findings.append(Finding("restart-loop", unit, text, f"systemctl status {unit}"))
        elif unit and fact and fact.restart == UNTOLD:
            text = "systemd does not answer: whether it starts the unit again is not known"
            findings.append(Finding("unit-unknown", unit, text, f"systemctl status {unit}"))
        elif unit and fact and fact.restart not in (None, "no"):
            text = f"has Restart={fact.restart}: the unit is stopped, so that it stays down"
            findings.append(Finding("unit-restarts", unit, text, f"systemctl start {unit} later"))
        mine = user_unit_of(root.process.cgroup)
        if mine:
            text = f"runs in {mine} of {owner_of(root.process)}'s own service manager"
            findings.append(Finding("restart-loop", mine, text, f"systemctl --user stop {mine}"))
        parent = table.by_pid.get(root.process.ppid)
        if parent is None or unit in units:
            continue
        step = how_to_end(parent)
        if step:
            text = f"its parent, pid {parent.pid} ({describe(parent)}), may start it again"
            findings.append(Finding("restart-loop", str(root.pid), text, step))
    return findings


def how_to_end(parent: Process) -> str | None:
    """Return how a program that starts its children again is told not to; None: it is not known for that.

    A shell with a script of its own (``bash run.sh``) may be a loop; an interactive one is not.
    """
    if program_of(parent) in ("bash", "sh", "dash") and len(parent.argv) > 1:
        return "look at that script; stop it first if it loops"
    names = {program_of(parent)}
    if parent.argv and is_python(parent.argv[0]):  # supervisord and circusd are programs in Python
        names |= {PurePosixPath(word).name.rpartition(".")[2] for word in parent.argv[1:3]}
    return next((step for name, step in _SUPERVISORS.items() if name in names), None)


def _listeners(selection: Selection) -> list[Finding]:
    return [
        Finding(
            "port-held",
            str(selection.server.port),
            f"pid {judged.pid} listens on the server's port and is not the server: {judged.reason}",
            "it is left alone; the next launch needs another port, or that process stopped",
        )
        for judged in selection.port_holders
    ]
