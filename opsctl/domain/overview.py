"""What state a server is in, judged from its processes alone, in words for the status screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from opsctl.domain.launch_line import read_title
from opsctl.domain.process import Judged, Selection, launch_line_of
from opsctl.domain.ready import describe_exit
from opsctl.facts import Process, ProcessDetail
from opsctl.records import dataclass


class ServerState(StrEnum):
    """A state is a claim: UNKNOWN wherever something could not be looked at."""

    LISTENING = "listening"  # processes live and hold the port; only a generation proves readiness
    STARTING = "starting"  # processes live, the port is not open
    BROKEN = "broken"  # remains of a server: no root, dead workers, or a worker that is a zombie
    STOPPED = "stopped"
    AMBIGUOUS = "ambiguous"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The state and why, in half a sentence."""

    state: ServerState
    why: str


def role_of(process: Process) -> str:
    """Return what a process of a server does: ``scheduler_TP0``, ``detokenizer``, ``server``, ``helper``."""
    title = read_title(process.argv)
    if title:
        return title.removeprefix("sglang::")
    if launch_line_of(process):
        return "server"
    if any("resource_tracker" in element for element in process.argv):
        return "resource tracker"
    return "helper"


def judge_state(
    selection: Selection, details: Mapping[int, ProcessDetail], port: int, *, sglang: bool
) -> Judgement:
    """Judge a server's state from what was selected as its processes.

    Args:
        selection: whose is what.
        details: of the members, by pid; a member without an entry was not readable.
        port: where the server should listen.
        sglang: True for SGLang, whose workers are known by their titles.
    """
    if selection.ambiguous:
        return Judgement(ServerState.AMBIGUOUS, selection.ambiguous[0].reason)
    living = [m for m in selection.members if m.process is not None and not m.process.is_dead]
    if not selection.members:
        return _stopped(selection, port)
    dead = [m for m in selection.members if m.process is not None and m.process.is_dead]
    if not living:
        return Judgement(ServerState.BROKEN, "all its processes are zombies")
    workers = [m for m in living if m.process and role_of(m.process).startswith("scheduler")]
    if not any(_is_main(m, sglang=sglang) for m in living):
        return Judgement(ServerState.BROKEN, "its main process is gone, workers live on")
    if any(m.process and role_of(m.process).startswith(("scheduler", "detok")) for m in dead):
        return Judgement(ServerState.BROKEN, "a worker is dead")
    listening = _listens(living, details, port)
    if listening is None:
        return Judgement(ServerState.UNKNOWN, "its ports could not be read")
    if not listening:
        return Judgement(ServerState.STARTING, f"port {port} is not open yet")
    if sglang and not workers:
        return Judgement(ServerState.BROKEN, f"port {port} is open, but no scheduler lives")
    return Judgement(ServerState.LISTENING, f"port {port} is open; {_to_prove(selection)}")


def with_ending(judged: Judgement, launches: Sequence[Mapping[str, Any]], name: str) -> Judgement:
    """Say of a stopped server how its last launch ended, where that was no stop of opsctl's.

    A stop lets systemd forget the unit; one that is still there as failed ended in another way. So did a
    launch without systemd whose end was written down, and which no stop has tidied up.

    Args:
        judged: the state by the processes.
        launches: what the host remembers of launches on the server's port, newest first.
        name: the server's.
    """
    newest = next(iter(launches), None)
    if judged.state is not ServerState.STOPPED or newest is None or not _ended_by_itself(newest):
        return judged
    how = describe_exit(newest.get("exit"))
    why = f"{judged.why}; launch {newest.get('run')}: {how}, by no stop of opsctl; why: opsctl logs {name}"
    return Judgement(judged.state, why)


def _ended_by_itself(launch: Mapping[str, Any]) -> bool:
    if launch.get("via") == "systemd":
        return str(launch.get("unit_state") or "").startswith("failed")
    written = (launch.get("exit") or {}).get("at_s") is not None
    return launch.get("state") == "exited" and written and not launch.get("forgotten")


def _to_prove(selection: Selection) -> str:
    """Say how to see that it answers, which an open port does not tell."""
    return f"to see that it answers: opsctl smoke {selection.server.name} --levels 1"


def _is_main(member: Judged, *, sglang: bool) -> bool:
    """Say whether a member is the server's main process; an orphaned worker is a root, but no server."""
    if sglang:
        return member.process is not None and role_of(member.process) == "server"
    return member.is_root


def _stopped(selection: Selection, port: int) -> Judgement:
    if selection.port_holders:
        other = selection.port_holders[0]
        return Judgement(ServerState.STOPPED, f"port {port} is held by another, pid {other.pid}")
    return Judgement(ServerState.STOPPED, "no process of it")


def _listens(living: list[Judged], details: Mapping[int, ProcessDetail], port: int) -> bool | None:
    unreadable = False
    for member in living:
        detail = details.get(member.pid)
        if detail is None or detail.listening_ports is None:
            unreadable = True
        elif port in detail.listening_ports:
            return True
    return None if unreadable else False
