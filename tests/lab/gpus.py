"""The lab's GPUs: sets of eight with their state in a folder, and the faults that can be switched on.

A folder holds ``gpus`` (one line a GPU), ``driver``, ``faults``, and ``gpuN.mem``: the memory of GPU N, one
byte of lock range per MiB held (see hold.py). The NVML library reads the folder anew on every call.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.lab.errors import LabError

COUNT = 8
NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
TOTAL_MIB = 97887
# What an idle card keeps for itself; v1 "used" includes it. Measured on other cards: 308 to 912 MB.
RESERVED_MIB = 615
DRIVER = "580.95.05"
PROC_DRIVER = "proc-driver"  # folder that the owning host shows as /proc/driver
CUDA = 13000
NODES = [
    *(f"/dev/nvidia{index}" for index in range(COUNT)),
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
]
# A device node needs a driver that lets it be opened and held; these two ship with every kernel.
CONTROL_NODE, UVM_NODE = (1, 3), (10, 200)

# fault -> (per GPU?, default value, meaning)
FAULTS = {
    "lost": (True, "", "the GPU fell off the bus: every call on it says GPU is lost"),
    "driver-not-loaded": (
        False,
        "",
        "nvmlInit says driver not loaded; /proc/driver/nvidia has no version",
    ),
    "mismatch": (
        False,
        "580.65.06",
        "nvmlInit says driver/library version mismatch (value: module)",
    ),
    "reserved": (True, "912", "MiB of reserved memory (v1 used includes them, v2 has them apart)"),
    "memory-unavailable": (True, "", "memory info says not supported (GB10, some MIG views)"),
    "process-memory-unavailable": (True, "", "holders are listed, their memory is not available"),
    "no-memory-v2": (True, "", "memory v2 is not known to this driver; v1 works"),
    "hang": (True, "memory", "a call sleeps for ever: memory, handle, processes or init"),
    "leak": (True, "1024", "MiB in use that no process owns"),
    "mig": (True, "", "MIG is on, with two instances"),
    "remap-pending": (True, "", "rows wait for a reset to be remapped"),
    "remap-failed": (True, "", "a row could not be remapped"),
    "ecc": (True, "3", "uncorrectable ECC errors since boot"),
    "recovery": (True, "reset", "recovery action: reset, reboot, drain, drain-reset"),
    "no-permission": (True, "", "memory, processes and MIG say insufficient permissions"),
    "function-not-found": (False, "", "an old driver: no process lists v3, no memory v2"),
    "hot": (True, "97", "temperature in Celsius, with thermal throttling"),
    "busy": (True, "100", "GPU utilisation in percent"),
}


# What the driver writes for some Xids; others get their number and "unknown".
XIDS = {
    13: "Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0): Out Of Range Address",
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC0 GPCCLIENT_T1_0 faulted",
    43: "Ch 00000010",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU",
    63: "Row Remapper: New row marked for remapping, reset gpu to activate",
    64: "Row Remapper: Failed to remap row",
    79: "GPU has fallen off the bus.",
    94: "Contained: SM. RST: No, D-RST: No",
    95: "Uncontained: LTC TAG. RST: Yes, D-RST: No",
    119: "Timeout after 6s of waiting for RPC response from GPU GSP! Expected function 76",
    154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that is on; ``gpu`` None means all."""

    name: str
    gpu: int | None
    value: str

    def line(self) -> str:
        """Return the line of the faults file."""
        return f"{self.name} {'*' if self.gpu is None else self.gpu} {self.value or '-'}\n"


