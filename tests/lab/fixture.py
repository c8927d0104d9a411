"""The lab as tests use it: programs inside, hosts, GPUs, and a clean state before each test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab import cgroups, gpus, kernel
from tests.lab.enter import enter_argv, lab_environment, run_inside
from tests.lab.errors import LabError
from tests.lab.instance import CHECKOUT, Instance, Record


@dataclass(frozen=True, slots=True)
class Result:
    """What a program in the lab printed and how it ended."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Lab:
    """A lab that is up."""

    instance: Instance
    record: Record

    @property
    def ssh_config(self) -> Path:
        return self.instance.ssh_config

    @property
    def site_file(self) -> Path:
        """The site file with the odd corners, where the lab has one."""
        corners = self.instance.corners_file
        return corners if self.record.mode == "hosts" else self.instance.site_file

    def gpu_dir(self, owner: str = "pve1") -> Path:
        """Return the folder of the GPUs that a host owns, for gpus.set_fault and friends."""
        return self.instance.gpu_dirs / owner

    def run(
        self, argv: Sequence[str], *, timeout_s: float = 60, stdin: bytes = b"", **env: str
    ) -> Result:
        """Run a program on the lab's control machine."""
        done = run_inside(
            self.instance,
            self.record,
            argv,
            timeout_s=timeout_s,
            stdin=stdin,
            extra_env={"OPSCTL_SITE": str(self.site_file), **env},
            cwd=CHECKOUT,
        )
        return Result(done.returncode, _text(done.stdout), _text(done.stderr))

    def opsctl(self, arguments: Sequence[str], *, timeout_s: float = 60, **env: str) -> Result:
        """Run this checkout's opsctl on the lab's control machine, with the lab's site file."""
        argv = [sys.executable, "-m", "opsctl", *arguments]
        return self.run(argv, timeout_s=timeout_s, **env)

    def popen(
        self, argv: Sequence[str], env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program on the control machine with pipes; the caller ends it."""
        return subprocess.Popen(
            enter_argv(self.instance, self.record, argv, CHECKOUT),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=lab_environment(
                self.instance, self.record, {"OPSCTL_SITE": str(self.site_file), **(env or {})}
            ),
        )

    def ssh(self, host: str, *words: str, timeout_s: float = 30, stdin: bytes = b"") -> Result:
        """Run a command line on a host through OpenSSH; words are joined by blanks, as ssh does."""
        argv = ["ssh", "-F", str(self.ssh_config), host, *words]
        return self.run(argv, timeout_s=timeout_s, stdin=stdin)

    def on(self, host: str, argv: Sequence[str], *, timeout_s: float = 30) -> Result:
        """Run one argv on pve1 or gpu1 without ssh (lxc-attach), or in ct129/ct130 from the node."""
        return self.run(self.host_argv(host, argv), timeout_s=timeout_s)

    def host_argv(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the argv, for `popen`, that runs ``argv`` on a host or in ct129/ct130."""
        if host.startswith("ct"):
            inner = ["/usr/bin/lxc-attach", "-n", host.removeprefix("ct"), "--clear-env", "--"]
            return self.host_argv("pve1", [*inner, *argv])
        lxc = ["lxc-attach", "-P", str(self.instance.dir / "lxc"), "-n", host, "--clear-env", "--"]
        return [*lxc, *argv]

    def outer_pid(self, host: str, pid: int) -> int:
        """Return the number, on this machine, of process ``pid`` of a host or container."""
        namespace = self.on(host, ["/usr/bin/readlink", "/proc/1/ns/pid"]).stdout.strip()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(entry / "ns/pid") != namespace:
                    continue
                status = (entry / "status").read_text()
            except OSError:
                continue
            if int(status.split("NSpid:")[1].splitlines()[0].split()[-1]) == pid:
                return int(entry.name)
        raise AssertionError(f"no process {pid} on {host}")

    @contextmanager
    def start_as(self, host: str, pid: int, argv: Sequence[str]) -> Iterator[int]:
        """Run ``argv`` on a host under a pid that is free by now; yields its start ticks."""
        script = ["/usr/bin/python3", "/opt/lab-src/pid_reuse.py", str(pid), "--", *argv]
        with self.popen(self.host_argv(host, script)) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            words = process.stdout.readline().split()
            assert words, process.stderr.read(2000).decode()
            try:
                yield int(words[1])
            finally:
                self.on(host, ["/usr/bin/kill", "-9", str(pid)])
                process.wait(10)

    def switch(self, **switches: object) -> None:
        """Set what tests/lab/node/switches.py lists, all of it anew; `restore` clears it."""
        write = 'mkdir -p "${2%/*}"; printf %s "$1" >"$2.new"; mv "$2.new" "$2"'
        path = "/var/lib/lab-pve/switches.json"
        done = self.on("pve1", ["/bin/sh", "-c", write, "sh", json.dumps(switches), path])
        assert done.exit_code == 0, done.stderr

    def pct(self, *words: str, timeout_s: float = 60) -> Result:
        """Run pct on the node."""
        return self.on("pve1", ["/usr/sbin/pct", *words], timeout_s=timeout_s)

    @contextmanager
    def holding(self, host: str, gpu: int, mib: int, *options: str) -> Iterator[int]:
        """Hold GPU memory with a process on a host; yields its pid on that host."""
        script = ["/usr/bin/python3", "/opt/lab-src/hold.py", "--gpu", str(gpu), "--mib", str(mib)]
        with self.popen(self.host_argv(host, [*script, *options])) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline().decode()
                assert "as pid" in line, (line, process.stderr and process.stderr.read(2000))
                pid = int(line.rsplit(" ", 1)[1])
                yield pid
            finally:
                self.on(host, ["/usr/bin/kill", "-9", str(pid)])
                process.kill()

    def restore(self) -> None:
        """Undo what a cut test left: frozen processes, a locked or stopped container 129, 130 running.

        Raises:
            LabError: a host does not answer, or container 129 does not start.
        """
        cgroups.thaw(self.instance.cgroup)
        script = ["/usr/bin/python3", "-IS", "/opt/lab-src/node/restore.py"]
        done = self.on("pve1", script, timeout_s=60)
        if done.exit_code != 0:
            raise LabError(f"the node is not well: {done.stderr.strip() or done.exit_code}")

    def clean_gpus(self) -> None:
        """Switch all faults off and end whoever holds GPU memory, in every set."""
        for folder in self.instance.gpu_dirs.iterdir():
            gpus.clear_faults(folder)
            gpus.clear_xids(folder)
            for pid in holders(folder):
                with _gone_is_fine():
                    os.kill(pid, signal.SIGKILL)
            wait_until(lambda folder=folder: not holders(folder), 5, "GPU memory is free")

    def clean(self) -> None:
        """Bring hosts, containers and GPUs back to how `up` makes them."""
        self.restore()
        self.clean_gpus()


def holders(folder: Path) -> list[int]:
    """Return the pids, as this process sees them, that hold memory of a set of GPUs."""
    inodes = {path.stat().st_ino for path in folder.glob("gpu*.mem")}
    found = set()
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.replace("->", "").split()
        if words[1] == "POSIX" and int(words[5].rsplit(":", 1)[1]) in inodes:
            found.add(int(words[4]))
    return sorted(pid for pid in found if pid > 0)


def wait_until(claim: object, timeout_s: float, what: str) -> None:
    """Wait until ``claim()`` is true; fail with ``what`` when time is up."""
    assert callable(claim)
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    try:
        yield
    except ProcessLookupError:
        pass


_way_back: list[int] = []  # the network namespace that this process came from


@contextmanager
def in_network(instance: Instance, record: Record) -> Iterator[None]:
    """Put this thread into the lab's network, so that clients in the test process reach the hosts."""
    if record.keeper_pid is None or instance.is_inside():
        yield
        return
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        kernel.setns(f"/proc/{record.keeper_pid}/ns/net", kernel.NEWNET)
        _way_back.append(own)
        try:
            yield
        finally:
            _way_back.remove(own)
            kernel.setns(f"/proc/self/fd/{own}", kernel.NEWNET)
    finally:
        os.close(own)


@contextmanager
def outside_network() -> Iterator[None]:
    """Leave the lab's network for the block, to install something; nothing to do when not in it."""
    if not _way_back:
        yield
        return
    inside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        kernel.setns(f"/proc/self/fd/{_way_back[-1]}", kernel.NEWNET)
        try:
            yield
        finally:
            kernel.setns(f"/proc/self/fd/{inside}", kernel.NEWNET)
    finally:
        os.close(inside)


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
