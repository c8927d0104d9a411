"""A container's configuration on its Proxmox node: read whole, replaced whole, under the node's own lock."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

FOLDER = "/etc/pve/lxc"
LOCKS = (
    "/run/lock/lxc"  # PVE::LXC::Config takes flock on pve-config-VMID.lock there for every change
)
BACKUPS = "/var/lib/opsctl/ct"
LOCK_S = 10.0


def read(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return ``text`` and ``sha256`` of container ``vmid``'s configuration; ``folder`` is for tests."""
    path = path_of(request)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as source:
            text = source.read()
    except OSError as error:
        raise context.Error("no-config", "%s: %s" % (path, error.strerror)) from error
    return {"path": path, "text": text, "sha256": digest(text)}


def replace(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Put ``text`` in the place of the configuration whose hash is ``sha256``; returns ``backup``, its copy.

    Named failures: container-locked, changed-meanwhile, config-busy, not-written.
    """
    with locked(request, context):
        before = read(request, context)
        if before["sha256"] != request["sha256"]:
            raise context.Error("changed-meanwhile", "%s was changed meanwhile" % before["path"])
        holder = lock_of(before["text"])
        if holder is not None:
            raise context.Error("container-locked", "the container is locked (%s)" % holder)
        try:
            backup = keep(request, before["text"])
            swap(before["path"], request["text"])
        except OSError as error:
            text = "%s: %s" % (error.filename or before["path"], error.strerror)
            raise context.Error("not-written", text) from error
    return {"backup": backup, "path": before["path"]}


class locked:
    """The node's own lock on one configuration, held while the block runs."""

    def __init__(self, request: dict[str, Any], context: Context) -> None:
        self.folder = request.get("locks", LOCKS)
        self.path = "%s/pve-config-%d.lock" % (self.folder, request["vmid"])
        self.context = context
        self.fd = -1

    def __enter__(self) -> None:
        try:
            os.makedirs(self.folder, exist_ok=True)
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise self.context.Error(
                "not-written", "%s: %s" % (self.path, error.strerror)
            ) from error
        end = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                if time.monotonic() > end or self.context.cancelled.wait(0.1):
                    os.close(self.fd)
                    text = "another program of the node holds %s" % self.path
                    raise self.context.Error("config-busy", text) from None

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def path_of(request: dict[str, Any]) -> str:
    """Return the file itself: /etc/pve/lxc is a link to the node's own folder."""
    return os.path.realpath("%s/%d.conf" % (request.get("folder", FOLDER), request["vmid"]))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def lock_of(text: str) -> str | None:
    """Return the lock in a configuration's own part, None without one."""
    for line in text.splitlines():
        if re.match(r"\[[a-z]", line, re.IGNORECASE):
            break
        found = re.match(r"lock:\s*(\S+)", line)
        if found:
            return found.group(1)
    return None


def keep(request: dict[str, Any], text: str) -> str:
    """Write a copy of what was there, on the node's own disk; returns its path."""
    folder = request.get("backups", BACKUPS)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    path = "%s/%d-%s-%d.conf" % (folder, request["vmid"], stamp, os.getpid())
    fill(path, text)
    return path


def swap(path: str, text: str) -> None:
    """Replace a file in one piece. The cluster's file system owns rights and owners itself."""
    temporary = "%s.tmp.%d" % (path, os.getpid())
    try:
        fill(temporary, text)
        was = os.stat(path)
        try:
            os.chown(temporary, was.st_uid, was.st_gid)
            os.chmod(temporary, was.st_mode & 0o7777)
        except OSError:
            pass  # /etc/pve refuses both, and gives every file the right ones
        os.rename(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    sync(os.path.dirname(path))


def fill(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape", newline="") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())


def sync(folder: str) -> None:
    """Make the new name durable, where the file system can."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass  # /etc/pve is a database, and commits by itself
    finally:
        os.close(fd)


OPERATIONS = {"read": read, "replace": replace}
