"""The lab's NVML library through pynvml: identities, memory, holders, and every fault."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.lab import gpus, nvml
from tests.lab.errors import LabError
from tests.lab.fixture import wait_until
from tests.lab.instance import find_instance

pytestmark = pytest.mark.lab
HOLD = Path(__file__).with_name("hold.py")
MIB = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A set of GPUs of its own; the library is loaded first, so pynvml finds it by its name."""
    folder = tmp_path_factory.mktemp("gpus")
    gpus.create(folder, "test")
    ctypes.CDLL(str(nvml.compiled_library(find_instance())))
    before = os.environ.get("NVML_LAB_DIR")
    os.environ["NVML_LAB_DIR"] = str(folder)
    yield folder
    if before is None:
        del os.environ["NVML_LAB_DIR"]
    else:
        os.environ["NVML_LAB_DIR"] = before


@pytest.fixture
def whole(folder: Path) -> Iterator[Path]:
    """The set without faults, NVML started."""
    gpus.clear_faults(folder)
    pynvml.nvmlInit()
    yield folder
    gpus.clear_faults(folder)
    pynvml.nvmlShutdown()


def handle(index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def memory_v2(index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetMemoryInfo(handle(index), version=pynvml.nvmlMemory_v2)


def start_holder(folder: Path, *options: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, str(HOLD), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NVML_LAB_DIR": str(folder)},
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("holding")
    return process


def end(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()
        process.wait(10)


def test_eight_blackwell_gpus_with_a_cuda_13_driver(whole: Path) -> None:
    """Name, compute capability, memory, versions and UUIDs are those of the incident's machine."""
    count = pynvml.nvmlDeviceGetCount()
    names = {pynvml.nvmlDeviceGetName(handle(index)) for index in range(count)}

    assert count == 8
    assert names == {"NVIDIA RTX PRO 6000 Blackwell Server Edition"}
    assert pynvml.nvmlDeviceGetCudaComputeCapability(handle()) == (12, 0)
    assert memory_v2().total == 97887 * MIB
    assert pynvml.nvmlSystemGetCudaDriverVersion() == 13000
    assert pynvml.nvmlSystemGetDriverVersion() == "580.95.05"
    assert [pynvml.nvmlDeviceGetUUID(handle(i)) for i in range(8)] == gpus.uuids(whole)
    assert pynvml.nvmlDeviceGetPciInfo(handle(1)).busId == "00000000:21:00.0"
    uuid = gpus.uuids(whole)[5]
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == 5


def test_memory_belongs_to_processes_and_v1_includes_the_reserve(whole: Path) -> None:
    """v2 has used and reserved apart, v1 together; holders are named with what they hold."""
    first = start_holder(whole, "--gpu", "2", "--mib", "1000")
    second = start_holder(whole, "--gpu", "2", "--mib", "500", "--kind", "graphics")
    try:
        info = memory_v2(2)
        compute = pynvml.nvmlDeviceGetComputeRunningProcesses(handle(2))
        graphics = pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle(2))

        assert (info.used, info.reserved) == (1500 * MIB, gpus.RESERVED_MIB * MIB)
        assert pynvml.nvmlDeviceGetMemoryInfo(handle(2)).used == info.used + info.reserved
        assert [(p.pid, p.usedGpuMemory) for p in compute] == [(first.pid, 1000 * MIB)]
        assert [(p.pid, p.usedGpuMemory) for p in graphics] == [(second.pid, 500 * MIB)]
        assert pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle(2)) == []
        assert memory_v2(3).used == 0
    finally:
        end(first)
        end(second)
    wait_until(lambda: memory_v2(2).used == 0, 10, "memory is free after SIGKILL")


def test_a_holder_that_asks_nvml_itself_keeps_its_memory(whole: Path) -> None:
    """POSIX locks go when any descriptor of the file is closed: neither side ever closes one."""
    script = (
        "import ctypes, sys; sys.path.insert(0, sys.argv[1]); import hold\n"
        "ctypes.CDLL(sys.argv[2]); import pynvml as n\n"
        "held = hold.Hold(1, 300); n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(1)\n"
        "read = lambda: n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).used >> 20\n"
        "a = read(); n.nvmlShutdown(); n.nvmlInit(); b = read(); held.grow(50); c = read()\n"
        "more = hold.Hold(1, 7); more.release(); d = read(); held.release(); print(a, b, c, d, read())"
    )
    library = str(nvml.compiled_library(find_instance()))
    done = subprocess.run(
        [sys.executable, "-c", script, str(HOLD.parent), library],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )

    assert done.stdout.split() == ["300", "300", "350", "350", "0"], done.stderr


def test_a_full_gpu_refuses_and_takes_nothing(whole: Path) -> None:
    """The second holder gets CUDA's words, and the free part stays free."""
    room = gpus.TOTAL_MIB - gpus.RESERVED_MIB
    first = start_holder(whole, "--gpu", "4", "--mib", str(room - 100))
    try:
        argv = [sys.executable, str(HOLD), "--gpu", "4", "--mib", "101"]
        refused = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)

        assert refused.returncode == 1
        assert "CUDA out of memory. Tried to allocate 101 MiB" in refused.stderr
        assert memory_v2(4).free == 100 * MIB
    finally:
        end(first)


def code_of(call: Callable[[], object]) -> int | None:
    """Return NVML's error code, None when the call worked."""
    try:
        call()
    except pynvml.NVMLError as error:
        return int(error.value)
    return None


@pytest.mark.parametrize(
    ("fault", "call", "code"),
    [
        ("lost", lambda: handle(3), pynvml.NVML_ERROR_GPU_IS_LOST),
        ("driver-not-loaded", pynvml.nvmlInit, pynvml.NVML_ERROR_DRIVER_NOT_LOADED),
        ("mismatch", pynvml.nvmlInit, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH),
        ("memory-unavailable", lambda: memory_v2(3), pynvml.NVML_ERROR_NOT_SUPPORTED),
        ("no-memory-v2", lambda: memory_v2(3), pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
        ("function-not-found", lambda: memory_v2(3), pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
        ("no-permission", lambda: memory_v2(3), pynvml.NVML_ERROR_NO_PERMISSION),
    ],
)
def test_faults_that_refuse_calls(
    whole: Path, fault: str, call: Callable[[], object], code: int
) -> None:
    """Each gives NVML's own code on GPU 3, and GPU 2 (where the fault is per GPU) is well."""
    gpus.set_fault(whole, fault, 3)

    assert code_of(call) == code
    if gpus.FAULTS[fault][0]:
        assert code_of(lambda: memory_v2(2)) is None
    gpus.clear_faults(whole)
    assert code_of(call) is None
    if call is pynvml.nvmlInit:
        pynvml.nvmlShutdown()


def test_faults_that_change_values(whole: Path) -> None:
    """Reserve, leak, heat, load, ECC, remapping, recovery action."""
    gpu = handle(0)
    for name, value in (("reserved", "912"), ("leak", "77"), ("hot", "96"), ("busy", "88")):
        gpus.set_fault(whole, name, 0, value)
    for name in ("ecc", "remap-pending", "remap-failed"):
        gpus.set_fault(whole, name, 0)

    assert (memory_v2(0).reserved, memory_v2(0).used) == (912 * MIB, 77 * MIB)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(gpu) == []
    assert pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU) == 96
    reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    assert reasons & pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    assert pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu == 88
    assert pynvml.nvmlDeviceGetTotalEccErrors(gpu, 1, 0) == 3
    assert list(pynvml.nvmlDeviceGetRemappedRows(gpu))[1:] == [1, 1, 1]
    assert list(pynvml.nvmlDeviceGetRemappedRows(handle(1))) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("word", "action"),
    [
        ("reset", pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET),
        ("reboot", pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT),
        ("drain", pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P),
        ("drain-reset", pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET),
    ],
)
def test_the_recovery_action_is_field_230(whole: Path, word: str, action: int) -> None:
    """nvidia-ml-py has no function for it; the field value has."""
    gpus.set_fault(whole, "recovery", 1, word)

    field = pynvml.nvmlDeviceGetFieldValues(handle(1), [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])

    assert (field[0].nvmlReturn, field[0].value.uiVal) == (0, action)


def test_mig_shows_instances_with_uuids_of_their_own(whole: Path) -> None:
    """Two instances per GPU; utilisation is not supported then."""
    gpus.set_fault(whole, "mig", 6)

    assert pynvml.nvmlDeviceGetMigMode(handle(6)) == [1, 1]
    found = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(6), index) for index in (0, 1)]
    assert all(pynvml.nvmlDeviceGetUUID(mig).startswith("MIG-") for mig in found)
    assert code_of(lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(6), 2)) == 6
    assert code_of(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle(6))) == 3
    assert pynvml.nvmlDeviceGetMigMode(handle(5)) == [0, 0]


