"""The few system calls that Python 3.11 does not offer: namespaces, mounts, pidfds' identity."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

NEWNS, NEWUTS, NEWPID, NEWNET = 0x00020000, 0x04000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x1, 0x2, 0x4, 0x8
MS_REMOUNT, MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x2000, 0x4000, 0x40000
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move this process (for NEWPID: its children) into new namespaces."""
    _check(_libc.unshare(flags), f"unshare {flags:#x}")


def setns(path: str, flags: int) -> None:
    """Join the namespace behind ``path``, e.g. ``/proc/1/ns/net``; this thread only."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _check(_libc.setns(descriptor, flags), f"setns {path}")
    finally:
        os.close(descriptor)


def in_chroot() -> bool:
    """Return whether / is not the root of this mount namespace; False where nobody may look."""
    child = os.fork()
    if child == 0:
        answer = 2
        try:
            here = os.stat("/")
            setns("/proc/self/ns/mnt", NEWNS)  # enters at the namespace's root
            answer = int(not os.path.samestat(here, os.stat("/")))
        finally:
            os._exit(answer)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def mount(source: str, target: str | Path, kind: str, flags: int = 0, options: str = "") -> None:
    """Call mount(2)."""
    result = _libc.mount(
        source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode()
    )
    _check(result, f"mount {kind or source} on {target}")


def bind(
    source: str | Path, target: str | Path, *, recursive: bool = False, read_only: bool = False
) -> None:
    """Show ``source`` at ``target`` too."""
    mount(str(source), target, "", MS_BIND | (MS_REC if recursive else 0))
    if read_only:
        mount("none", target, "", MS_BIND | MS_REMOUNT | MS_RDONLY)


def unmount(target: str | Path, flags: int = MNT_DETACH) -> None:
    """Call umount2(2)."""
    _check(_libc.umount2(os.fsencode(target), flags), f"umount {target}")


def set_hostname(name: str) -> None:
    """Set the hostname of this UTS namespace."""
    raw = name.encode()
    _check(_libc.sethostname(raw, len(raw)), "sethostname")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send ``signal_number`` to this process when its parent's thread ends."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl")


def start_ticks(pid: int | str) -> int | None:
    """Return field 22 of /proc/PID/stat, or None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat[stat.rindex(")") + 2 :].split()[19])
