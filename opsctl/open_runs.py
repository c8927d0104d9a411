"""Which runs are open, for the status screen: one small file a run, so that a look opens no ledger."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from opsctl.output import Finding
from opsctl.records import dataclass

FOLDER = "open-runs"
QUERY = (
    "SELECT r.outcome, r.playbook, s.name FROM runs r LEFT JOIN steps s ON s.run = r.id WHERE r.id = ?"
    " ORDER BY s.outcome IS NULL OR s.outcome NOT IN ('done', 'unchanged') DESC, s.started_s DESC LIMIT 1"
)
OPEN = (None, "interrupted", "cut")  # the outcomes that `opsctl resume` goes on with


@dataclass(frozen=True, slots=True)
class Mark:
    """One run that has begun, and by which process."""

    run: str
    machine: str
    pid: int
    started: str  # of that process, in clock ticks since boot

    @property
    def is_alive(self) -> bool:
        return self.machine == socket.gethostname() and started_of(self.pid) == self.started


def mark(state: Path, run: str, server: str) -> None:
    """Say that a run is open; best effort: the ledger is what counts."""
    try:
        place = state / FOLDER
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        pid = os.getpid()
        words = [server, socket.gethostname(), str(pid), started_of(pid) or "unknown"]
        part = place / f".{run}.part"
        part.write_text("\n".join(words))
        part.replace(place / run)
    except OSError:
        pass


def unmark(state: Path, run: str) -> None:
    """Say that a run has ended."""
    try:
        (state / FOLDER / run).unlink(missing_ok=True)
    except OSError:
        pass


def unmark_all(state: Path, server: str) -> None:
    """Say that whatever was open on a server is overtaken by a newer run of it."""
    for one in marks(state, server):
        unmark(state, one.run)


def marks(state: Path, server: str) -> list[Mark]:
    """Return the open runs of a server, oldest first."""
    found = []
    try:
        names = sorted(os.listdir(state / FOLDER))
    except OSError:
        return []
    for name in names:
        try:
            words = (state / FOLDER / name).read_text().split("\n")
        except (OSError, ValueError):
            continue
        if len(words) == 4 and words[0] == server and words[2].isdigit() and name[0] != ".":
            found.append(Mark(name, words[1], int(words[2]), words[3]))
    return found


def open_run_of(state: Path, server: str) -> Finding | None:
    """Say which run of a server is under way, or was cut and can go on; None mostly."""
    for one in reversed(marks(state, server)):
        known = _read(state / "ledger.sqlite", one.run)
        if known is None or known[0] not in OPEN:
            continue
        _, playbook, step = known
        at = f" at step {step}" if step else ""
        if one.is_alive:
            text = (
                f"run {one.run} ({playbook}) is under way,{at or ' at its begin'} (pid {one.pid})"
            )
            return Finding("run-under-way", server, text)
        text = f"run {one.run} ({playbook}) is open: it was cut{at}"
        return Finding("run-open", server, text, f"opsctl resume {one.run}")
    return None


def started_of(pid: int) -> str | None:
    """Return when a process of this machine began, in clock ticks; None: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return None


def _read(path: Path, run: str) -> tuple[str | None, str, str | None] | None:
    from opsctl.last_run import read_row

    row = read_row(path, QUERY, run)
    return None if row is None else (row[0], row[1], row[2])
