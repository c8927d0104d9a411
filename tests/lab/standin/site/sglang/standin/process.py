"""What the kernel shows of a server's processes: titles, parents, GPU memory."""

import ctypes
import fcntl
import os
import signal

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
STATE_DIR_VARIABLE = "NVML_LAB_DIR"
STATE_DIR = "/var/lib/lab-gpu"
CHUNK_MIB = 64


class OutOfMemory(Exception):
    """The lab GPU has not that much left."""


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
    """Return the size of a lab GPU's memory, or None where there is no such GPU."""
    try:
        with open(os.path.join(_state_dir(), "gpus")) as handle:
            for line in handle:
                parts = line.split("|")
                if len(parts) > 3 and parts[0].strip() == str(gpu):
                    return int(parts[3])
    except OSError:
        pass
    return None


def hold_gpu_memory(gpu, mib):
    """Take lab GPU memory for as long as this process lives; return the open file.

    Raises:
        OutOfMemory: if others hold too much of it.
    """
    total = gpu_total_mib(gpu)
    if total is None:
        return None
    handle = open(os.path.join(_state_dir(), "gpu%d.mem" % gpu), "r+b")  # noqa: SIM115
    missing = mib
    for offset in range(0, total, CHUNK_MIB):
        length = min(CHUNK_MIB, missing, total - offset)
        if length <= 0:
            break
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, length, offset)
        except OSError:
            continue
        missing -= length
    if missing:
        raise OutOfMemory("GPU %d lacks %d MiB of %d" % (gpu, missing, mib))
    return handle


def _state_dir():
    return os.environ.get(STATE_DIR_VARIABLE) or STATE_DIR