def test_holders_memory_can_be_unavailable(whole: Path) -> None:
    """pynvml gives None, which is not zero."""
    gpus.set_fault(whole, "process-memory-unavailable", 0)
    holder = start_holder(whole, "--mib", "10")
    try:
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle(0))

        assert [(process.pid, process.usedGpuMemory) for process in found] == [(holder.pid, None)]
    finally:
        end(holder)


@pytest.mark.parametrize("where", ["init", "handle", "memory", "processes"])
def test_a_hang_never_returns(whole: Path, where: str) -> None:
    """The call sleeps for ever; only the process's death ends it."""
    gpus.set_fault(whole, "hang", 0, where)
    script = (
        "import ctypes, sys; ctypes.CDLL(sys.argv[1]); import pynvml as n; n.nvmlInit()\n"
        "h = n.nvmlDeviceGetHandleByIndex(0); n.nvmlDeviceGetMemoryInfo(h)\n"
        "n.nvmlDeviceGetComputeRunningProcesses(h); print('through')"
    )
    argv = [sys.executable, "-c", script, str(nvml.compiled_library(find_instance()))]
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(argv, capture_output=True, timeout=1, check=False)
    gpus.clear_faults(whole)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)

    assert done.stdout == "through\n", done.stderr


def test_unknown_faults_are_named(whole: Path) -> None:
    """A typo lists what there is."""
    with pytest.raises(LabError, match="no fault 'lsot'; there are: busy, driver-not-loaded"):
        gpus.set_fault(whole, "lsot")
    with pytest.raises(LabError, match="no GPU 8; there are 0 to 7"):
        gpus.set_fault(whole, "lost", 8)
