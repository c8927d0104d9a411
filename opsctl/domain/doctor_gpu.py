"""What `opsctl doctor` says of GPUs: NVML, health, persistence, peer access, NCCL, SM120; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opsctl.domain.counted import counted
from opsctl.domain.doctor import Check, State, from_finding
from opsctl.domain.gpu_health import judge_health
from opsctl.facts import GpuReport

# nvmlGpuP2PStatus_t of nvml.h (driver 580)
P2P_WORDS = (
    "ok", "the chipset does not support it", "the GPU does not support it",
    "the topology does not support it", "disabled by a registry key", "not supported", "unknown",
)  # fmt: skip


def judge_gpus(report: GpuReport, *, expected: bool) -> list[Check]:
    """Judge NVML, and the health of every GPU.

    Args:
        expected: whether a server of the site uses GPUs of this machine.
    """
    if report.state == "ok":
        cards = counted(len(report.gpus), "GPU")
        text = f"{cards}, driver {report.driver_version}, CUDA {report.cuda_version}"
        return [Check("nvml", State.OK, text), *_health(report)]
    why = report.detail or report.state
    if report.state in ("no-library", "no-devices"):
        if not expected:
            return [Check("nvml", State.OK, f"no GPU here: {why}")]
        return [
            Check(
                "nvml",
                State.BAD,
                why,
                "install the driver's library, or correct gpus.host in the site",
            )
        ]
    if report.state in ("driver-not-loaded", "mismatch"):
        if report.state == "driver-not-loaded":
            return [Check("nvml", State.BAD, why, command="modprobe nvidia")]
        return [Check("nvml", State.BAD, why, "reboot, or reload the module")]
    return [Check("nvml", State.UNKNOWN, why, "look by hand: `nvidia-smi`, `dmesg | grep -i nvrm`")]


def _health(report: GpuReport) -> list[Check]:
    checks = []
    for item in judge_health(report, [gpu.uuid for gpu in report.gpus]):
        state = State.BAD if item.refuses else State.WARN
        if item.finding.code == "xid-unknown":
            state = State.UNKNOWN
        checks.append(from_finding("gpu-health", state, item.finding))
    unread = [gpu for gpu in report.gpus if gpu.read.value == "unknown"]
    checks += [
        Check("gpu-health", State.UNKNOWN, f"{gpu.uuid}: {gpu.error or 'memory could not be read'}")
        for gpu in unread
    ]
    return checks or [
        Check("gpu-health", State.OK, "no error, no pending remap, no recovery asked for")
    ]


def judge_links(facts: Mapping[str, Any], tensor_parallel: int) -> list[Check]:
    """Judge persistence mode, and peer access where a server spans several GPUs.

    Source: NVIDIA driver persistence (docs.nvidia.com/deploy/driver-persistence); nvml.h.
    """
    if facts["state"] != "ok":
        return [Check("persistence", State.UNKNOWN, facts["detail"] or facts["state"])]
    modes: Mapping[str, int | None] = facts["persistence"]
    off = [uuid for uuid, mode in modes.items() if mode == 0]
    if off:
        text = f"off on {len(off)} of {counted(len(modes), 'GPU')}: without a server the driver unloads"
        command = "systemctl enable --now nvidia-persistenced"
        checks = [Check("persistence", State.WARN, text, command=command)]
    elif None in modes.values():
        checks = [Check("persistence", State.UNKNOWN, "NVML does not tell it")]
    else:
        checks = [Check("persistence", State.OK, f"on for {counted(len(modes), 'GPU')}")]
    return checks + ([_peers(facts["peers"])] if tensor_parallel > 1 and facts["peers"] else [])


def _peers(peers: Sequence[Sequence[Any]]) -> Check:
    bad = [pair for pair in peers if pair[2] not in (0, None)]
    if bad:
        one, other, status = bad[0]
        words = P2P_WORDS[status] if status < len(P2P_WORDS) else f"status {status}"
        text = f"{len(bad)} of {len(peers)} pairs have no peer access ({one[:12]}, {other[:12]}: {words})"
        return Check(
            "p2p", State.WARN, text, "NCCL goes through host memory: see that /dev/shm is large"
        )
    if any(pair[2] is None for pair in peers):
        return Check(
            "p2p",
            State.UNKNOWN,
            "NVML does not tell it for every pair",
            "let two GPUs copy: `opsctl gpu probe SERVER`",
        )
    return Check("p2p", State.OK, f"all {len(peers)} pairs have peer access")


def judge_nccl(env: Mapping[str, Any], tensor_parallel: int) -> list[Check]:
    """Say which switches in a server's environment take a way between its GPUs away.

    Source: NCCL user guide, environment variables.
    """
    if tensor_parallel < 2:
        return []
    off = [name for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") if str(env.get(name)) == "1"]
    if off:
        text = f"{', '.join(off)} in env: GPUs of this server exchange their data on a slower way"
        return [
            Check(
                "nccl",
                State.WARN,
                text,
                "leave it away once `opsctl gpu probe SERVER` is well",
            )
        ]
    return [Check("nccl", State.OK, "no switch in env takes a way between the GPUs away")]


def judge_sm120(args: Mapping[str, Any], capabilities: Iterable[tuple[int, int]]) -> list[Check]:
    """Say what is special to SM120 (RTX PRO 6000, RTX 50) in a server's flags."""
    if not any(major == 12 for major, _ in capabilities):
        return []
    if args.get("enable-flashinfer-allreduce-fusion"):
        text = "--enable-flashinfer-allreduce-fusion is accepted and does nothing on SM120 (sglang 0.5.9)"
        step = "leave it away, or try the experimental patch sm120-allreduce-fusion (0.5.9)"
        return [Check("sm120", State.WARN, text, step)]
    return [Check("sm120", State.OK, "no flag is known to be without effect on SM120")]
