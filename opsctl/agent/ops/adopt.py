"""Far side of an adoption: how one process was started. Values of secrets never leave the host."""

from __future__ import annotations

import os
import re

from opsctl.agent.ops import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context


def read(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return interpreter, working directory, output and the wanted environment of one process.

    Request: ``pid`` and ``start_ticks`` (another process under the number is refused), ``keep`` (prefixes of
    names whose values are wanted), ``names`` (further whole names), ``secret_name`` and ``secret_value``
    (patterns: what matches one of them is returned by name only).

    Returns:
        ``interpreter`` (the path that was started, its links unresolved), ``exe``, ``cwd``, ``output`` (what
        stdout is), ``env`` (None: not ours to see), ``secrets``, ``other_secrets``: names only.
    """
    pid = request["pid"]
    base = "/proc/%d/" % pid
    data = procfs.read(base + "environ")
    everything = environment(data or b"")
    argv = procfs.parse_argv(procfs.read(base + "cmdline") or b"")
    exe, cwd = procfs.readlink(base + "exe"), procfs.readlink(base + "cwd")
    found: dict[str, Any] = {
        "exe": exe,
        "cwd": cwd,
        "output": procfs.readlink(base + "fd/1"),
        "interpreter": interpreter(argv, exe, cwd, everything.get("PATH")),
        "env": None,
        "secrets": [],
        "other_secrets": [],
    }
    if data is not None:
        found.update(sift(everything, request))
    if procfs.start_ticks(pid) != request["start_ticks"]:
        raise context.Error("process-gone", "pid %d is gone, or another process now" % pid)
    return found


def environment(data: bytes) -> dict[str, str]:
    """Return the environment that a process was started with."""
    entries = [procfs.text(entry) for entry in data.split(b"\0") if b"=" in entry]
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def sift(everything: dict[str, str], request: dict[str, Any]) -> dict[str, Any]:
    """Split an environment into what may be told and the names of what must not."""
    by_name, by_value = re.compile(request["secret_name"]), re.compile(request["secret_value"])
    prefixes, names = tuple(request["keep"]), set(request["names"])
    told: dict[str, str] = {}
    secrets: list[str] = []
    others: list[str] = []
    for name, value in sorted(everything.items()):
        wanted = name in names or name.startswith(prefixes)
        if by_name.search(name) or by_value.search(value):
            (secrets if wanted else others).append(name)
        elif wanted:
            told[name] = value
    return {"env": told, "secrets": secrets, "other_secrets": others}


def interpreter(argv: list[str], exe: str | None, cwd: str | None, path: str | None) -> str | None:
    """Return the interpreter as it was started: in a virtual environment its link is what matters."""
    if not argv or exe is None:
        return exe
    first = argv[0]
    if "/" in first:
        places = [os.path.normpath(os.path.join(cwd or "/", first))]
    else:
        places = [os.path.join(folder, first) for folder in (path or "").split(":") if folder]
    real = exe[:-10] if exe.endswith(" (deleted)") else exe
    for place in places:
        if os.path.realpath(place) == real and os.access(place, os.X_OK):
            return place
    return real


OPERATIONS = {"read": read}
