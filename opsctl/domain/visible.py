"""Which GPUs a launch will see and use, by its environment and its arguments; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opsctl.domain.counted import counted
from opsctl.domain.launch import SECRET, ranks_here, value_of
from opsctl.facts import Gpu
from opsctl.output import Finding

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_devices(value: str) -> tuple[str, ...]:
    """Return the devices that CUDA takes from the variable: those before the first that is none.

    Source: CUDA C Programming Guide, "CUDA Environment Variables": indices, UUIDs or their beginnings; ``-1``
    or anything else ends the list; an empty value hides all.
    """
    found: list[str] = []
    for word in value.split(","):
        name = word.strip()
        if not (name.isdigit() or name.startswith(("GPU-", "MIG-"))) or name in found:
            break
        found.append(name)
    return tuple(found)


def judge_visible(
    env: Mapping[str, str],
    argv: Sequence[str],
    selected: Sequence[Gpu],
    known: Sequence[Gpu],
) -> list[Finding]:
    """Say what is wrong between the variable, the arguments and the site's selection of GPUs.

    Args:
        env: of the launch.
        argv: of the launch.
        selected: the GPUs that the site says are the server's, whose memory is proven.
        known: all GPUs of the machine.
    """
    value = env.get(VARIABLE)
    on_cpu = not selected or value_of(argv, ("--device",)) == "cpu"
    if value is None or value == SECRET or on_cpu:
        return []
    devices = visible_devices(value)
    need = ranks_here(argv)
    found: list[Finding] = []
    if len(devices) < need:
        text = (
            f"it shows {counted(len(devices), 'GPU')} to the server, and the arguments want {need}"
        )
        found.append(Finding("gpu-count", VARIABLE, text, "correct it in the server's env, or tp"))
    ours = {gpu.uuid for gpu in selected}
    for name in devices:
        named = [gpu.uuid for gpu in known if name.startswith("GPU-") and gpu.uuid.startswith(name)]
        if len(named) == 1 and named[0] not in ours:
            text = (
                f"it names {name}, which gpus.select does not: the wrong cards would be proven free"
            )
            found.append(Finding("gpu-selection", VARIABLE, text, "make the two agree"))
    return found


def judge_nodes(argv: Sequence[str]) -> list[Finding]:
    """Refuse to launch what serves no HTTP: another rank than the first of a server over several machines."""
    rank = value_of(argv, ("--node-rank",))
    if rank is None or not rank.isdigit() or int(rank) == 0:
        return []
    text = f"rank {rank} of a server over several nodes answers no request, so it cannot be proven ready"
    step = "launch it by hand; status, stop and gpu verify know it all the same"
    return [Finding("node-rank", "args", text, step)]
