"""A running SGLang server as an entry of the site file: proven first, then written down; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opsctl.domain.launch_line import (
    LaunchLine,
    is_python,
    read_launch_line,
    read_title,
)
from opsctl.domain.process import describe
from opsctl.domain.protection import Table, container_of, in_unit_of
from opsctl.errors import CouldNotTell, SafetyRefusal
from opsctl.facts import Process
from opsctl.records import dataclass

# What SGLang 0.5.8 to 0.5.23, torch, NCCL, Triton, FlashInfer and the model hubs read.
KEPT_PREFIXES = (
    "SGLANG_", "SGL_", "NCCL_", "CUDA_", "NVIDIA_", "TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_", "DG_",
    "HF_", "HUGGINGFACE_", "HUGGING_FACE_", "TRANSFORMERS_", "TOKENIZERS_", "MODELSCOPE_", "AWS_",
    "OMP_", "MKL_", "GLOO_", "UCX_", "NVSHMEM_", "MOONCAKE_", "LMCACHE_", "MALLOC_", "OUTLINES_",
)  # fmt: skip
KEPT_NAMES = (
    "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH", "PATH", "PYTHONPATH", "PYTHONHASHSEED",
    "XDG_CACHE_HOME", "TMPDIR", "CC", "CXX", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy",
    "https_proxy", "no_proxy",
)  # fmt: skip
SECRET_NAME = (
    r"(?i)(^|[-_])(token|secret|secrets|password|passwd|passphrase|api[-_]?key|access[-_]?key|private[-_]?key"
    r"|key|credentials?|auth|bearer|cookie)([-_]|$)"
)
SECRET_VALUE = (
    r"(^|[^A-Za-z0-9])(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}"
    r"|glpat-[A-Za-z0-9_-]{16,}|(AKIA|ASIA)[A-Z0-9]{16}|eyJ[A-Za-z0-9_-]{8,}\.eyJ)"
    r"|://[^/@\s]*:[^/@\s]+@|-----BEGIN"
)
NAMED = 5  # servers that a refusal names


@dataclass(frozen=True, slots=True)
class Running:
    """One SGLang server seen in a process table, with what proves it."""

    root: Process
    line: LaunchLine
    workers: tuple[str, ...]  # titles in its tree
    pids: tuple[int, ...]  # its whole tree
    container: str | None  # of its cgroup, as this table shows it
    beside: tuple[Process, ...] = ()  # others that live in its systemd unit

    @property
    def pid(self) -> int:
        return self.root.pid

    def describe(self) -> str:
        """Return pid, owner, port and model, for a list."""
        return f"pid {self.pid} of {self.root.user or self.root.uid}: {self.line.describe()}"


@dataclass(frozen=True, slots=True)
class Started:
    """How the server was started, read on its host; see agent/ops/adopt.py."""

    interpreter: str | None
    cwd: str | None
    output: str | None
    env: Mapping[str, str] | None
    secrets: tuple[str, ...]
    other_secrets: tuple[str, ...]


def find_running(processes: Sequence[Process]) -> list[Running]:
    """Return the SGLang servers of a process table, by pid.

    A forked worker shows its parent's command line until it is titled, so the topmost one counts.
    """
    table = Table.of(processes)
    found = []
    for process in sorted(table.by_pid.values(), key=lambda one: one.pid):
        line = _proven_line(process)
        parent = table.by_pid.get(process.ppid)
        if line is None or (parent is not None and _proven_line(parent) is not None):
            continue
        below = table.descendants(process.pid)
        titles = tuple(title for one in below if (title := read_title(one.argv)))
        pids = (process.pid, *(one.pid for one in below))
        others = (one for one in in_unit_of(process, table.by_pid.values()) if one.pid not in pids)
        container = container_of(process.cgroup)
        found.append(Running(process, line, titles, pids, container, tuple(others)))
    return found


def _proven_line(process: Process) -> LaunchLine | None:
    """Return the command line of a server that really is a Python program: argv can be written by anyone."""
    if process.is_dead or not is_python((process.exe or "").removesuffix(" (deleted)")):
        return None
    return read_launch_line(process.argv)


def server_of(pid: int, processes: Sequence[Process], host: str = "here") -> Running:
    """Return the server that ``pid`` is, or is a worker of; ``host`` is where the processes were read.

    Raises:
        SafetyRefusal: there is no such process, or it belongs to no SGLang server.
    """
    table = Table.of(processes)
    process = table.by_pid.get(pid)
    servers = find_running(processes)
    more = f"; and {len(servers) - NAMED} more" if len(servers) > NAMED else ""
    near = "; ".join(one.describe() for one in servers[:NAMED]) or "none"
    near = f"SGLang servers there: {near}{more}"
    if process is None:
        raise SafetyRefusal(
            f"there is no process {pid}, as host '{host}' numbers them",
            next_step=f"{near}; a container numbers its processes itself: name it with --host",
            code="no-process",
            subject=str(pid),
        )
    for one in servers:
        if pid in one.pids:
            return one
    why = "" if process.exe else " (its program cannot be read: try as root, or --sudo)"
    raise SafetyRefusal(
        f"pid {pid} is no SGLang server and no worker of one: {describe(process)}{why}",
        next_step=near,
        code="not-a-server",
        subject=str(pid),
    )


def refuse_unproven(found: Running, ports: Sequence[int] | None) -> None:
    """Refuse a command line alone: a server has workers or listens. Raises CouldNotTell (exit 21)."""
    if found.workers or ports:
        return
    raise CouldNotTell(
        f"pid {found.pid} has the command line of an SGLang server, but no worker and no listening port",
        next_step="is it only starting, or ending? look again in a minute",
        code="not-proven",
        subject=str(found.pid),
    )


def port_of(found: Running, listening: Sequence[int] | None, given: int | None) -> int:
    """Return the server's port: named by its command line, or the only one that it listens on.

    Raises:
        CouldNotTell: its config file names the port, and it listens on none or several.
    """
    port = given or found.line.port
    if port is None and listening is not None and len(listening) == 1:
        port = listening[0]
    if port is not None and 0 < port < 65536:
        return port
    seen = ", ".join(str(one) for one in listening or ()) or "none that can be seen"
    raise CouldNotTell(
        f"its port stands in a config file, and it listens on: {seen}",
        next_step="name the port with --port",
        code="which-port",
        subject=str(found.pid),
    )
