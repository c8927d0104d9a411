"""Is a GPU fit for the next launch, and what did it use when it was idle."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from opsctl.domain.gpu import COMPUTE_KINDS, IDLE_MARGIN_BYTES, Baseline
from opsctl.facts import Gpu, GpuRead, GpuReport
from opsctl.output import Finding
from opsctl.records import dataclass

# NVIDIA's Xid catalogue (driver 570): errors after which the card needs a reset or a reboot.
FATAL_XIDS: dict[int, str] = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    64: "row remapping failed",
    74: "NVLink error",
    79: "the GPU fell off the bus",
    95: "uncontained memory error",
    119: "GSP does not answer",
    120: "GSP error",
    140: "unrecovered ECC error",
    143: "GPU initialisation failed",
    154: "the GPU asks for a recovery action",
}
_XID = re.compile(r"Xid \((?:PCI:)?(?P<where>[^)]*)\): (?P<number>\d+)")


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """One thing about a GPU's health; ``refuses`` means that nothing should be launched on it."""

    finding: Finding
    refuses: bool


def judge_health(report: GpuReport, uuids: Sequence[str]) -> list[HealthFinding]:
    """Judge the GPUs of a set for the next launch: what warns, and what refuses.

    Args:
        report: what NVML and the kernel log said.
        uuids: the server's set.
    """
    chosen = [gpu for gpu in report.gpus if gpu.uuid in set(uuids)]
    found = [finding for gpu in chosen for finding in _one(gpu)]
    return found + _xids(report.xids, chosen)


def _one(gpu: Gpu) -> list[HealthFinding]:
    found: list[HealthFinding] = []

    def add(code: str, text: str, step: str, refuses: bool) -> None:
        found.append(HealthFinding(Finding(code, gpu.uuid, text, step), refuses))

    if gpu.read is GpuRead.LOST:
        add("gpu-lost", "the GPU is lost", "reboot the host", True)
        return found
    if gpu.recovery_action not in (None, "none"):
        action = gpu.recovery_action
        step = "drain this host and reboot it; opsctl never resets a GPU"
        add("recovery-action", f"the driver asks for: {action}", step, True)
    if gpu.remap_failed:
        step = "the card has no spare rows left: replace it"
        add("remap-failed", "row remapping failed", step, True)
    if gpu.remap_pending:
        step = "it runs on, and the remap takes effect with the next reboot: plan one"
        add("remap-pending", "a row remap is pending", step, False)
    if gpu.ecc_uncorrected:
        text = f"{gpu.ecc_uncorrected} uncorrected ECC errors since the driver was loaded"
        add("ecc-uncorrected", text, "watch it; replace the card when it grows", False)
    if gpu.throttle_thermal:
        heat = f"at {gpu.temperature_c} °C" if gpu.temperature_c is not None else "hot"
        add("thermal", f"slowed down by heat, {heat}", "check fans and airflow", False)
    return found


def _xids(lines: Sequence[str] | None, gpus: Sequence[Gpu]) -> list[HealthFinding]:
    if lines is None:
        text = "the kernel log could not be read, so Xid errors are not known"
        finding = Finding("xid-unknown", "", text, "read it as root: dmesg | grep Xid")
        return [HealthFinding(finding, False)] if gpus else []
    cleared = bool(gpus) and all(gpu.recovery_action == "none" for gpu in gpus)
    counts: dict[tuple[int, str], int] = {}
    for line in lines:
        match = _XID.search(line)
        if match:
            key = (int(match["number"]), match["where"])
            counts[key] = counts.get(key, 0) + 1
    found = []
    for (number, where), count in sorted(counts.items()):
        fatal = FATAL_XIDS.get(number)
        words = f" ({fatal})" if fatal else ""
        times = f", {count} times" if count > 1 else ""
        text = f"Xid {number}{words} since boot{times}"
        step = "the driver asks for no recovery now" if cleared else "drain and reboot this host"
        if not fatal:
            step = "usually the fault of a program: see its log"
        refuses = bool(fatal) and not cleared
        found.append(HealthFinding(Finding(f"xid-{number}", where, text, step), refuses))
    return found


def learn_baseline(
    gpu: Gpu, protected_pids: frozenset[int], margin_bytes: int = IDLE_MARGIN_BYTES
) -> Baseline | None:
    """Return what an idle GPU uses, or None when this reading is no proof of idleness.

    Idle means: read without error, the process list is known and holds no compute process, and what
    is used beyond the margin belongs to protected processes (a display, a daemon).

    Args:
        gpu: one reading.
        protected_pids: processes that stay there also when no server runs.
        margin_bytes: how much may be used without an owner.
    """
    readable = gpu.read is GpuRead.OK and gpu.processes is not None
    if not readable or gpu.used_bytes is None or gpu.memory_version is None:
        return None
    explained = 0
    for process in gpu.processes or ():
        stays = process.kind == "G" or process.pid in protected_pids
        if process.kind in COMPUTE_KINDS and not stays:
            return None
        explained += process.used_bytes or 0
    if gpu.memory_version == 1:
        explained += gpu.reserved_bytes or 0
    if gpu.used_bytes - explained > margin_bytes:
        return None
    return Baseline(gpu.used_bytes, gpu.memory_version)


def learn_baselines(
    report: GpuReport,
    protected_pids: frozenset[int],
    known: Mapping[str, Baseline],
    margin_bytes: int = IDLE_MARGIN_BYTES,
) -> dict[str, Baseline]:
    """Return the baselines that this report adds to or changes in the known ones."""
    learned = {}
    for gpu in report.gpus:
        baseline = learn_baseline(gpu, protected_pids, margin_bytes)
        if baseline is not None and known.get(gpu.uuid) != baseline:
            learned[gpu.uuid] = baseline
    return learned
