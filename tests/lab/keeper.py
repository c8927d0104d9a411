"""Process 1 of a lab: it holds the lab's namespaces, and everything in them dies with it.

One `kill -9` of the keeper therefore removes every process, mount and network device of the lab.
It also ends by itself when the `up` that started it dies before it said "commit".
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from pathlib import Path

from tests.lab import kernel

LOOK_S = 5.0


def main() -> None:
    """Usage: keeper.py STATE_DIR COMMIT_FD, started by `up`; prints its identity as one JSON line."""
    state_dir, commit = Path(sys.argv[1]), int(sys.argv[2])
    kernel.unshare(kernel.NEWPID | kernel.NEWNS | kernel.NEWNET)
    if os.fork():
        os._exit(0)
    os.setsid()
    outer_pid = int(os.readlink("/proc/self"))  # /proc is still the one of the machine
    identity = {"pid": outer_pid, "ticks": kernel.start_ticks("self")}
    prepare_mounts(state_dir)
    sys.stdout.write(json.dumps(identity) + "\n")
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    keep(commit, state_dir / "state.json")


def prepare_mounts(state_dir: Path) -> None:
    """Give this mount namespace its own /proc, /sys, /run, /dev/shm, and a tmpfs for the hosts."""
    run = state_dir / "run"
    run.mkdir(parents=True, exist_ok=True)
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", run, "tmpfs", kernel.MS_NOSUID, "mode=755,size=4g")
    kernel.mount("proc", "/proc", "proc")
    # A network namespace shows its own devices only in a sysfs that was mounted inside of it; the
    # cgroup file systems below the old one are carried over.
    saved = run / "cgroup"
    saved.mkdir()
    kernel.bind("/sys/fs/cgroup", saved, recursive=True)
    kernel.mount("sysfs", "/sys", "sysfs")
    kernel.bind(saved, "/sys/fs/cgroup", recursive=True)
    kernel.mount("tmpfs", "/run", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755")
    Path("/run/lock").mkdir()
    kernel.mount("tmpfs", "/dev/shm", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=1777")
    system_config = Path("/etc/ssh/ssh_config")
    if system_config.exists():  # OpenSSH reads the account's home, not $HOME
        kernel.bind(state_dir / "home" / ".ssh" / "config", system_config)


def keep(commit: int, record: Path) -> None:
    """Reap orphans; end when the commit pipe closes without the word, or the lab's record is gone."""
    waker, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    committed = False
    while True:
        watched = [waker] if committed else [waker, commit]
        ready, _, _ = select.select(watched, [], [], LOOK_S)
        if waker in ready:
            os.read(waker, 4096)
            reap()
        if commit in ready:
            if not os.read(commit, 1):
                os._exit(1)
            committed = True
            os.close(commit)
        if not ready and not record.exists():
            os._exit(0)  # somebody removed the lab's folder without `down`


def reap() -> None:
    """Collect every child that has ended."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


if __name__ == "__main__":
    main()
