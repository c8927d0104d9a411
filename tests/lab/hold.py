"""Hold memory of a lab GPU, as a CUDA context does: until the process ends, however it ends.

Standard library only, Python 3.8 and up: it also runs inside the lab's hosts and inside SGLang's
scheduler processes.

    from hold import Hold
    held = Hold(gpu=0, mib=4096)   # raises GpuOutOfMemory when there is no room
    held.grow(512)
    held.release()

    python3 hold.py --gpu 0 --mib 4096 [--kind graphics] [--title NAME] [--argv0 PATH] [--ignore-term]

How: GPU N's memory is the byte range of the file gpuN.mem; one MiB held is a POSIX record lock on one
byte. The kernel frees it when the process dies, also of SIGKILL. POSIX locks are dropped when the
process closes any descriptor of the file, so a file once opened stays open for good.
"""

import argparse
import contextlib
import ctypes
import fcntl
import os
import signal
import struct
import sys

REGION = 1 << 40  # each kind has a range of its own; nvml/lab.h knows the same number
KINDS = ("compute", "graphics", "mps")
FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux

RENAMED = "LAB_HOLD_RENAMED"

_files = {}


class GpuOutOfMemory(MemoryError):
    """The lab GPU has less free memory than was asked for."""


def gpu_dir():
    """Return the folder of the GPUs of this host."""
    return os.environ.get("NVML_LAB_DIR", "/var/lib/lab-gpu")


def _file(index):
    path = f"{gpu_dir()}/gpu{index}.mem"
    if path not in _files:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        while descriptor < 3:  # never one of the standard streams: those get closed
            descriptor = os.dup(descriptor)
        _files[path] = descriptor
    return _files[path]


def capacity_mib(index):
    """Return how much of a GPU can be held: its memory less what the driver reserves."""
    with open(gpu_dir() + "/gpus") as table:
        for line in table:
            parts = line.rstrip("\n").split("|")
            if int(parts[0]) == index:
                return int(parts[3]) - int(parts[4])
    raise ValueError(f"no lab GPU {index} in {gpu_dir()}")


def _conflict(descriptor, start, length):
    """Return (start, end) of a lock of another process in the range, or None."""
    asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    kind, _, found, size, _ = struct.unpack(FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else (found, found + size)


class Hold:
    """Memory of one lab GPU, held by this process."""

    def __init__(self, gpu=0, mib=0, kind="compute"):
        self.gpu = gpu
        self._base = KINDS.index(kind) * REGION
        self._pieces = []
        self._nodes = []
        self._descriptor = _file(gpu)
        _holds.add(self)
        for node in ("/dev/nvidiactl", "/dev/nvidia-uvm", f"/dev/nvidia{gpu}"):
            with contextlib.suppress(OSError):
                self._nodes.append(os.open(node, os.O_RDWR | os.O_CLOEXEC))
        if mib:
            self.grow(mib)

    @property
    def mib(self):
        """MiB held by this object."""
        return sum(end - start for start, end in self._pieces)

    def grow(self, mib):
        """Hold ``mib`` more, in as many pieces as the free ranges ask for."""
        wanted = mib
        taken = []
        for start, end in self._free_ranges():
            end = min(end, start + wanted)
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, end - start, start)
            except OSError:
                continue  # another process was faster
            taken.append((start, end))
            wanted -= end - start
            if wanted == 0:
                self._pieces += taken
                return
        for start, end in taken:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, end - start, start)
        raise GpuOutOfMemory(
            f"CUDA out of memory. Tried to allocate {mib} MiB. "
            f"GPU {self.gpu} has {mib - wanted} MiB free."
        )

    def _free_ranges(self):
        """Yield ranges that nobody holds, from the bottom up."""
        start, end = self._base, self._base + capacity_mib(self.gpu)
        own = [piece for hold in _holds for piece in hold._pieces if hold.gpu == self.gpu]
        while start < end:
            busy = [piece for piece in own if piece[0] < end and piece[1] > start]
            first = min(busy, default=None)
            limit = min(end, first[0]) if first else end
            if limit > start:
                other = self._first_conflict(start, limit)
                if other is None:
                    yield start, limit
                    start = limit
                    continue
                if other[0] > start:
                    yield start, other[0]
                start = other[1]
            else:
                start = first[1]

    def _first_conflict(self, start, end):
        """Return the lowest range in [start, end) that another process holds."""
        lowest = None
        while start < end:
            found = _conflict(self._descriptor, start, end - start)
            if found is None:
                break
            lowest = (max(found[0], start), found[1])
            end = found[0]
        return lowest

    def release(self):
        """Give the memory back; the file stays open (closing it would drop other holds)."""
        for start, end in self._pieces:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, end - start, start)
        self._pieces = []
        while self._nodes:
            os.close(self._nodes.pop())
        _holds.discard(self)


_holds = set()
os.register_at_fork(after_in_child=_holds.clear)  # a lock does not pass to a child


def set_title(title):
    """Give this process a comm of its own, as the driver's own processes have."""
    ctypes.CDLL(None).prctl(15, title.encode()[:15], 0, 0, 0)


def detach():
    """Let a child in a session of its own go on; end when it has said how it went."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader) as words:
            text = words.read()
        sys.stdout.write(text)
        sys.exit(0 if text.startswith("holding") else 1)
    os.setsid()
    os.close(reader)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor, target in ((null, 0), (writer, 1), (writer, 2)):
        os.dup2(descriptor, target)
    os.close(writer)


def main():
    parser = argparse.ArgumentParser(description="Hold memory of a lab GPU until killed.")
    parser.add_argument("--gpu", type=int, default=0, help="index, from 0")
    parser.add_argument("--mib", type=int, default=1024, help="how much to hold")
    parser.add_argument("--kind", choices=KINDS, default="compute")
    parser.add_argument("--title", help="comm of the process, up to 15 characters")
    parser.add_argument("--argv0", help="first word of its command line, e.g. /usr/lib/xorg/Xorg")
    parser.add_argument("--detach", action="store_true", help="go on in the background")
    parser.add_argument("--ignore-term", action="store_true", help="only SIGKILL ends it")
    options = parser.parse_args()
    if options.argv0 and os.environ.pop(RENAMED, None) is None:
        os.environ[RENAMED] = "1"
        os.execv(sys.executable, [options.argv0, os.path.abspath(__file__), *sys.argv[1:]])
    if options.detach:
        detach()
    if options.title:
        set_title(options.title)
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        Hold(options.gpu, options.mib, options.kind)
    except (GpuOutOfMemory, ValueError, OSError) as error:
        sys.exit(f"hold: {error}")
    print(f"holding {options.mib} MiB of GPU {options.gpu} as pid {os.getpid()}", flush=True)
    if options.detach:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
