"""What a dead server leaves behind: shared memory, a bound port, our own lock files, JIT build locks."""

from __future__ import annotations

import glob
import os
import re
from stat import S_ISREG

from opsctl.agent.ops import details, lock, procfs, sockets

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

SHM = "/dev/shm"
# families seen under SGLang 0.5.8 to 0.5.23, NCCL, torch and joblib; group 1 is the owner's pid
OWNED = tuple(
    re.compile(pattern)
    for pattern in (
        r"sgl_shm_(?:.*?_)?(\d+)_",
        r"multi_tokenizer_args_(\d+)",
        r"sem\.loky-(\d+)-",
        r"torch_(\d+)_",
        r"(?:cuda\.shm|nvsci)\.[^.]*\.[^.]*\.?(\d+)",
    )
)
ANONYMOUS = ("sgl_shm_", "sglang_", "nccl-", "psm_", "multi_tokenizer_args_")
JIT_LOCKS = (
    "~/.cache/flashinfer/**/*.lock",
    "~/.cache/torch_extensions/**/lock",
    "~/.cache/sglang/**/*.lock",
    "~/.cache/tvm-ffi/**/*.lock",
    "~/.triton/cache/**/*.lock",
)


def read(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return ``leftovers``: objects with the fields of facts.Leftover.

    Request: ``ports`` to look at; ``homes`` whose JIT caches are looked at ("~" by default).
    """
    found = shared_memory()
    for port in request.get("ports", []):
        found += bound_port(port)
    found += our_locks()
    for home in request.get("homes", ["~"]):
        found += jit_locks(home)
    return {"leftovers": found}


def leftover(
    kind: str,
    path: str,
    size: int | None = None,
    owner: int | None = None,
    alive: bool | None = None,
    detail: str = "",
) -> dict[str, Any]:
    return {
        "kind": kind,
        "path": path,
        "size_bytes": size,
        "owner_pid": owner,
        "owner_alive": alive,
        "detail": detail,
    }


def owner_in_name(name: str) -> int | None:
    """Return the pid that a segment's name carries, None for a family without one."""
    for pattern in OWNED:
        match = pattern.match(name)
        if match:
            return int(match.group(1))
    return None


def shared_memory() -> list[dict[str, Any]]:
    """Return the segments of the known families, each with who owns it and whether that one lives."""
    try:
        names = sorted(os.listdir(SHM))
    except OSError:
        return []
    known = [name for name in names if owner_in_name(name) or name.startswith(ANONYMOUS)]
    users = users_of_shm() if known else {}
    found = []
    for name in known:
        path = SHM + "/" + name
        try:
            stat = os.lstat(path)
        except OSError:
            continue
        if not S_ISREG(stat.st_mode):
            continue  # a folder or a link of somebody's is no segment
        user, owner = users.get(path), owner_in_name(name)
        if user is not None:
            found.append(leftover("shm", path, stat.st_size, user, True, "in use"))
        elif owner is not None:
            alive = is_alive(owner)
            found.append(leftover("shm", path, stat.st_size, owner, alive, "pid in its name"))
        else:
            nobody = None if users.get("") else False
            detail = "no process has it open" if nobody is False else "not all processes readable"
            found.append(leftover("shm", path, stat.st_size, None, nobody, detail))
    return found


def users_of_shm() -> dict[str, int]:
    """Return path -> a pid that has it open or mapped; the key "" when some process was not readable."""
    users: dict[str, int] = {}
    for pid in procfs.pids():
        stat = procfs.read_stat(pid)
        if stat is None or stat.kernel_thread:
            continue
        base, state = procfs.living_face(pid, stat)
        held = details.devices(base, details.descriptors(base), SHM + "/")
        if held is None and state not in "ZX":
            users.setdefault("", pid)
        for path in held or []:
            users.setdefault(path, pid)
    return users


def is_alive(pid: int) -> bool:
    stat = procfs.read_stat(pid)
    return stat is not None and procfs.living_face(pid, stat)[1] not in "ZX"


def bound_port(port: int) -> list[dict[str, Any]]:
    """Return who listens on the port in this network namespace, nothing when it is free."""
    table = sockets.listening_in(os.getpid()) or {}
    inodes = {"socket:[%s]" % inode for inode, bound in table.items() if bound == port}
    if not inodes:
        return []
    for pid in procfs.pids():
        links = details.descriptors("/proc/%d/" % pid) or []
        if inodes.intersection(links):
            argv = procfs.parse_argv(procfs.read("/proc/%d/cmdline" % pid) or b"")
            text = procfs.command_line(argv, 120)
            return [leftover("port", "tcp:%d" % port, None, pid, True, text)]
    return [
        leftover("port", "tcp:%d" % port, None, None, None, "by a process that is not readable")
    ]


def our_locks() -> list[dict[str, Any]]:
    """Return the lock files that an agent left when it was killed: nobody holds them."""
    try:
        names = sorted(os.listdir(procfs.runtime_directory()))
    except OSError:
        return []
    found = []
    for name in names:
        path = os.path.join(procfs.runtime_directory(), name)
        if not name.endswith(lock.SUFFIX) or lock.is_held(path):
            continue
        holder = lock.content(path) or {}
        detail = "left by run %s" % holder.get("run", "unknown")
        found.append(leftover("lock-file", path, None, holder.get("agent_pid"), False, detail))
    return found


def jit_locks(home: str) -> list[dict[str, Any]]:
    """Return the build locks of JIT caches, and whether somebody holds them.

    FlashInfer and Triton lock with flock; torch's ``lock`` file locks by its mere existence (FileBaton), so
    that one left by a killed server makes every later start wait without end.
    """
    found = []
    for pattern in JIT_LOCKS:
        for path in sorted(
            glob.glob(pattern.replace("~", os.path.expanduser(home), 1), recursive=True)
        ):
            held = lock.is_held(path)
            baton = os.path.basename(path) == "lock"
            if baton:
                detail = "its existence alone makes a start wait"
            else:
                detail = "held" if held else "held by nobody; harmless"
            found.append(leftover("jit-lock", path, None, None, None if baton else held, detail))
    return found


OPERATIONS = {"read": read}
