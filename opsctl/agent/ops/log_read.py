"""Far side of the logs: pieces of a file by offset, its end, and nothing that could hang. Python 3.8."""

from __future__ import annotations

import os
import re
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

MAX_BYTES = 1 << 20
SECRET = re.compile(
    r"""\b((?:admin_)?api_key|ssl_keyfile_password)=(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
)


def open_log(path: str, context: Context) -> int:
    """Open a regular file; a fifo or a device would block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise context.Error("log", "%s: %s" % (path, error.strerror)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise context.Error("log", "%s is not a file" % path)
    return descriptor


def without_secrets(text: str) -> str:
    """Hide the keys that SGLang prints with all its arguments as it starts (0.5.8 to 0.5.23).

    What is read here is kept in ledgers and reports, and printed by CI jobs.
    """
    return SECRET.sub(r"\1='***'", text) if "api_key=" in text or "_password=" in text else text


def since(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return whole lines from ``offset`` on, at most 1 MiB, and the offset to go on from.

    A file that is shorter than the offset was cut or replaced: it is read from its beginning again. A line
    without its end is kept for the next call, unless it fills the whole piece.
    """
    descriptor = open_log(request["path"], context)
    try:
        size = os.fstat(descriptor).st_size
        offset = request.get("offset", 0)
        restarted = size < offset
        if restarted:
            offset = 0
        data = os.pread(descriptor, min(MAX_BYTES, request.get("max_bytes", MAX_BYTES)), offset)
    finally:
        os.close(descriptor)
    cut = data.rfind(b"\n") + 1
    if cut == 0 and len(data) >= MAX_BYTES:
        cut = len(data)
    text = without_secrets(data[:cut].decode("utf-8", errors="replace"))
    return {"text": text, "offset": offset + cut, "size": size, "restarted": restarted}


def tail(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return the last ``lines`` lines, reading at most ``max_bytes`` from the end."""
    descriptor = open_log(request["path"], context)
    try:
        size = os.fstat(descriptor).st_size
        length = min(size, request.get("max_bytes", MAX_BYTES), 16 * MAX_BYTES)
        data = os.pread(descriptor, length, size - length)
    finally:
        os.close(descriptor)
    lines = without_secrets(data.decode("utf-8", errors="replace")).splitlines()
    if length < size and lines:
        lines = lines[1:]  # its beginning is not here
    wanted = request.get("lines", 200)
    return {"text": "\n".join(lines[-wanted:]), "size": size, "complete": length == size}


def of_process(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return the file that process ``pid`` writes its output to: ``path``, None when it is no file.

    ``journal`` is true when the output goes to a socket, as under systemd.
    """
    kinds = {}
    for number in (1, 2):
        try:
            target = os.readlink("/proc/%d/fd/%d" % (request["pid"], number))
        except OSError as error:
            raise context.Error("log", "pid %d: %s" % (request["pid"], error.strerror)) from error
        kinds[number] = target
        if target.startswith("/") and not target.endswith(" (deleted)"):
            try:
                if stat.S_ISREG(os.stat(target).st_mode):
                    return {"path": target, "journal": False}
            except OSError:
                continue
    return {"path": None, "journal": any(v.startswith("socket:") for v in kinds.values())}


OPERATIONS = {"of_process": of_process, "since": since, "tail": tail}
