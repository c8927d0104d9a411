"""Far side of the doctor: what a machine and an interpreter offer. Measures; nothing is judged here."""

from __future__ import annotations

import os
import resource
import subprocess

from opsctl.agent.ops import preflight, procfs

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

CAP_SYS_RESOURCE = 24  # capabilities(7)
SYSTEMCTL_S = 10.0

# Run by the interpreter that launches the server. Reads metadata only: importing torch takes seconds.
PACKAGES = """
import importlib.metadata as m, json, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
try: requires = m.requires("sglang") or []
except m.PackageNotFoundError: requires = []
names = sys.argv[1:]
print("opsctl-reply:" + json.dumps({"python": sys.version.split()[0], "requires": requires,
  "versions": {name: version(name) for name in names}}))
"""


def machine(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return shared memory, room in ``folders``, limits, IOMMU, NVSwitch, failed units of ours.

    What cannot be read is None.
    """
    return {
        "shm": preflight.room("/dev/shm"),
        "folders": {path: preflight.room(path) for path in request["folders"]},
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE),
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK),
        "limits_raisable": preflight.has_capability(CAP_SYS_RESOURCE),
        "pidfd": hasattr(os, "pidfd_open"),
        "iommu_groups": iommu_groups(),
        "nvswitch": os.path.exists("/dev/nvidia-nvswitchctl"),
        "daemons": daemons(),
        "units": units(),
    }


def iommu_groups() -> int | None:
    """Return how many devices are in IOMMU groups of the translating kind, None where sysfs does not tell.

    Source: Documentation/ABI/testing/sysfs-kernel-iommu_groups: type is DMA, DMA-FQ, identity or blocked.
    """
    base = "/sys/kernel/iommu_groups"
    try:
        groups = os.listdir(base)
    except OSError:
        return None
    kinds = (procfs.read("%s/%s/type" % (base, group)) or b"" for group in groups)
    return sum(kind.strip().startswith(b"DMA") for kind in kinds)


def daemons() -> list[str]:
    """Return which of NVIDIA's daemons run here, by the name of their program."""
    wanted = ("nvidia-persistenced", "nv-fabricmanager", "nv-hostengine")
    found = set()
    for pid in procfs.pids():
        name = os.path.basename(procfs.readlink("/proc/%d/exe" % pid) or "")
        if name in wanted:
            found.add(name)
    return sorted(found)


def units() -> list[dict[str, str]] | None:
    """Return the transient units of opsctl that systemd still knows, None without systemd."""
    if not os.path.isdir("/run/systemd/system"):
        return None
    argv = ["systemctl", "--no-ask-password", "list-units", "--all", "--plain", "--no-legend"]
    try:
        done = subprocess.run(
            [*argv, "opsctl-*"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SYSTEMCTL_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    rows = [line.split(None, 4) for line in procfs.text(done.stdout).splitlines()]
    return [{"unit": row[0], "active": row[2], "sub": row[3]} for row in rows if len(row) >= 4]


def packages(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return versions of ``names`` as the launch interpreter sees them, and what sglang asks for.

    Request: python, cwd, env, names. Also ``nvcc``: what ``nvcc --version`` prints in that environment.
    """
    found = preflight.ask(request, PACKAGES, request["names"], request.get("timeout_s", 20.0))
    found["nvcc"] = nvcc((request.get("env") or {}).get("PATH"))
    return found


def nvcc(path: str | None) -> str | None:
    """Return what the CUDA compiler on a PATH says of itself, None where there is none."""
    import shutil

    program = shutil.which("nvcc", path=path)
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=10.0,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return procfs.text(done.stdout)


OPERATIONS = {"machine": machine, "packages": packages}
