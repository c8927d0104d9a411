"""Far side of the preflight: measure what a launch needs."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess

from opsctl.agent.ops import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

MARKER = "opsctl-reply:"
MAX_WORDS = 500  # a server's port may be the last of its arguments
MAX_PARENTS = 20
CAP_SYS_RESOURCE = 24  # capabilities(7)

# Run by the interpreter that will launch the server, with the server's environment; imports nothing heavy.
LOOK = """
import importlib.metadata as m, importlib.util as u, json, re, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
def origin(name):
    try: spec = u.find_spec(name)
    except (ImportError, ValueError): return None
    if spec is None: return None
    return spec.origin or next(iter(spec.submodule_search_locations or []), None)
torch = origin("torch"); cuda = None
if torch:
    try:
        text = open(torch.replace("__init__.py", "version.py")).read()
        cuda = next(iter(re.findall(r"^cuda[^=]*= *'([^']+)'", text, re.M)), None)
    except OSError: pass
print("opsctl-reply:" + json.dumps({"python": sys.version.split()[0], "package": "sglang",
  "package_version": version("sglang"), "package_origin": origin("sglang"),
  "torch_version": version("torch"), "torch_cuda": cuda}))
"""


def survey(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return what this machine offers to a launch; nothing is judged here.

    The request: port, python, env, paths (models to look at), folders (logs, state), programs.
    """
    env = request.get("env") or {}
    return {
        "port": port(request["port"]),
        "shm": room("/dev/shm"),
        "models": {path: model(path, request.get("user")) for path in request.get("paths") or []},
        "folders": {path: room(path) for path in request.get("folders") or []},
        "programs": {
            name: shutil.which(name, path=env.get("PATH")) for name in request["programs"]
        },
        "nofile_hard": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "nofile_raisable": has_capability(CAP_SYS_RESOURCE),
        "uid": os.geteuid(),
        "interpreter": interpreter(request, context),
        "systemd": os.path.isdir("/run/systemd/system"),
    }


def has_capability(number: int) -> bool:
    """Say whether this process holds a capability (its bit in CapEff of /proc/self/status)."""
    for line in (procfs.read("/proc/self/status") or b"").splitlines():
        if line.startswith(b"CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def port(number: int) -> dict[str, Any]:
    """Return who listens on a port; ``free`` None: somebody does, and it cannot be seen who."""
    inodes = listening_inodes(number)
    if not inodes:
        return {"free": can_bind(number), "holders": []}
    holders = []
    for pid in procfs.pids():
        if inodes & socket_inodes(pid):
            argv = procfs.parse_argv(procfs.read("/proc/%d/cmdline" % pid) or b"")
            exe = procfs.readlink("/proc/%d/exe" % pid)
            found = {"pid": pid, "start_ticks": procfs.start_ticks(pid), "argv": argv[:MAX_WORDS]}
            holders.append(dict(found, exe=exe, parents=parents(pid)))
    return {"free": False, "holders": holders}


def parents(pid: int) -> list[int]:
    """Return the pids above a process, nearest first: a server's workers hold its socket as well."""
    found: list[int] = []
    while len(found) < MAX_PARENTS:
        stat = procfs.read_stat(pid)
        if stat is None or stat.ppid <= 1:
            break
        pid = stat.ppid
        found.append(pid)
    return found


def holders(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return who listens on ``port``."""
    return port(request["port"])


def can_bind(number: int) -> bool:
    """Try it; the socket is closed at once and never listened on."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", number))
        except OSError:
            return False
    return True


def listening_inodes(number: int) -> set[int]:
    """Return the socket inodes in state LISTEN (0A) on a port, from /proc/net/tcp and tcp6."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in (procfs.read("/proc/net/" + name) or b"").splitlines()[1:]:
            words = line.split()
            if (
                len(words) > 9
                and words[3] == b"0A"
                and int(words[1].rsplit(b":", 1)[1], 16) == number
            ):
                found.add(int(words[9]))
    return found


def socket_inodes(pid: int) -> set[int]:
    """Return the inodes of a process's sockets; empty when it is not ours to look at."""
    base = "/proc/%d/fd/" % pid
    try:
        names = os.listdir(base)
    except OSError:
        return set()
    links = (procfs.readlink(base + name) or "" for name in names)
    return {int(link[8:-1]) for link in links if link.startswith("socket:[")}


def room(path: str) -> dict[str, Any]:
    """Return size and free bytes of the file system that would hold ``path``, and whether it is writable."""
    place = path
    while place != "/" and not os.path.exists(place):
        place = os.path.dirname(place)
    try:
        stat = os.statvfs(place)
    except OSError as error:
        return {"error": str(error)}
    return {
        "total_bytes": stat.f_blocks * stat.f_frsize,
        "free_bytes": stat.f_bavail * stat.f_frsize,
        "writable": os.access(place, os.W_OK | os.X_OK),
        "exists": place == path,
    }


def model(path: str, user: str | None) -> dict[str, Any]:
    """Look at a model's folder the way that the server will: its config, and whether it can be read."""
    if not os.path.isdir(path):
        return {
            "exists": os.path.exists(path),
            "error": "not a folder" if os.path.exists(path) else "absent",
        }
    try:
        names = os.listdir(path)
        with open(os.path.join(path, "config.json")) as source:
            config = json.load(source)
        for name in names:
            if name.endswith((".safetensors", ".bin", ".json")) and not os.access(
                os.path.join(path, name), os.R_OK
            ):
                return {"exists": True, "error": "%s cannot be read" % name}
    except (OSError, ValueError) as error:
        return {"exists": True, "error": str(error)}
    keys = ("architectures", "model_type", "max_position_embeddings", "num_hidden_layers")
    return {"exists": True, "error": None, "config": {key: config.get(key) for key in keys}}


def interpreter(request: dict[str, Any], context: Context) -> dict[str, Any] | None:
    """Ask the launch interpreter what it would run; None for a server that is no SGLang."""
    if not request.get("python"):
        return None
    return ask(request, LOOK, [], request.get("timeout_s", 15.0))


def ask(request: dict[str, Any], program: str, argv: list[str], timeout_s: float) -> dict[str, Any]:
    """Run a program in a child of the launch interpreter and return the object that it prints."""
    try:
        done = subprocess.run(
            [request["python"], "-c", program, *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict({"HOME": os.path.expanduser("~")}, **(request.get("env") or {})),
            cwd=request.get("cwd") or "/",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return {"ok": None, "error": "it did not answer within %.0f s" % timeout_s}
    except OSError as error:
        return {"ok": None, "error": str(error)}
    for line in done.stdout.decode(errors="replace").splitlines():
        if line.startswith(MARKER):
            reply: dict[str, Any] = json.loads(line[len(MARKER) :])
            return reply
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return {"ok": None, "error": last_words(said, done.returncode)}


def last_words(lines: list[str], status: int) -> str:
    """Return the line that names the error (a native stack may follow it), and the signal, if any.

    >>> last_words(["  what():  Duplicate registration", "frame #1: main"], -6)
    'it died of SIGABRT: what():  Duplicate registration'
    """
    named = [line for line in lines if re.match(r"\s*(what\(\):|[\w.]*(Error|Exception)\b)", line)]
    chosen = (named or lines or [""])[-1].strip()[:300]
    ending = "it died of " + signal_name(-status) if status < 0 else "it exited %d" % status
    return chosen if chosen and status >= 0 else ": ".join(filter(None, [ending, chosen]))


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


OPERATIONS = {"survey": survey, "port": holders}
