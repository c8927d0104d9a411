"""A /dev/kmsg for a lab host: one record per read, then EAGAIN, the same for every reader.

The machine's own kernel log belongs to everybody, so Xid lines of the lab go to a FIFO in packet mode
instead. It is filled before a reader comes, and again when one has closed it. Whoever reads while
another reads shares the records with it; the real device would not.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
from pathlib import Path

from tests.lab.gpus import DRIVER

IN_CLOSE_WRITE, IN_CLOSE_NOWRITE, IN_MOVED_TO = 0x08, 0x10, 0x80
F_SETPIPE_SZ = 1031
NOISE = [
    "6,1,0,-;Linux version 6.8.12-11-pve (build@proxmox) #1 SMP PREEMPT_DYNAMIC PMX 6.8.12-11",
    "6,1204,9213377,-;nvidia: module license taints kernel.",
    f"6,1209,9714201,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}",
]


def main() -> None:
    """Usage, inside the lab: python -m tests.lab.kmsg INIT_PID XID_FILE; started by `up`."""
    device, xids = Path(f"/proc/{sys.argv[1]}/root/dev/kmsg"), Path(sys.argv[2])
    device.unlink(missing_ok=True)
    os.mkfifo(device, 0o600)
    fifo = os.open(device, os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(fifo, fcntl.F_SETFL, os.O_NONBLOCK | os.O_DIRECT)  # packets: see pipe(2)
    fcntl.fcntl(fifo, F_SETPIPE_SZ, 1 << 20)
    events = watch({device: IN_CLOSE_NOWRITE, xids.parent: IN_CLOSE_WRITE | IN_MOVED_TO})
    print("ready", flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    while True:
        refill(fifo, records(xids))
        os.read(events, 4096)


def records(xids: Path) -> list[str]:
    """Return the log: some ordinary lines, then the Xids that were ordered."""
    ordered = xids.read_text().splitlines() if xids.exists() else []
    return [
        *NOISE,
        *(f"3,{1300 + number},{line}" for number, line in enumerate(ordered)),
    ]


def refill(fifo: int, lines: list[str]) -> None:
    """Replace what is in the FIFO."""
    try:
        while os.read(fifo, 8192):
            pass
    except BlockingIOError:
        pass
    for line in lines[-200:]:
        os.write(fifo, line.encode() + b"\n")


def watch(paths: dict[Path, int]) -> int:
    """Return an inotify descriptor for ``paths`` and their events."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_CLOEXEC)
    for path, mask in paths.items():
        if libc.inotify_add_watch(descriptor, os.fsencode(path), mask) < 0:
            raise OSError(ctypes.get_errno(), f"inotify {path}")
    return descriptor


if __name__ == "__main__":
    main()
