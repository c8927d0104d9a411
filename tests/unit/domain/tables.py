"""Process tables and GPU readings, written as data."""

from __future__ import annotations

from typing import Any

from opsctl.domain.gpu import GpuHolder
from opsctl.domain.protection import View
from opsctl.domain.server import ServerIdentity
from opsctl.facts import Gpu, GpuProcess, GpuRead, GpuReport, Process, ProcessDetail, ProcessId

BOOT = "b00t"
HOST_NS = "pid:[4026531836]"
PYTHON = "/usr/bin/python3.11"
AGENT = 900
GPU0, GPU1, GPU2 = "GPU-aaaa0000", "GPU-bbbb1111", "GPU-cccc2222"

LAUNCH = ("python3", "-m", "sglang.launch_server", "--model-path", "/models/m", "--port", "30000")


def proc(pid: int, ppid: int = 1, argv: tuple[str, ...] | str = (), **changes: Any) -> Process:
    """Return one process; argv as a string is split at blanks."""
    words = tuple(argv.split()) if isinstance(argv, str) else argv
    boot = changes.pop("boot_id", BOOT)
    start = changes.pop("start", 1000 + pid)
    values: dict[str, Any] = {
        "identity": ProcessId(boot, pid, start),
        "ppid": ppid,
        "state": "S",
        "uid": 0,
        "user": "root",
        "comm": (words[0].rsplit("/", 1)[-1] if words else "x")[:15],
        "argv": words,
        "cgroup": "/user.slice/user-0.slice/session-1.scope",
        "ns_pids": (pid,),
        "pid_namespace": HOST_NS,
        "exe": PYTHON if words and words[0].rsplit("/", 1)[-1].startswith("python") else None,
        "session": pid,
        "age_s": 100.0,
    }
    values.update(changes)
    return Process(**values)


def title(pid: int, ppid: int, text: str, **changes: Any) -> Process:
    """Return an SGLang worker: its title over argv, the interpreter as executable."""
    return proc(pid, ppid, (text, "", ""), exe=PYTHON, **changes)


def system(*more: Process) -> list[Process]:
    """Return pid 1, an ssh login with the agent in it, and what a test adds."""
    return [
        proc(1, 0, "/sbin/init", exe="/usr/lib/systemd/systemd", cgroup="/init.scope", session=1),
        proc(2, 0, (), cgroup="/", session=0),
        proc(50, 2, (), cgroup="/", session=0),
        proc(700, 1, "sshd: /usr/sbin/sshd -D", exe="/usr/sbin/sshd", session=700),
        proc(800, 700, "sshd: root@notty", exe="/usr/sbin/sshd", session=800),
        proc(810, 800, "bash -c python3 -I -S -u -c BOOT", exe="/bin/bash", session=810),
        proc(AGENT, 810, "python3 -I -S -u -c BOOT", session=810),
        *more,
    ]


def server(**changes: Any) -> ServerIdentity:
    """Return the site's server glm5 on port 30000."""
    values: dict[str, Any] = {
        "name": "glm5",
        "port": 30000,
        "model": "/models/m",
        "python": "/opt/sglang/bin/python",
        "gpu_uuids": frozenset({GPU0, GPU1}),
    }
    values.update(changes)
    return ServerIdentity(**values)


def view(**changes: Any) -> View:
    values: dict[str, Any] = {"agent_pid": AGENT, "uid": 0, "owner_uid": 0}
    values.update(changes)
    return View(**values)


def hold(uuid: str, pid: int, used_bytes: int | None = 40 << 30, kind: str = "C") -> GpuHolder:
    return GpuHolder(uuid, pid, kind, used_bytes)


def detail(pid: int, **changes: Any) -> ProcessDetail:
    values: dict[str, Any] = {
        "pid": pid,
        "gpu_devices": (),
        "listening_ports": (),
        "environment_markers": {},
        "unit": None,
    }
    values.update(changes)
    return ProcessDetail(**values)


def gpu(uuid: str = GPU0, index: int = 0, used: int | None = 0, **changes: Any) -> Gpu:
    """Return one healthy idle card; ``holders`` is a list of (pid, bytes) or (pid, bytes, kind)."""
    holders = changes.pop("holders", ())
    processes = tuple(GpuProcess(h[0], h[2] if len(h) > 2 else "C", h[1]) for h in holders)
    values: dict[str, Any] = {
        "uuid": uuid,
        "index": index,
        "name": "NVIDIA H200",
        "read": GpuRead.OK,
        "error": None,
        "total_bytes": 143771 << 20,
        "used_bytes": used,
        "reserved_bytes": 615 << 20,
        "memory_version": 2,
        "processes": processes,
        "compute_capability": (9, 0),
        "recovery_action": "none",
        "mig_enabled": False,
        "ecc_uncorrected": 0,
        "remap_pending": False,
        "remap_failed": False,
        "temperature_c": 31,
        "utilisation_percent": 0,
    }
    values.update(changes)
    return Gpu(**values)


def report(*gpus: Gpu, **changes: Any) -> GpuReport:
    values: dict[str, Any] = {
        "state": "ok",
        "detail": None,
        "driver_version": "570.148.08",
        "cuda_version": "12.8",
        "gpus": gpus,
        "xids": (),
    }
    values.update(changes)
    return GpuReport(**values)
