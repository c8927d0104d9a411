"""Processes as decisions see them: the three classes, what a selection holds, who is worth a closer look."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum

from opsctl.domain.gpu import GpuHolder
from opsctl.domain.launch_line import (
    LaunchLine,
    abbreviates_secret,
    is_python,
    matches_command,
    read_launch_line,
    read_title,
)
from opsctl.domain.protection import (
    Table,
    View,
    unit_of,
)
from opsctl.domain.server import ServerIdentity
from opsctl.facts import Process
from opsctl.records import dataclass

_SECRET_FLAG = re.compile(r"(?i)(^|[-_])(token|secret|password|passwd|api[-_]?key|key)$")


class ProcessClass(StrEnum):
    """The three classes of the output contract."""

    MEMBER = "member"
    FOREIGN = "foreign"
    PROTECTED = "protected"


@dataclass(frozen=True, slots=True)
class Judged:
    """One process with its class and the reason in words; ``process`` is None when only NVML knows it.

    ``server``: the other server of the site that a foreign process is of, where that is known.
    """

    pid: int
    process: Process | None
    kind: ProcessClass
    reason: str
    holds: tuple[GpuHolder, ...] = ()
    is_root: bool = False
    server: str | None = None

    @property
    def held_bytes(self) -> int | None:
        """Memory on the server's GPUs; None when NVML would not say for one of them."""
        total = 0
        for hold in self.holds:
            if hold.used_bytes is None:
                return None
            total += hold.used_bytes
        return total


@dataclass(frozen=True, slots=True)
class Ambiguity:
    """A process that may be the server's and may be another's: nothing is signalled while there is one."""

    pid: int
    process: Process
    reason: str
    candidates: tuple[str, ...]
    is_protected: bool = False  # it would be the server, but must not be signalled


@dataclass(frozen=True, slots=True)
class Selection:
    """What a stop would touch, what it leaves alone, and what it could not attribute."""

    server: ServerIdentity
    members: tuple[Judged, ...]
    foreign: tuple[Judged, ...] = ()
    protected: tuple[Judged, ...] = ()
    ambiguous: tuple[Ambiguity, ...] = ()
    port_holders: tuple[Judged, ...] = ()  # not members, and listening on the server's port
    other_servers: tuple[str, ...] = ()

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(member.pid for member in self.members)

    @property
    def outsiders(self) -> tuple[Judged, ...]:
        """Return who is left alone."""
        return (*self.foreign, *self.protected)

    @property
    def roots(self) -> tuple[Judged, ...]:
        return tuple(member for member in self.members if member.is_root)


def candidates(
    server: ServerIdentity,
    processes: Sequence[Process],
    holders: Sequence[GpuHolder],
    view: View,
) -> list[int]:
    """Return the pids whose descriptors are worth reading: they may be the server's or hold its GPUs."""
    table = Table.of(processes)
    found: set[int] = set()
    for process in processes:
        line = launch_line_of(process)
        titled = read_title(process.argv) is not None
        if line or titled or server.is_recorded(process) or is_command(server, process):
            found.add(process.pid)
            found.update(child.pid for child in table.descendants(process.pid))
        elif in_unit(server, process) or _is_worker_shape(process):
            found.add(process.pid)
    if view.holders_here:
        found.update(hold.pid for hold in holders if hold.pid in table.by_pid)
    found.discard(view.agent_pid)
    return sorted(found)


def masked(argv: Sequence[str]) -> list[str]:
    """Return argv with the values of keys, tokens and passwords replaced by ``***``."""
    shown = list(argv)
    for index, name, equals, _ in _secrets(argv):
        shown[index] = f"{name}=***" if equals else "***"
    return shown


def secret_words(argv: Sequence[str]) -> list[tuple[str, str]]:
    """Return the flags and variables of argv whose value is a secret, each with that value."""
    return [(name, value) for _, name, _, value in _secrets(argv)]


def _secrets(argv: Sequence[str]) -> Iterator[tuple[int, str, str, str]]:
    """Give for each secret: which element holds it, its flag, "=" where both are one, the value."""
    waiting: str | None = None
    for index, element in enumerate(argv):
        name, equals, value = element.partition("=")
        word = name.removeprefix("--")
        is_secret = (name.startswith("-") or bool(equals)) and (
            bool(_SECRET_FLAG.search(name)) or (word != name and abbreviates_secret(word))
        )
        if waiting is not None:
            yield index, waiting, "", element
        elif is_secret and equals:
            yield index, name, equals, value
        waiting = name if is_secret and not equals and waiting is None else None


def legible(text: str) -> str:
    """Return a stranger's words without what would move a terminal's cursor or colour it."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shorten(argv: Sequence[str], width: int = 60) -> str:
    """Return a command line on one line, secrets masked, cut in the middle where it is long."""
    text = legible(" ".join(element for element in masked(argv) if element))
    if len(text) <= width:
        return text
    head = (width - 3) * 2 // 3
    return f"{text[:head]}...{text[-(width - 3 - head) :]}"


def launch_line_of(process: Process) -> LaunchLine | None:
    """Return what an SGLang server's command line says (see ``launch_line``)."""
    return launch_line(process.argv, process.exe)


def launch_line(argv: tuple[str, ...], exe: str | None) -> LaunchLine | None:
    """Return what an SGLang server's command line says, also of one that was started under another name.

    ``exec -a NAME python -m ...`` and a login shell's ``-python`` change argv[0] and nothing else; what runs
    is the executable.
    """
    line = read_launch_line(argv)
    program = (exe or "").removesuffix(" (deleted)")
    if line is None and len(argv) > 1 and is_python(program):
        return read_launch_line((program, *argv[1:]))
    return line


def describe(process: Process) -> str:
    """Return what a process is, for a sentence: its server line, its title or its command line."""
    line = launch_line_of(process)
    if line:
        return legible(f"an SGLang server ({line.describe()})")
    return shorten(process.argv) or f"[{legible(process.comm)}]"


def is_command(server: ServerIdentity, process: Process) -> bool:
    return server.command is not None and matches_command(process.argv, server.command)


def in_unit(server: ServerIdentity, process: Process) -> bool:
    return server.unit is not None and unit_of(process.cgroup) == server.unit


def _is_worker_shape(process: Process) -> bool:
    """Say whether argv is a helper that Python servers leave behind; it proves nothing by itself."""
    if not process.argv or not is_python(process.argv[0]):
        return False
    text = " ".join(process.argv[1:4])
    return "multiprocessing" in text or "compile_worker" in text
