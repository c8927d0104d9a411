"""Typed readers: what the agent's operations return, as the dataclasses of opsctl.facts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opsctl.agent.client import Agent
from opsctl.facts import (
    Gpu,
    GpuProcess,
    GpuRead,
    GpuReport,
    Host,
    Leftover,
    MigInstance,
    Package,
    Process,
    ProcessDetail,
    ProcessId,
)


def read_host(agent: Agent) -> Host:
    """Return what the host says of itself."""
    facts = agent.call("host.read")
    ranges = tuple((first, outside, count) for first, outside, count in facts.get("uid_map") or ())
    return Host(**{**facts, "uid_map": ranges})


def read_processes(agent: Agent, *, timeout_s: float = 20.0) -> list[Process]:
    """Return all processes that the agent sees, ascending by pid; its own is among them."""
    return processes_of(agent.call("process.scan", timeout_s=timeout_s))


def processes_of(facts: dict[str, Any]) -> list[Process]:
    """Return the processes of one ``process.scan``."""
    boot_id, ticks, uptime_s = facts["boot_id"], facts["clock_ticks"], facts["uptime_s"]
    strings, users = [*facts["strings"]], facts["users"]
    found = []
    for row in facts["rows"]:
        pid, ppid, state, start, session, uid, comm, argv, cgroup, ns_pids, namespace, exe = row
        found.append(
            Process(
                identity=ProcessId(boot_id, pid, start),
                ppid=ppid,
                state=state,
                uid=uid,
                user=users.get(str(uid)),
                comm=comm,
                argv=tuple(argv),
                cgroup=strings[cgroup],
                ns_pids=tuple(ns_pids),
                pid_namespace=None if namespace is None else strings[namespace],
                exe=None if exe is None else strings[exe],
                session=session,
                age_s=max(0.0, uptime_s - start / ticks),
            )
        )
    return found


def read_details(
    agent: Agent, pids: Iterable[int], *, timeout_s: float = 20.0
) -> list[ProcessDetail]:
    """Return the slow facts of the processes that still live; a pid that is gone is left out."""
    facts = agent.call("process.detail", {"pids": sorted(pids)}, timeout_s=timeout_s)
    return [
        ProcessDetail(
            pid=found["pid"],
            gpu_devices=_tuple(found["gpu_devices"]),
            listening_ports=_tuple(found["listening_ports"]),
            environment_markers=found["environment_markers"],
            unit=found["unit"],
            network_namespace=found.get("network_namespace"),
        )
        for found in facts["details"]
    ]


def read_device_holders(
    agent: Agent, *, timeout_s: float = 30.0
) -> tuple[dict[int, tuple[str, ...]], tuple[int, ...]]:
    """Return pid -> /dev/nvidia* files that it holds or maps, and the pids that could not be read."""
    facts = agent.call("process.device_holders", timeout_s=timeout_s)
    held = {holder["pid"]: tuple(holder["devices"]) for holder in facts["holders"]}
    return held, tuple(facts["unreadable"])


def read_gpus(agent: Agent, *, xids: bool = True, timeout_s: float = 10.0) -> GpuReport:
    """Return all GPUs as NVML shows them; NVML gets ``timeout_s``, then the state is ``timeout``."""
    request = {"xids": xids, "timeout_s": timeout_s}
    return gpus_of(agent.call("gpu.read", request, timeout_s=timeout_s + 10.0))


def gpus_of(facts: dict[str, Any]) -> GpuReport:
    """Return the report of one ``gpu.read``."""
    return GpuReport(
        **{
            **facts,
            "gpus": tuple(_gpu(gpu) for gpu in facts["gpus"]),
            "xids": _tuple(facts["xids"]),
        }
    )


def _gpu(facts: dict[str, Any]) -> Gpu:
    return Gpu(
        **{
            **facts,
            "read": GpuRead(facts["read"]),
            "processes": gpu_processes(facts["processes"]),
            "compute_capability": _tuple(facts["compute_capability"]),
            "mig_instances": mig_instances(facts["mig_instances"]),
        }
    )


def gpu_processes(rows: list[Any] | None) -> tuple[GpuProcess, ...] | None:
    """Return the holders in one reading of ``gpu.read`` or of an event of ``gpu.poll``."""
    return None if rows is None else tuple(GpuProcess(*row) for row in rows)


def mig_instances(items: list[dict[str, Any]]) -> tuple[MigInstance, ...]:
    """Return the MIG instances in one reading, where only they tell what is used."""
    return tuple(
        MigInstance(**{**item, "processes": gpu_processes(item["processes"])}) for item in items
    )


def read_leftovers(
    agent: Agent,
    *,
    ports: Iterable[int] = (),
    homes: Iterable[str] = ("~",),
    timeout_s: float = 20.0,
) -> list[Leftover]:
    """Return what dead servers left in the container or host that the agent runs in."""
    request = {"ports": list(ports), "homes": list(homes)}
    facts = agent.call("leftovers.read", request, timeout_s=timeout_s)
    return [Leftover(**found) for found in facts["leftovers"]]


def read_package(
    agent: Agent,
    interpreter: Iterable[str] | str,
    name: str,
    *,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    timeout_s: float = 20.0,
) -> Package:
    """Return the distribution ``name`` as that interpreter sees it; ``error`` says when it does not."""
    argv = [interpreter] if isinstance(interpreter, str) else list(interpreter)
    request = {"interpreter": argv, "name": name, "cwd": cwd, "env": env, "timeout_s": timeout_s}
    facts = agent.call("package.read", request, timeout_s=timeout_s + 5.0)
    return Package(**{**facts, "others": tuple(facts["others"])})


def _tuple(values: list[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)