def create(folder: Path, seed: str, *, slots: bool = True) -> None:
    """Make a set of GPUs; ``seed`` decides the UUIDs, so that they are the same after each `up`.

    Args:
        folder: where.
        seed: any word.
        slots: write /proc/driver/nvidia/gpus too; a fleet goes without those 16 files a host.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    lines = []
    for index in range(COUNT):
        identity = uuid.uuid5(uuid.NAMESPACE_DNS, f"gpu{index}.{seed}.lab")
        bus = 0x01 + 0x20 * index
        lines.append(
            f"{index}|GPU-{identity}|{NAME}|{TOTAL_MIB}|{RESERVED_MIB}|{bus}|{1320225000000 + index}\n"
        )
        memory = folder / f"gpu{index}.mem"
        memory.touch()
        memory.chmod(0o666)  # any user may hold GPU memory
    (folder / "driver").write_text(f"{DRIVER} {CUDA}\n")
    (folder / "faults").write_text("")
    (folder / "xids").write_text("")
    (folder / "gpus").write_text("".join(lines))
    (folder / PROC_DRIVER / "nvidia").mkdir(parents=True, exist_ok=True)
    if slots:
        _write_proc_driver(folder)
    _write_module_version(folder, {})


def uuids(folder: Path) -> list[str]:
    """Return the UUIDs of a set, by index."""
    return [line.split("|")[1] for line in (folder / "gpus").read_text().splitlines()]


def read_faults(folder: Path) -> list[Fault]:
    """Return the faults that are on."""
    faults = []
    for line in (folder / "faults").read_text().splitlines():
        name, gpu, value = line.split(" ", 2)
        faults.append(Fault(name, None if gpu == "*" else int(gpu), "" if value == "-" else value))
    return faults


def set_fault(folder: Path, name: str, gpu: int | None = None, value: str | None = None) -> Fault:
    """Switch one fault on, for one GPU or for all; the next NVML call sees it.

    Raises:
        LabError: there is no such fault or GPU.
    """
    if name not in FAULTS:
        raise LabError(f"no fault {name!r}; there are: {', '.join(sorted(FAULTS))}")
    if gpu is not None and not 0 <= gpu < COUNT:
        raise LabError(f"no GPU {gpu}; there are 0 to {COUNT - 1}")
    per_gpu, default, _ = FAULTS[name]
    fault = Fault(name, gpu if per_gpu else None, default if value is None else value)
    rest = [old for old in read_faults(folder) if (old.name, old.gpu) != (fault.name, fault.gpu)]
    _write_faults(folder, [*rest, fault])
    return fault


def clear_faults(folder: Path, name: str | None = None, gpu: int | None = None) -> None:
    """Switch off all faults, those of one name, or those of one GPU."""
    kept = [
        fault
        for fault in read_faults(folder)
        if (name is not None and fault.name != name) or (gpu is not None and fault.gpu != gpu)
    ]
    _write_faults(folder, kept)


def add_xid(folder: Path, code: int, gpu: int = 0, holder: str = "<unknown>") -> str:
    """Have the kernel log of the owning host show an Xid; return the line.

    Args:
        code: the Xid, e.g. 79.
        gpu: index of the GPU.
        holder: ``PID, name=NAME`` as the driver writes it, or <unknown>.
    """
    bus = int((folder / "gpus").read_text().splitlines()[gpu].split("|")[5])
    name = "" if holder != "<unknown>" else ", name=<unknown>"
    text = f"NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, pid={holder}{name}, {XIDS.get(code, 'unknown')}"
    with (folder / "xids").open("a") as file:
        file.write(f"{time.monotonic_ns() // 1000},-;{text}\n")
    return text


def clear_xids(folder: Path) -> None:
    """Empty the lab's kernel log of Xids."""
    with (folder / "xids").open("w"):
        pass


def _write_faults(folder: Path, faults: Iterable[Fault]) -> None:
    on = list(faults)
    temporary = folder / "faults.new"
    temporary.write_text("".join(fault.line() for fault in on))
    temporary.replace(folder / "faults")
    _write_module_version(folder, {fault.name: fault.value for fault in on})


def _write_module_version(folder: Path, on: dict[str, str]) -> None:
    """Have /proc/driver/nvidia/version agree with the faults: another module, or none."""
    version = folder / PROC_DRIVER / "nvidia" / "version"
    if "driver-not-loaded" in on:
        version.unlink(missing_ok=True)
        return
    version.write_text(module_version_text(on.get("mismatch", DRIVER)))


def device_nodes() -> str:
    """Return the tmpfiles.d lines that make the device nodes of a host."""
    lines = []
    for path in NODES:
        major, minor = UVM_NODE if "uvm" in path else CONTROL_NODE
        lines.append(f"c {path} 0666 root root - {major}:{minor}\n")
    return "".join(lines)


def proc_devices(real: str) -> str:
    """Return /proc/devices as the lab hosts show it: the nodes' majors are NVIDIA's there.

    The majors 1 and 10 are not the driver's 195 and 511, since a node must open; a check compares the
    two and does not know the numbers.
    """
    shown = []
    for line in real.splitlines():
        if line.strip() == "1 mem":
            shown += ["  1 mem", "  1 nvidia", "  1 nvidiactl"]
        elif line.strip() == "10 misc":
            shown += [" 10 misc", " 10 nvidia-uvm"]
        else:
            shown.append(line)
    return "\n".join(shown) + "\n"


def module_version_text(version: str = DRIVER) -> str:
    """Return /proc/driver/nvidia/version as the open kernel module writes it."""
    return (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  "
        "Release Build  (dvs-builder@U22-I3-H04-03-5)\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n"
    )


def _write_proc_driver(folder: Path) -> None:
    """Write what the kernel module shows in /proc/driver/nvidia for a set of GPUs."""
    target = folder / PROC_DRIVER / "nvidia"
    for line in (folder / "gpus").read_text().splitlines():
        index, uuid_text, name, _, _, bus, _ = line.split("|")
        location = f"0000:{int(bus):02x}:00.0"
        gpu = target / "gpus" / location
        gpu.mkdir(parents=True, exist_ok=True)
        rows = {
            "Model": name,
            "IRQ": str(64 + int(index)),
            "GPU UUID": uuid_text,
            "Video BIOS": "98.02.81.00.07",
            "Bus Type": "PCIe",
            "Bus Location": location,
            "Device Minor": index,
            "GPU Excluded": "No",
        }
        text = "".join(f"{key + ':':<17}{value}\n" for key, value in rows.items())
        (gpu / "information").write_text(text)
