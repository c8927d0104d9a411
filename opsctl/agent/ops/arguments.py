"""Asking the installed parser about the flags of a launch, once while nothing that it read has changed.

Importing SGLang for its parser takes 5 to 30 s. The answer is kept until the next boot, with every file that
the import loaded and every folder that it searched: changed content, a module before another, an upgrade, a
patch, a replaced library make the parser be asked again. Only "accepted" is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time

from opsctl.agent.ops import preflight, procfs

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

PREFIX = "parser-"
KEPT = 8
SETTLED_S = (
    2.0  # what changed this shortly before the parser was asked may have changed while it was read
)

# The installed version's own parser. GPUs are hidden: building a parser must not touch a busy one.
PARSE = """
import argparse, json, os, site, sys
try:
    from sglang.srt.server_args import ServerArgs
    parser = argparse.ArgumentParser(prog="sglang.launch_server")
    ServerArgs.add_cli_args(parser)
except Exception as error:
    print("opsctl-reply:" + json.dumps({"ok": None, "error": "%s: %s" % (type(error).__name__, error)}))
    sys.exit(0)
flags = sorted(o for a in parser._actions for o in a.option_strings)
said = []
def refuse(message):
    said.append(message)
    raise SystemExit(2)
parser.error = refuse
try:
    parser.parse_args(sys.argv[1:])
    ok = True
except SystemExit:
    ok = False
def loaded():
    yield sys.executable
    yield os.path.realpath(sys.executable)
    yield os.path.join(sys.prefix, "pyvenv.cfg")
    if site.ENABLE_USER_SITE: yield site.getusersitepackages()
    for entry in sys.path:
        yield entry or os.getcwd()
        if os.path.isdir(entry):
            for name in os.listdir(entry):
                if name.endswith(".pth"): yield os.path.join(entry, name)
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        yield names.get("__file__")
        try: yield from list(names.get("__path__") or ())
        except Exception: pass
    with open("/proc/self/maps") as maps:
        for line in maps:
            words = line.rstrip("\\n").split(None, 5)
            if len(words) == 6 and words[5].startswith("/") and not words[5].startswith("/dev/"):
                yield words[5]
read = sorted({os.path.abspath(path) for path in loaded() if isinstance(path, str)})
print("opsctl-reply:" + json.dumps(
    {"ok": ok, "error": said[0] if said else None, "flags": flags, "read": read}))
"""


def arguments(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Let the installed parser read the flags: ok true, false (its words), or null: it cannot be asked.

    ``kept_since``: when it said so, where it was not asked now because nothing has changed since.
    """
    started = started_program(request)
    path = os.path.join(procfs.runtime_directory(), PREFIX + key_of(request, started))
    kept = recall(path)
    if kept is not None:
        return kept
    begun_s = time.time()
    env = dict(request.get("env") or {}, CUDA_VISIBLE_DEVICES="")
    limit_s = request.get("timeout_s", 60.0)
    reply = preflight.ask(dict(request, env=env), PARSE, request["flags"], limit_s)
    read = reply.pop("read", None)
    if reply["ok"] and read and started:
        keep(path, reply, [*read, started], begun_s)
    return dict(reply, kept_since=None)


def started_program(request: dict[str, Any]) -> str | None:
    """Return the file that ``python`` names: a script that starts another interpreter may stand there."""
    python = request["python"]
    if "/" in python:
        python = os.path.join(request.get("cwd") or "/", python)
    found = shutil.which(python, path=(request.get("env") or {}).get("PATH", os.defpath))
    return os.path.abspath(found) if found else None


def key_of(request: dict[str, Any], started: str | None) -> str:
    """Return what tells one question from another; the run's own id is no part of it."""
    env = {
        name: value for name, value in (request.get("env") or {}).items() if name != "OPSCTL_RUN"
    }
    home = os.path.expanduser("~")
    asked = [request["python"], started, request.get("cwd"), env, home, request["flags"], PARSE]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]


def stamp(path: str) -> list[int] | None:
    """Return what changes when a file's content or a folder's entries do; None: there is none."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return [about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns]


def recall(path: str) -> dict[str, Any] | None:
    """Return an answer that still holds: nothing has changed, and nobody but we could write it; else None."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as file:
            about = os.fstat(file.fileno())
            if about.st_uid != os.geteuid() or about.st_mode & 0o022:
                return None
            kept = json.load(file)
        if any(stamp(name) != seen for name, seen in kept["read"].items()):
            return None
        reply: dict[str, Any] = dict(kept["reply"], kept_since=kept["at_s"])
        return reply
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def keep(path: str, reply: dict[str, Any], read: list[str], begun_s: float) -> None:
    """Keep an answer, unless something changed while it was found; without a place for it do without."""
    stamps = {name: stamp(name) for name in read}
    settled_ns = (begun_s - SETTLED_S) * 1e9
    if any(seen is not None and max(seen[2:]) > settled_ns for seen in stamps.values()):
        return
    temporary = "%s.%d" % (path, os.getpid())
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
        made = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(made, "w") as file:
            json.dump({"at_s": begun_s, "reply": reply, "read": stamps}, file)
        os.replace(temporary, path)
        names = [os.path.join(folder, one) for one in os.listdir(folder) if one.startswith(PREFIX)]
        for old in sorted(names, key=os.path.getmtime, reverse=True)[KEPT:]:
            os.unlink(old)
    except OSError:
        pass


OPERATIONS = {"arguments": arguments}
