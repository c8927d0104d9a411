"""NVML, asked in a process of its own: a call can hang in the driver, and only a process can be given up.

Sent to the host as data and run there by ``ops/gpu.py`` beside pynvml; Python 3.8, standard library only.
"""

from __future__ import annotations

import os

import pynvml as N

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from collections.abc import Callable
    from typing import Any

STATES = {
    N.NVML_ERROR_LIBRARY_NOT_FOUND: "no-library",
    N.NVML_ERROR_DRIVER_NOT_LOADED: "driver-not-loaded",
    N.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "mismatch",
    N.NVML_ERROR_NO_PERMISSION: "no-permission",
    N.NVML_ERROR_NOT_FOUND: "no-devices",
}
ABSENT = (
    N.NVML_ERROR_NOT_SUPPORTED,
    N.NVML_ERROR_FUNCTION_NOT_FOUND,
)  # this GPU or driver has it not
RECOVERY_ACTIONS = (
    "none",
    "reset",
    "reboot",
    "drain",
    "drain-reset",
    "recover-imex",
    "bus-reset",
    "system-reboot",
)
THERMAL = N.nvmlClocksEventReasonSwThermalSlowdown | N.nvmlClocksEventReasonHwThermalSlowdown
LIST_TRIES = 4  # processes may start between the question how many there are and the list of them
P2P_READ = 0  # nvml.h; in nvidia-ml-py (13.580) the constant is a tuple by mistake
UNKNOWN_VALUE = (1 << 64) - 1
handles: dict[str, Any] = {}  # by UUID; dropped as soon as one call fails
started = False


def main(receive: Callable[[], Any], reply: Callable[[Any], None]) -> None:
    """Answer ``("read",)``, ``("links",)`` and ``("memory", uuids)`` until the end of stdin."""
    while True:
        operation, *arguments = receive()
        reply(
            memory(*arguments)
            if operation == "memory"
            else links()
            if operation == "links"
            else read()
        )


