"""Far side of the memory: one JSON line per finished attempt, beside the server."""

from __future__ import annotations

import json
import os

from opsctl.agent.ops import launch_find

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

MAX_BYTES = 4 << 20


def path_of(request: dict[str, Any]) -> str:
    return os.path.join(launch_find.state_dir(request), "attempts.jsonl")


def append(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Append one line and sync it; a line that was cut before is ended first, the same line kept once."""
    path = path_of(request)
    line = json.dumps(request["attempt"], separators=(",", ":"), sort_keys=True)
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            last = os.pread(descriptor, 1, size - 1) if size else b"\n"
            if line in tail_lines(descriptor, size):
                return {"appended": False, "path": path}
            data = (b"" if last == b"\n" else b"\n") + line.encode() + b"\n"
            if os.write(descriptor, data) != len(data):
                raise OSError("the line was cut: no room on the disk")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise context.Error("attempts", "%s: %s" % (path, error)) from error
    return {"appended": True, "path": path}


def tail_lines(descriptor: int, size: int) -> list[str]:
    """Return the last lines, enough to see a record that is written for the second time."""
    start = max(0, size - 65536)
    return os.pread(descriptor, size - start, start).decode(errors="replace").splitlines()


def read(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return the newest attempts; lines that are damaged are counted, not guessed."""
    path = path_of(request)
    try:
        with open(path, "rb") as source:
            size = os.fstat(source.fileno()).st_size
            source.seek(max(0, size - MAX_BYTES))
            lines = source.read().splitlines()
    except FileNotFoundError:
        return {"attempts": [], "damaged": 0, "path": path}
    except OSError as error:
        raise context.Error("attempts", "%s: %s" % (path, error)) from error
    found, damaged = [], 0
    for line in lines[-request.get("limit", 1000) :]:
        try:
            body = json.loads(line.decode())
        except (ValueError, RecursionError):
            damaged += 1
            continue
        found.append(body)
    return {"attempts": found, "damaged": damaged, "path": path}


OPERATIONS = {"append": append, "read": read}
