"""The machine's locks: one flock file per name, free as soon as the agent that holds it is gone.

The descriptors are not inherited by anything the agent starts (PEP 446), so a launched server holds no lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import time

from opsctl.agent.ops import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

SUFFIX = ".lock"
TRIES = 5  # a reader holds a lock for some microseconds; that is nobody's lock
TRY_S = 0.01


def acquire(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Take all locks in the order given, or none.

    Request: ``names`` (file names, e.g. "gpu-GPU-1f2e", "port-gpu1-30000"), ``owner`` (any object: who, why,
    run id); the agent adds ``since_s`` and its own ``agent_pid``.

    Returns:
        ``acquired`` true and ``directory``; or false, ``name``, and ``holder`` as that one wrote it (None
        where it had not written yet).
    """
    folder = request.get("directory") or procfs.runtime_directory()
    names = [checked(name, context) for name in request["names"]]
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
    except OSError as error:
        raise context.Error("lock-directory", "%s: %s" % (folder, error.strerror)) from error
    held: dict[str, int] = context.held.setdefault("locks", {})
    owner = dict(request["owner"], since_s=time.time(), agent_pid=os.getpid())
    taken: dict[str, int] = {}
    for name in names:
        path = os.path.join(folder, name + SUFFIX)
        if path in held:
            continue
        fd = take(path, context)
        if fd is None:
            drop(taken)
            return {"acquired": False, "name": name, "holder": content(path)}
        taken[path] = fd
        write(fd, dict(owner, name=name))
    held.update(taken)
    return {"acquired": True, "directory": folder}


def release(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Give up the locks of ``names``, all of this agent's without it; returns ``released`` names."""
    held: dict[str, int] = context.held.setdefault("locks", {})
    wanted = request.get("names")
    paths = [path for path in held if wanted is None or name_of(path) in wanted]
    drop({path: held.pop(path) for path in paths})
    return {"released": [name_of(path) for path in paths]}


def read(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return ``locks``: each existing one with ``name``, ``held``, and ``holder`` as written in it.

    A lock file that nobody holds was left by an agent that was killed; it blocks nobody.
    """
    folder = request.get("directory") or procfs.runtime_directory()
    mine: dict[str, int] = context.held.get("locks", {})
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except OSError:
        names = []
    locks = []
    for path in (os.path.join(folder, name) for name in names):
        held = path in mine or is_held(path)
        locks.append({"name": name_of(path), "held": held, "holder": content(path), "path": path})
    return {"directory": folder, "locks": locks}


def checked(name: str, context: Context) -> str:
    if not name or "/" in name or name.startswith(".") or "\0" in name:
        raise context.Error("bad-request", "%r is no name for a lock" % name)
    return name


def name_of(path: str) -> str:
    return os.path.basename(path)[: -len(SUFFIX)]


def take(path: str, context: Context) -> int | None:
    """Return a descriptor that holds the lock, None when somebody else does."""
    for _ in range(TRIES):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise context.Error("lock-file", "%s: %s" % (path, error.strerror)) from error
        if lock(fd, fcntl.LOCK_EX):
            if is_still(path, fd):
                return fd
            os.close(fd)  # its holder released and removed it meanwhile: take the new file
            continue
        os.close(fd)
        time.sleep(TRY_S)
    return None


def lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_still(path: str, fd: int) -> bool:
    """Tell whether the path still names the file that was locked."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    mine = os.fstat(fd)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)


def is_held(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return not lock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def write(fd: int, owner: dict[str, Any]) -> None:
    """Write who holds the lock; on a full disk the lock holds all the same."""
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(owner).encode() + b"\n", 0)
    except OSError:
        pass


def content(path: str) -> dict[str, Any] | None:
    try:
        found = json.loads(procfs.read(path) or b"")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def drop(taken: dict[str, int]) -> None:
    """Remove the files first and release then: who waits for the old file finds a new one."""
    for path, fd in taken.items():
        try:
            os.unlink(path)
        except OSError:
            pass
        os.close(fd)


OPERATIONS = {"acquire": acquire, "release": release, "read": read}