def read() -> dict[str, Any]:
    """Return all GPUs, or the state that says why there are none."""
    problem = start()
    if problem is not None:
        return problem
    try:
        count = N.nvmlDeviceGetCount()
    except N.NVMLError as error:
        restart_next_time()
        return failure(error)
    if count == 0:
        return report("no-devices", "the driver is loaded and knows no GPU")
    found = report("ok", None)
    found["driver_version"] = attempt(N.nvmlSystemGetDriverVersion)
    cuda = attempt(N.nvmlSystemGetCudaDriverVersion_v2)
    found["cuda_version"] = None if cuda is None else "%d.%d" % (cuda // 1000, cuda % 1000 // 10)
    found["gpus"] = [read_gpu(index) for index in range(count)]
    return found


def links() -> dict[str, Any]:
    """Return each GPU's persistence mode, and for each pair whether one may read the other's memory.

    ``peers``: (UUID, UUID, status): 0 is ok, the others are NVML's nvmlGpuP2PStatus_t; None: not told.
    """
    problem = start()
    if problem is not None:
        return problem
    found = report("ok", None)
    named = {}
    for index in range(attempt(N.nvmlDeviceGetCount) or 0):
        handle = attempt(N.nvmlDeviceGetHandleByIndex, index)
        uuid = None if handle is None else attempt(N.nvmlDeviceGetUUID, handle)
        if uuid is not None:
            named[uuid] = handle
    found["persistence"] = {
        uuid: attempt(N.nvmlDeviceGetPersistenceMode, handle) for uuid, handle in named.items()
    }
    found["peers"] = [
        (
            one,
            other,
            attempt(N.nvmlDeviceGetP2PStatus, named[one], named[other], P2P_READ),
        )
        for number, one in enumerate(named)
        for other in list(named)[number + 1 :]
    ]
    return found


def memory(uuids: list[str]) -> dict[str, Any]:
    """Return memory and processes of the GPUs named, as quickly as NVML can: it is polled."""
    problem = start()
    if problem is not None:
        return problem
    found = report("ok", None)
    found["gpus"] = {uuid: memory_of(uuid) for uuid in uuids}
    return found


def start() -> dict[str, Any] | None:
    """Initialise NVML once; return the problem as a report where that fails."""
    global started
    if started:
        return None
    try:
        N.nvmlInit()
    except N.NVMLError as error:
        return failure(error)
    started = True
    return None


def restart_next_time() -> None:
    """Begin anew at the next call: the driver may have been reloaded."""
    global started
    handles.clear()
    if started:
        started = False
        attempt(N.nvmlShutdown)


def report(state: str, detail: str | None) -> dict[str, Any]:
    return {
        "state": state,
        "detail": detail,
        "driver_version": None,
        "cuda_version": None,
        "gpus": [],
        "library_version": library_version(),
    }


def failure(error: Any) -> dict[str, Any]:
    return report(STATES.get(error.value, "error"), str(error))


def library_version() -> str | None:
    """Return the version in the file name of the loaded library (libnvidia-ml.so.570.148.08)."""
    try:
        with open("/proc/self/maps") as maps:
            paths = [line.split()[-1] for line in maps if "libnvidia-ml.so" in line]
    except OSError:
        return None
    tail = os.path.basename(paths[0]).partition(".so.")[2] if paths else ""
    return tail if "." in tail else None


def attempt(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what NVML says, None where it does not."""
    try:
        return function(*arguments)
    except N.NVMLError:
        return None


def number(value: Any) -> int | None:
    """Return a count of bytes, None where NVML fills the field with ones for "not available"."""
    return None if value is None or int(value) == UNKNOWN_VALUE else int(value)


def read_gpu(index: int) -> dict[str, Any]:
    """Return one GPU; a lost one does not hide the others, and its known fields stay known."""
    gpu = empty_gpu(index)
    try:
        handle = N.nvmlDeviceGetHandleByIndex(index)
        gpu["uuid"] = N.nvmlDeviceGetUUID(handle)
    except N.NVMLError as error:
        return fail_gpu(gpu, error)
    gpu["name"] = attempt(N.nvmlDeviceGetName, handle)
    mig = attempt(N.nvmlDeviceGetMigMode, handle)
    gpu["mig_enabled"] = None if mig is None else mig[0] == 1
    if gpu["mig_enabled"]:
        gpu["mig_instances"] = mig_instances(handle)
    try:
        fill_memory(gpu, handle)
    except N.NVMLError as error:
        return fail_gpu(gpu, error)
    fill_health(gpu, handle)
    return gpu


def empty_gpu(index: int) -> dict[str, Any]:
    return {
        "uuid": "unknown:%d" % index,
        "index": index,
        "name": None,
        "read": "ok",
        "error": None,
        "total_bytes": None,
        "used_bytes": None,
        "reserved_bytes": None,
        "memory_version": None,
        "processes": None,
        "compute_capability": None,
        "recovery_action": None,
        "mig_enabled": None,
        "ecc_uncorrected": None,
        "remap_pending": None,
        "remap_failed": None,
        "temperature_c": None,
        "utilisation_percent": None,
        "throttle_thermal": None,
        "mig_instances": [],
    }


def fail_gpu(gpu: dict[str, Any], error: Any) -> dict[str, Any]:
    lost = error.value == N.NVML_ERROR_GPU_IS_LOST
    gpu["read"] = "lost" if lost else "unknown"
    gpu["error"] = str(error)
    return gpu


def fill_memory(gpu: dict[str, Any], handle: Any) -> None:
    """Fill in memory (v2 has the reserved part apart, v1 counts it as used) and the processes."""
    version, found = 2, None
    try:
        found = N.nvmlDeviceGetMemoryInfo(handle, version=N.nvmlMemory_v2)
    except N.NVMLError as error:
        if error.value == N.NVML_ERROR_GPU_IS_LOST:
            raise
        version = 1
    try:
        found = found or N.nvmlDeviceGetMemoryInfo(handle)
    except N.NVMLError as error:
        if error.value not in ABSENT:
            raise
        gpu["error"] = "memory: %s" % error
    if found is not None:
        gpu["memory_version"] = version
        gpu["total_bytes"] = number(found.total)
        gpu["used_bytes"] = number(found.used)
        gpu["reserved_bytes"] = number(found.reserved) if version == 2 else None
    gpu["read"] = "ok" if gpu["used_bytes"] is not None else "unknown"
    try:
        gpu["processes"] = processes(handle)
    except N.NVMLError as error:
        if error.value == N.NVML_ERROR_GPU_IS_LOST:
            raise
        gpu["error"] = "processes: %s" % error


def processes(handle: Any) -> list[tuple[int, str, int | None]]:
    """Return (pid, kind, bytes) of all holders; pids are the host's. Raises when NVML would not say."""
    found = [(item.pid, "C", number(item.usedGpuMemory)) for item in listed("Compute", handle)]
    for kind, name in (("G", "Graphics"), ("M", "MPSCompute")):
        try:
            items = listed(name, handle)
        except N.NVMLError as error:
            if error.value not in ABSENT:
                raise
            continue
        found += [(item.pid, kind, number(item.usedGpuMemory)) for item in items]
    return found


def listed(name: str, handle: Any) -> list[Any]:
    """Ask for one kind of process; drivers before 510 have only version 2 of the call."""
    call = "nvmlDeviceGet%sRunningProcesses_v%d"
    version = 3
    for tries_left in range(LIST_TRIES, 0, -1):
        try:
            return list(getattr(N, call % (name, version))(handle))
        except N.NVMLError as error:
            if error.value == N.NVML_ERROR_FUNCTION_NOT_FOUND and version == 3:
                version = 2
            elif error.value != N.NVML_ERROR_INSUFFICIENT_SIZE or tries_left == 1:
                raise
    return []  # not reached


def mig_instances(handle: Any) -> list[dict[str, Any]]:
    """Return the MIG devices of one GPU with their own memory and processes."""
    found = []
    for index in range(attempt(N.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        device = attempt(N.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        uuid = None if device is None else attempt(N.nvmlDeviceGetUUID, device)
        if uuid is None:
            continue
        info = attempt(N.nvmlDeviceGetMemoryInfo, device)
        found.append(
            {
                "uuid": uuid,
                "total_bytes": None if info is None else number(info.total),
                "used_bytes": None if info is None else number(info.used),
                "processes": attempt(processes, device),
            }
        )
    return found


def fill_health(gpu: dict[str, Any], handle: Any) -> None:
    """Fill in what gates the next launch; what this GPU does not have stays None."""
    gpu["compute_capability"] = attempt(N.nvmlDeviceGetCudaComputeCapability, handle)
    gpu["recovery_action"] = recovery_action(handle)
    gpu["ecc_uncorrected"] = attempt(
        N.nvmlDeviceGetTotalEccErrors,
        handle,
        N.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        N.NVML_VOLATILE_ECC,
    )
    remapped = attempt(N.nvmlDeviceGetRemappedRows, handle)
    if remapped is not None:
        gpu["remap_pending"], gpu["remap_failed"] = bool(remapped[2]), bool(remapped[3])
    gpu["temperature_c"] = attempt(N.nvmlDeviceGetTemperature, handle, N.NVML_TEMPERATURE_GPU)
    utilisation = attempt(N.nvmlDeviceGetUtilizationRates, handle)
    gpu["utilisation_percent"] = None if utilisation is None else utilisation.gpu
    reasons = attempt(N.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is None:  # drivers before 535 know it under its old name
        reasons = attempt(N.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    gpu["throttle_thermal"] = None if reasons is None else bool(reasons & THERMAL)


def recovery_action(handle: Any) -> str | None:
    """Return what the driver says must be done to this GPU, None where it does not tell (before 565)."""
    values = attempt(N.nvmlDeviceGetFieldValues, handle, [N.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if not values or values[0].nvmlReturn != N.NVML_SUCCESS:
        return None
    action = values[0].value.uiVal
    return RECOVERY_ACTIONS[action] if action < len(RECOVERY_ACTIONS) else "unknown:%d" % action


def memory_of(uuid: str) -> dict[str, Any]:
    """Return the memory part of one GPU or MIG device by UUID."""
    gpu: dict[str, Any] = dict.fromkeys(
        ("used_bytes", "reserved_bytes", "memory_version", "processes")
    )
    gpu.update(error=None, mig_instances=[])
    try:
        if uuid not in handles:
            handles[uuid] = N.nvmlDeviceGetHandleByUUID(uuid)
        fill_memory(gpu, handles[uuid])
    except N.NVMLError as error:
        fail_gpu(gpu, error)
        gone = (N.NVML_ERROR_UNINITIALIZED, N.NVML_ERROR_DRIVER_NOT_LOADED)
        handle = handles.pop(uuid, None)
        if error.value in gone:
            restart_next_time()
        elif handle is not None:
            fill_instances(gpu, handle)
        return gpu
    fill_instances(gpu, handles[uuid])
    return gpu


def fill_instances(gpu: dict[str, Any], handle: Any) -> None:
    """Fill in the MIG instances where only they tell what is used."""
    if gpu["used_bytes"] is None and gpu.get("read") != "lost":
        mig = attempt(N.nvmlDeviceGetMigMode, handle)
        if mig is not None and mig[0] == 1:
            gpu["mig_instances"] = mig_instances(handle)
