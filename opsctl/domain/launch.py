"""What is launched: names, flags, environment and the request to the far side; pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from pathlib import PurePosixPath
from typing import Any

from opsctl.domain.fingerprint import Content
from opsctl.records import dataclass

DEFAULT_LOG_DIR = "/var/log/opsctl"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/cuda/bin"
SECRET = "(secret)"
RUN_DIR = "@RUN_DIR@"  # in an argument: the launch's own folder on the host, filled in there
_NOT_IN_UNIT_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One launch: everything that the far side is told, without the values of secrets."""

    run: str
    server: str
    argv: tuple[str, ...]
    port: int
    address: str
    log: str
    cwd: str
    user: str | None
    nofile: int
    public_env: Mapping[str, str]  # secrets stand as "(secret)"
    package: str | None = None
    package_version: str | None = None
    gpu_model: str | None = None
    patches: Mapping[str, str] = field(default_factory=dict)  # id -> sha256 of its content
    files: Mapping[str, str] = field(default_factory=dict)  # name -> content, placed in RUN_DIR
    added_env: Mapping[str, str] = field(
        default_factory=dict
    )  # what a resolution adds to the site's

    @property
    def unit(self) -> str:
        return unit_name(self.server, self.run)

    def content(self) -> Content:
        """Return what decides whether this launch works."""
        return Content(
            package=self.package,
            package_version=self.package_version,
            arguments=(
                *self.argv[1:],
                *(f"{name}:{self.files[name]}" for name in sorted(self.files)),
            ),
            gpu_model=self.gpu_model,
            patches=self.patches,
            environment=dict(self.public_env),
            interpreter=self.argv[0] if self.argv else None,
        )

    def record(self) -> dict[str, Any]:
        """Return what the launch record on the host holds beside argv, log and identity."""
        return {
            "port": self.port,
            "address": self.address,
            "server": self.server,
            "environment_sha256": environment_hash(self.public_env),
            "package": self.package,
            "package_version": self.package_version,
            "patches": dict(self.patches),
            "fingerprint": self.content().fingerprint(),
        }

    def request(
        self, env: Mapping[str, str], via: str, systemd_argv: Sequence[str]
    ) -> dict[str, Any]:
        """Return the request of ``launch.start``; ``env`` holds the secrets and is never kept."""
        return {
            "run": self.run,
            "server": self.server,
            "argv": list(self.argv),
            "env": dict(env),
            "cwd": self.cwd,
            "user": self.user,
            "log": self.log,
            "nofile": self.nofile,
            "files": dict(self.files),
            "unit": self.unit if via == "systemd" else None,
            "via": via,
            "systemd_argv": list(systemd_argv),
            "record": self.record(),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the plan as the ledger keeps it; no value of a secret is in it."""
        return {**asdict(self), "argv": list(self.argv), "unit": self.unit}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> LaunchPlan:
        """Read what ``to_json`` made."""
        values = {name: data[name] for name in LaunchPlan.__slots__}
        return LaunchPlan(**{**values, "argv": tuple(data["argv"])})


def back_id(run: str) -> str:
    """Return the id under which a failed run launches the last attempt that passed."""
    return f"{run}-back"


def unit_name(server: str, run: str) -> str:
    """Return the transient unit's name, which carries the run's id."""
    return f"opsctl-{safe_name(server)}-{run}.service"


def log_path(log_dir: str | None, server: str, run: str) -> str:
    """Return the log of one run: every launch has its own."""
    return f"{(log_dir or DEFAULT_LOG_DIR).rstrip('/')}/{safe_name(server)}-{run}.log"


def safe_name(name: str) -> str:
    """Return ``name`` as it may stand in a unit's name or a file's."""
    return _NOT_IN_UNIT_NAMES.sub("-", name).strip("-") or "server"


def flags_of(args: Mapping[str, Any]) -> list[str]:
    """Turn the site's ``args`` into flags: true is a bare flag, false and null are left out.

    A list follows its flag as several elements, as argparse's ``nargs`` wants it.
    """
    flags: list[str] = []
    for name, value in args.items():
        if value is None or value is False:
            continue
        flags.append(f"--{name}")
        if value is True:
            continue
        items = value if isinstance(value, list | tuple) else [value]
        flags += [str(item) for item in items]
    return flags


def base_environment(run: str, server: str, interpreter: str | None) -> dict[str, str]:
    """Return what every launched server gets: a PATH that begins with its own environment's programs."""
    path = SYSTEM_PATH
    if interpreter is not None and interpreter.startswith("/"):
        path = f"{PurePosixPath(interpreter).parent}:{path}"
    return {
        "PATH": path,
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "OPSCTL_RUN": run,
        "OPSCTL_SERVER": server,
    }


def environment_hash(env: Mapping[str, str]) -> str:
    """Return the sha256 over the environment without its secrets."""
    text = json.dumps(dict(sorted(env.items())), separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def tensor_parallel(argv: Sequence[str]) -> int:
    """Return how many GPUs the arguments ask for: tp times pp, 1 without any.

    Source: the flags of sglang 0.5.8 to 0.5.23, ``--tensor-parallel-size`` and ``--pipeline-parallel-size``.
    """
    tp = value_of(argv, ("--tp", "--tp-size", "--tensor-parallel-size"))
    pp = value_of(argv, ("--pp", "--pp-size", "--pipeline-parallel-size"))
    return _count(tp) * _count(pp)


def ranks_here(argv: Sequence[str]) -> int:
    """Return how many of these GPUs are on this machine: ``--nnodes`` shares them out evenly."""
    nodes = _count(value_of(argv, ("--nnodes",)))
    return -(-tensor_parallel(argv) // nodes)


def value_of(argv: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the last value that is given for a flag, as argparse takes it; None without one."""
    found = None
    for index, item in enumerate(argv):
        flag, equals, value = item.partition("=")
        if flag not in names:
            continue
        if equals:
            found = value
        elif index + 1 < len(argv):
            found = argv[index + 1]
    return found


def _count(text: str | None) -> int:
    return int(text) if text and text.isdigit() and int(text) > 0 else 1
