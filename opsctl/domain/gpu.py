"""GPUs as decisions see them: which ones are meant, who holds them, what a verdict consists of."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from opsctl.facts import Gpu, GpuReport
from opsctl.output import Finding
from opsctl.records import dataclass

MIB = 1 << 20
# Over the idle baseline. Idle cards read 0 to 39 MiB (H200 v2: 0; A100: 39; RTX A5000: 10; others 4);
# the smallest CUDA context is over 100 MiB. Measured with driver 570 to 580.
IDLE_MARGIN_BYTES = 64 * MIB
# v1 counts the reserved memory of an idle card as used: 308 to 912 MB were seen (driver 510 and later).
LARGEST_RESERVED_BYTES = 1024 * MIB
COMPUTE_KINDS = ("C", "M")


class MemoryState(StrEnum):
    """The four states of the output contract."""

    FREE = "free"
    BUSY = "busy"
    UNKNOWN = "unknown"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """One process on one GPU, as NVML names it; the pid is the GPU host's."""

    uuid: str
    pid: int
    kind: str
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """What one GPU used when it was seen idle, and in which of NVML's two ways of counting."""

    used_bytes: int
    memory_version: int


@dataclass(frozen=True, slots=True)
class Evict:
    """The stop of a server that also ends a stranger on its GPUs; ``pid`` is what ``--evict`` takes."""

    server: str
    pid: int

    def command(self) -> str:
        return f"opsctl stop {self.server} --evict {self.pid}"


@dataclass(frozen=True, slots=True)
class HolderView:
    """A holder with its class where the process table told it, and what it is in words."""

    holder: GpuHolder
    kind: str | None  # member, foreign, protected; None: no process table was asked
    label: str
    server: str | None = None  # the other server of the site that a foreign one is of
    is_resident: bool = False  # a daemon or a display, which is there on an idle card too
    evict: Evict | None = None  # how it can be ended with the server; None: not by opsctl


@dataclass(frozen=True, slots=True)
class GpuVerdict:
    """The verdict on one GPU; ``limit_bytes`` is what would still have passed as idle."""

    uuid: str
    index: int | None
    name: str | None
    state: MemoryState
    used_bytes: int | None
    reserved_bytes: int | None
    total_bytes: int | None
    baseline_bytes: int | None
    limit_bytes: int
    holders: tuple[HolderView, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class MemoryVerdict:
    """The verdict on a set of GPUs."""

    gpus: tuple[GpuVerdict, ...]
    findings: tuple[Finding, ...]  # of the report and the set; each GPU has its own besides

    @property
    def exit_code(self) -> int:
        """0 proven free; 20 memory seen in use; 21 could not be told."""
        states = {gpu.state for gpu in self.gpus}
        if MemoryState.BUSY in states:
            return 20
        incomplete = any(finding.code in INCOMPLETE for finding in self.findings)
        if incomplete or not states <= {MemoryState.FREE} or not states:
            return 21
        return 0

    @property
    def outcome(self) -> str:
        return {0: "free", 20: "busy", 21: "unknown"}[self.exit_code]

    @property
    def all_findings(self) -> list[Finding]:
        return [*self.findings, *(finding for gpu in self.gpus for finding in gpu.findings)]


INCOMPLETE = frozenset(
    {
        "nvml-no-library",
        "nvml-driver-not-loaded",
        "nvml-mismatch",
        "nvml-no-permission",
        "nvml-timeout",
        "nvml-error",
        "nvml-no-devices",
        "fewer-gpus",
        "gpu-missing",
        "no-gpus-selected",
    }
)


def holders_of(report: GpuReport) -> tuple[GpuHolder, ...]:
    """Return every holder that NVML names, of all GPUs."""
    return tuple(
        GpuHolder(gpu.uuid, process.pid, process.kind, process.used_bytes)
        for gpu in report.gpus
        for process in gpu.processes or ()
    )


def resolve_gpus(
    select: str | Sequence[int | str], report: GpuReport
) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """Return the UUIDs that a selection names, and a finding for each name that matches no GPU.

    Args:
        select: ``all``, or indices and UUIDs (a beginning that names one card is enough).
        report: what NVML said.
    """
    if isinstance(select, str):
        return tuple(gpu.uuid for gpu in report.gpus), ()
    uuids: list[str] = []
    findings: list[Finding] = []
    for wanted in select:
        matches = [gpu.uuid for gpu in report.gpus if _is_named(gpu, wanted)]
        if len(matches) == 1:
            uuids.append(matches[0])
        else:
            text = "no such GPU" if not matches else f"names {len(matches)} GPUs"
            findings.append(
                Finding("gpu-missing", str(wanted), text, "compare with `opsctl gpu status SERVER`")
            )
    return tuple(dict.fromkeys(uuids)), tuple(findings)


def _is_named(gpu: Gpu, wanted: int | str) -> bool:
    if isinstance(wanted, int) or wanted.isdigit():
        return gpu.index == int(wanted)
    return gpu.uuid.startswith(wanted)
