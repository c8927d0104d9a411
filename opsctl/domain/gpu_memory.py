"""Is the memory of these GPUs free: decided from what NVML said, where unknown is never zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opsctl.domain.gpu import (
    COMPUTE_KINDS,
    IDLE_MARGIN_BYTES,
    LARGEST_RESERVED_BYTES,
    MIB,
    Baseline,
    Evict,
    GpuHolder,
    GpuVerdict,
    HolderView,
    MemoryState,
    MemoryVerdict,
)
from opsctl.facts import Gpu, GpuRead, GpuReport
from opsctl.output import Finding

UNSEEN = "not visible from here"  # a holder that the process table did not show when it was read
_REPORT_TROUBLE: dict[str, tuple[str, str]] = {
    "no-library": (
        "libnvidia-ml.so.1 was not found",
        "install the driver's user-space library, or name the host that owns the GPUs in gpus.host",
    ),
    "driver-not-loaded": (
        "the nvidia kernel module is not loaded",
        "load it (modprobe nvidia), then ask again",
    ),
    "mismatch": (
        "NVML's library and the kernel module have different versions",
        (
            "in a container: install the host's driver version; on a host: reboot or reload the "
            "module. running servers may still be healthy"
        ),
    ),
    "no-permission": (
        "NVML may not be used by this user",
        "connect as a user with access to /dev/nvidia*, or set become: sudo",
    ),
    "timeout": (
        "NVML did not answer in time (it can hang in D state)",
        "look at the kernel log for Xid lines; when the hang stays, only a reboot helps",
    ),
    "error": ("NVML failed", "look at the kernel log of the host"),
    "no-devices": (
        "NVML shows no GPU",
        "check the devices of the container, or lspci and the kernel log on the host",
    ),
}


def judge_memory(
    report: GpuReport,
    uuids: Sequence[str],
    *,
    expect: int | None = None,
    baselines: Mapping[str, Baseline] | None = None,
    classes: Mapping[int, tuple[str, str]] | None = None,
    servers: Mapping[int, str] | None = None,
    residents: frozenset[int] = frozenset(),
    evictable: Mapping[int, Evict] | None = None,
    margin_bytes: int = IDLE_MARGIN_BYTES,
    found: Sequence[Finding] = (),
) -> MemoryVerdict:
    """Judge whether each GPU of a set is free.

    Args:
        report: what NVML said, of all GPUs of the machine.
        uuids: the set, as ``resolve_gpus`` returned it.
        expect: how many GPUs the set must have.
        baselines: what each GPU used when it was seen idle, by UUID.
        classes: pid of the GPU host -> (class, description), where a process table was read.
        servers: pid of the GPU host -> the other server of the site that it is of.
        residents: pids of the GPU host that are there on an idle card too: daemons and displays. Who is only
            not to be signalled (another container's, our own login's) is none: it uses the card.
        evictable: pid of the GPU host -> the stop of the server that can end it as well.
        margin_bytes: how much over the baseline still counts as idle.
        found: what ``resolve_gpus`` found.
    """
    findings = list(found)
    if report.state != "ok":
        findings.append(_trouble(report))
    if expect is not None and len(uuids) < expect:
        text = f"{len(uuids)} of {expect} expected GPUs are there"
        step = "a card fell off the bus or is not passed through: see the kernel log and lspci"
        findings.append(Finding("fewer-gpus", "", text, step))
    if expect is not None and len(uuids) > expect:
        findings.append(more_gpus(len(uuids), expect))
    if report.state == "ok" and not uuids and not findings:
        findings.append(Finding("no-gpus-selected", "", "no GPU is selected", "see gpus.select"))
    by_uuid = {gpu.uuid: gpu for gpu in report.gpus}
    verdicts = [
        _judge_one(
            by_uuid[uuid],
            (baselines or {}).get(uuid),
            _views(by_uuid[uuid], classes, servers or {}, residents, evictable or {}),
            margin_bytes,
        )
        for uuid in uuids
        if uuid in by_uuid
    ]
    for uuid in uuids:
        if uuid not in by_uuid:
            step = "it may have fallen off the bus: see the kernel log"
            findings.append(Finding("gpu-missing", uuid, "NVML does not show this GPU", step))
    return MemoryVerdict(tuple(verdicts), tuple(findings))


def more_gpus(selected: int, expect: int) -> Finding:
    """Say that a set has more GPUs than the site expects; the proof of their memory is none the worse."""
    text = (
        f"{selected} GPUs are selected, and {expect} expected: memory is proven for all {selected}"
    )
    step = "name the server's own GPUs in gpus.select, or correct gpus.expect"
    return Finding("more-gpus", "", text, step)


def _trouble(report: GpuReport) -> Finding:
    text, step = _REPORT_TROUBLE.get(report.state, _REPORT_TROUBLE["error"])
    code = f"nvml-{report.state}" if report.state in _REPORT_TROUBLE else "nvml-error"
    versions = ""
    if report.state == "mismatch" and (report.driver_version or report.kernel_module_version):
        library = report.driver_version or "not told"
        versions = (
            f"; library {library}, kernel module {report.kernel_module_version or 'not told'}"
        )
    detail = f" ({report.detail})" if report.detail else ""
    return Finding(code, "", f"{text}{versions}{detail}", step)


def _judge_one(
    gpu: Gpu,
    baseline: Baseline | None,
    holders: tuple[HolderView, ...],
    margin_bytes: int,
) -> GpuVerdict:
    usable = baseline if baseline and baseline.memory_version == gpu.memory_version else None
    limit = (usable.used_bytes if usable else 0) + margin_bytes
    state, findings = _state_of(gpu, holders, usable, limit)
    return GpuVerdict(
        gpu.uuid,
        gpu.index,
        gpu.name,
        state,
        gpu.used_bytes,
        gpu.reserved_bytes,
        gpu.total_bytes,
        usable.used_bytes if usable else None,
        limit,
        holders,
        tuple(findings),
    )


def _views(
    gpu: Gpu,
    classes: Mapping[int, tuple[str, str]] | None,
    servers: Mapping[int, str],
    residents: frozenset[int],
    evictable: Mapping[int, Evict],
) -> tuple[HolderView, ...]:
    views = []
    for process in gpu.processes or ():
        holder = GpuHolder(gpu.uuid, process.pid, process.kind, process.used_bytes)
        if classes is None:
            kind, label = None, ""
        else:
            kind, label = classes.get(process.pid, ("foreign", UNSEEN))
        server, resident = servers.get(process.pid), process.pid in residents
        evict = evictable.get(process.pid)
        views.append(HolderView(holder, kind, label, server, resident, evict))
    return tuple(views)


def _state_of(
    gpu: Gpu, holders: tuple[HolderView, ...], baseline: Baseline | None, limit: int
) -> tuple[MemoryState, list[Finding]]:
    if gpu.read is GpuRead.LOST:
        step = "only a reboot of the host brings it back; see the kernel log (Xid 79)"
        return MemoryState.LOST, [Finding("gpu-lost", gpu.uuid, "the GPU is lost", step)]
    findings = _notes(gpu)
    blocking = [view for view in holders if _blocks(view)]
    if gpu.used_bytes is None:
        state, more = _without_a_number(gpu, blocking)
    elif gpu.used_bytes > limit:
        state, more = _over_the_limit(gpu, gpu.used_bytes, blocking, baseline, limit)
    else:
        state, more = _within_the_limit(gpu, blocking)
    return state, findings + more


def _without_a_number(
    gpu: Gpu, blocking: Sequence[HolderView]
) -> tuple[MemoryState, list[Finding]]:
    """NVML would not say how much is used: processes and MIG instances may prove use, or freedom."""
    if any(view.holder.used_bytes for view in blocking):
        return MemoryState.BUSY, [_held(gpu, view) for view in blocking]
    if gpu.mig_enabled and gpu.mig_instances:
        return _by_instances(gpu)
    text = f"NVML does not say how much memory is used ({gpu.error or 'value not available'})"
    step = "no compute process is listed; the memory itself could not be checked"
    if blocking:
        step = f"compute processes are listed: {_pids(blocking)}"
    elif gpu.processes is None:
        step = "ask again on the host that owns the GPU, as root"
    return MemoryState.UNKNOWN, [Finding("memory-unknown", gpu.uuid, text, step)]


def _by_instances(gpu: Gpu) -> tuple[MemoryState, list[Finding]]:
    findings: list[Finding] = []
    states: set[MemoryState] = set()
    for instance in gpu.mig_instances:
        used = instance.used_bytes
        if instance.processes or (used is not None and used > IDLE_MARGIN_BYTES):
            states.add(MemoryState.BUSY)
            amount = "memory" if used is None else f"{used // MIB} MiB"
            pids = ", ".join(str(process.pid) for process in instance.processes or ())
            text = f"instance {instance.uuid} holds {amount}" + (f": pid {pids}" if pids else "")
            findings.append(Finding("held", gpu.uuid, text, "stop what runs on the instance"))
        elif used is None or instance.processes is None:
            states.add(MemoryState.UNKNOWN)
            text = f"instance {instance.uuid} could not be read"
            findings.append(Finding("memory-unknown", gpu.uuid, text, "ask as root on the host"))
    for state in (MemoryState.BUSY, MemoryState.UNKNOWN):
        if state in states:
            return state, findings
    return MemoryState.FREE, findings


def _within_the_limit(
    gpu: Gpu, blocking: Sequence[HolderView]
) -> tuple[MemoryState, list[Finding]]:
    if blocking and all(view.holder.used_bytes is None for view in blocking):
        return MemoryState.UNKNOWN, [_unsaid(gpu, blocking)]
    if blocking:
        return MemoryState.BUSY, [_held(gpu, view) for view in blocking]
    if gpu.processes is None:
        step = "ask on the host that owns the GPU, as root"
        text = f"NVML does not list its processes ({gpu.error or 'no reason given'})"
        return MemoryState.UNKNOWN, [Finding("processes-unknown", gpu.uuid, text, step)]
    return MemoryState.FREE, []


def _blocks(view: HolderView) -> bool:
    return view.holder.kind in COMPUTE_KINDS and not view.is_resident


def _notes(gpu: Gpu) -> list[Finding]:
    notes = []
    if gpu.memory_version == 1:
        text = "this driver counts reserved memory as used (NVML memory v1)"
        notes.append(Finding("reserved-counted", gpu.uuid, text, "learn the baseline while idle"))
    if gpu.mig_enabled:
        text = f"MIG is on, with {len(gpu.mig_instances)} instances"
        notes.append(Finding("mig", gpu.uuid, text, "the whole card is judged, all instances"))
    if gpu.utilisation_percent and not gpu.processes:
        text = f"shows {gpu.utilisation_percent} % utilisation without a process"
        notes.append(Finding("ghost-utilisation", gpu.uuid, text, "utilisation decides nothing"))
    return notes


def _over_the_limit(
    gpu: Gpu,
    used: int,
    blocking: Sequence[HolderView],
    baseline: Baseline | None,
    limit: int,
) -> tuple[MemoryState, list[Finding]]:
    if blocking:
        return MemoryState.BUSY, [_held(gpu, view) for view in blocking]
    if gpu.processes is None:
        text = f"{used // MIB} MiB are used; NVML does not list by whom"
        step = "ask on the GPU's host as root"
        return MemoryState.BUSY, [Finding("processes-unknown", gpu.uuid, text, step)]
    unlearned_v1 = gpu.memory_version == 1 and baseline is None
    if unlearned_v1 and used <= LARGEST_RESERVED_BYTES:
        text = f"{used // MIB} MiB read as used may all be reserved memory"
        step = "record the idle card once: `opsctl gpu status SERVER --learn`"
        return MemoryState.UNKNOWN, [Finding("reserved-or-used", gpu.uuid, text, step)]
    text = f"{used // MIB} MiB are used and no process is named (limit {limit // MIB} MiB)"
    step = (
        "the holder may be in another pid namespace or still being torn down: ask on the host "
        "that owns the GPU; when nothing holds it there, a reboot is needed"
    )
    return MemoryState.BUSY, [Finding("memory-without-owner", gpu.uuid, text, step)]


def _held(gpu: Gpu, view: HolderView) -> Finding:
    used = view.holder.used_bytes
    amount = "memory that NVML does not count" if used is None else f"{used // MIB} MiB"
    what = f" ({view.label})" if view.label else ""
    if view.server is not None:
        text = f"pid {view.holder.pid} of server {view.server}{what} holds {amount}"
        return Finding("held", gpu.uuid, text, f"opsctl stop {view.server}")
    kind = f"{view.kind} " if view.kind else ""
    here = "stop it where it belongs"
    steps = {
        "foreign": f"{here}, or: {view.evict.command()}" if view.evict else here,
        "protected": "opsctl never signals it: stop it where it belongs",
    }
    return Finding(
        "held",
        gpu.uuid,
        f"{kind}pid {view.holder.pid}{what} holds {amount}",
        steps.get(view.kind or "", "stop its server"),
    )


def _unsaid(gpu: Gpu, views: Sequence[HolderView]) -> Finding:
    text = f"compute process {_pids(views)} is there, and NVML does not say what it holds"
    return Finding(
        "process-memory-unknown", gpu.uuid, text, "look at the process on the GPU's host"
    )


def _pids(views: Sequence[HolderView]) -> str:
    return ", ".join(str(view.holder.pid) for view in views)
