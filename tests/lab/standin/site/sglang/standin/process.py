"""What the kernel shows of a server's processes: titles, parents, GPU memory."""

import ctypes
import os
import signal

from sglang.standin import hold

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15


def set_title(title):
    """Show ``title`` as the process's name and command line, as setproctitle does.

    The command line is overwritten in place and the rest of it zeroed, so a reader of
    /proc/PID/cmdline gets the title and then NUL bytes.
    """
    LIBC.prctl(PR_SET_NAME, title.encode()[:15], 0, 0, 0)
    try:
        with open("/proc/self/stat") as handle:
            fields = handle.read().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, see proc(5)
    except (OSError, IndexError, ValueError):
        return
    length = end - start
    if start and length > 1:
        text = title.encode()[: length - 1]
        ctypes.memmove(start, text.ljust(length, b"\0"), length)


def die_with_parent():
    """Have the kernel kill this process when its parent dies, as SGLang's children do."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def children(pid):
    """Return the pids below this one, nearest first."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name) as handle:
                    parents[int(name)] = int(handle.read().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue  # it ended while we looked
    found = [pid]
    for known in found:
        found.extend(child for child, parent in parents.items() if parent == known)
    return found[1:]


def kill_tree():
    """Kill every process below this one, then this one, as SGLang ends itself."""
    for pid in children(os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    os.kill(os.getpid(), signal.SIGKILL)


def visible_gpu(rank, base=0):
    """Return the index of the lab GPU that this rank uses."""
    visible = [item for item in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if item]
    if base + rank < len(visible) and visible[base + rank].isdigit():
        return int(visible[base + rank])
    return base + rank


def gpu_total_mib(gpu):
    """Return how much memory of a lab GPU can be had, or None where there is no such GPU."""
    try:
        return hold.capacity_mib(gpu)
    except (OSError, ValueError):
        return None
