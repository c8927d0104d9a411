"""Facts: what an agent saw on a host, as frozen data. Absent is None or a named state, never 0 or ""."""

from __future__ import annotations

from enum import StrEnum

from opsctl.records import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """The identity of one process: a pid alone is reused, with its start and boot it is not.

    ``start_ticks`` is field 22 of /proc/PID/stat, in clock ticks since boot (see proc(5)).
    """

    boot_id: str
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Process:
    """One process as one agent sees it; ``pid`` and ``ppid`` are numbers of that agent's namespace."""

    identity: ProcessId
    ppid: int
    state: str  # one letter of proc(5): R S D Z T ...
    uid: int
    user: str | None
    comm: str  # 15 characters at most: never decide by it
    argv: tuple[str, ...]  # empty for kernel threads and zombies
    cgroup: str  # the unified path, or the longest v1 path; "" when it could not be read
    ns_pids: tuple[int, ...]  # NSpid, outermost first; (pid,) without a pid namespace
    pid_namespace: str | None  # e.g. "pid:[4026531836]"; None when it could not be read
    exe: str | None  # target of /proc/PID/exe
    session: int  # sid
    age_s: float

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def is_dead(self) -> bool:
        """A zombie has exited; only its parent has not collected it yet."""
        return self.state in ("Z", "X")

    @property
    def is_kernel_thread(self) -> bool:
        """Kernel threads are kthreadd's; inside a container pid 2 is a program like any other."""
        return 2 in (self.pid, self.ppid) and not self.argv and self.exe is None


@dataclass(frozen=True, slots=True)
class ProcessDetail:
    """What is read for candidates only, because it is slow or needs rights."""

    pid: int
    gpu_devices: tuple[str, ...] | None  # /dev/nvidia* held open or mapped; None: not permitted
    listening_ports: tuple[int, ...] | None
    environment_markers: dict[str, str] | None  # OPSCTL_* only; never anything else
    unit: str | None  # systemd unit of its cgroup
    parent_death_signal: int | None = None
    network_namespace: str | None = None  # its listening ports are that one's; None: not readable


class GpuRead(StrEnum):
    """How reading one GPU went."""

    OK = "ok"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One holder that NVML names; ``used_bytes`` None means NVML would not say."""

    pid: int  # of the host that owns the GPU, also when asked inside a container
    kind: str  # "C" compute, "G" graphics, "M" MPS
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One MIG device of a GPU; its memory is v1 (NVML has no v2 there)."""

    uuid: str
    total_bytes: int | None
    used_bytes: int | None
    processes: tuple[GpuProcess, ...] | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as NVML shows it. None everywhere means: could not be read, and is not zero."""

    uuid: str  # "unknown:INDEX" when a lost GPU does not tell
    index: int
    name: str | None
    read: GpuRead
    error: str | None  # NVML's words when read is not ok
    total_bytes: int | None
    used_bytes: int | None  # v2: without reserved; v1: with reserved, see memory_version
    reserved_bytes: int | None
    memory_version: int | None  # 2, or 1 ("includes reserved")
    processes: tuple[GpuProcess, ...] | None
    compute_capability: tuple[int, int] | None
    recovery_action: str | None  # none, reset, reboot, drain, drain-reset
    mig_enabled: bool | None
    ecc_uncorrected: int | None
    remap_pending: bool | None
    remap_failed: bool | None
    temperature_c: int | None
    utilisation_percent: int | None
    throttle_thermal: bool | None = None
    mig_instances: tuple[MigInstance, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuReport:
    """All GPUs of one host, or the reason why there are none."""

    state: str  # ok, no-library, driver-not-loaded, mismatch, no-permission, timeout, error, no-devices
    detail: str | None
    driver_version: str | None
    cuda_version: str | None  # highest the driver serves, e.g. "13.0"
    gpus: tuple[Gpu, ...]
    xids: tuple[str, ...] | None = None  # kernel log lines since boot; None: not readable
    kernel_module_version: str | None = None  # /proc/driver/nvidia/version


@dataclass(frozen=True, slots=True)
class Host:
    """What one kernel (or container) says of itself."""

    boot_id: str
    hostname: str
    kernel: str
    systemd: bool
    container: str | None  # "lxc", "docker", ...; None on bare metal or a VM
    pid_namespace: str | None
    uid: int
    python: str
    clock_ticks: int
    clock_s: float  # wall clock of the host, seconds since the epoch
    network_namespace: str | None = None
    uid_map: tuple[tuple[int, int, int], ...] = ()  # first uid here, the same outside, how many


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that a dead server left behind, or that looks like it."""

    kind: str  # shm, port, lock-file, jit-lock, unit, tmp
    path: str
    size_bytes: int | None
    owner_pid: int | None  # pid in the name or of the holder
    owner_alive: bool | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Package:
    """One installed distribution, as the launch interpreter sees it."""

    name: str
    version: str | None
    location: str | None  # folder of the imported package
    editable: bool | None
    interpreter: str
    others: tuple[str, ...] = ()  # further installations of the same name on this host
    error: str | None = None
    record: str | None = None  # its RECORD: the sha256 of every installed file
