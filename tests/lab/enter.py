"""Run programs inside a lab: in its process, mount and network namespaces, with its own HOME."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.errors import LabError
from tests.lab.instance import CHECKOUT, Instance, Record

NEEDED = ("click", "fabric", "pydantic", "sqlalchemy")  # a system's Python may have some of them
NOT_SET_UP = "opsctl is not set up here: run `make demo` once, or `pip install .` for this Python"


def lab_environment(
    instance: Instance, record: Record, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment of programs in the lab."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SSH_", "LC_", "XDG_", "OPSCTL_"))
    }
    _write_opsctl(instance)
    paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment |= {
        "PATH": os.pathsep.join(
            [str(instance.bin_dir), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        ),
        "HOME": str(instance.home),
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "OPSCTL_SITE": str(instance.site_file),
        "OPSCTL_LAB": instance.name,
        "OPSCTL_LAB_DIR": str(instance.dir.parent),
        "OPSCTL_LAB_CACHE": str(instance.cache),
        "OPSCTL_LAB_INSIDE": str(instance.dir),
    }
    if record.mode == "no-root":
        from tests.lab.rootless import gpu_environment

        environment |= gpu_environment(instance)
    return environment | dict(extra or {})


def _write_opsctl(instance: Instance) -> None:
    """Put this checkout's opsctl on the lab's PATH; nothing is installed.

    It is run by this interpreter, or by that of ``make demo`` when this one lacks what opsctl needs.
    """
    program = instance.bin_dir / "opsctl"
    made = CHECKOUT / ".venv" / "bin" / "python"
    own = all(importlib.util.find_spec(name) is not None for name in NEEDED)
    if own or made.exists():
        python = shlex.quote(sys.executable if own else str(made))
        text = f'#!/bin/sh\nexec {python} -m opsctl "$@"\n'
    else:
        text = f"#!/bin/sh\necho {shlex.quote(NOT_SET_UP)} >&2\nexit 10\n"
    with contextlib.suppress(OSError):
        if program.read_text() == text:
            return
    instance.bin_dir.mkdir(parents=True, exist_ok=True)
    fresh = program.with_suffix(f".{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(program)


def enter_argv(
    instance: Instance, record: Record, argv: Sequence[str], cwd: Path | None = None
) -> list[str]:
    """Return the argv that runs ``argv`` inside the lab and dies when its caller dies."""
    where = str(cwd or Path.cwd())
    if record.keeper_pid is None or instance.is_inside():
        return ["env", "-C", where, "--", *argv]
    return [
        *("nsenter", "-t", str(record.keeper_pid), "--pid", "--mount", "--net", "--"),
        *("setpriv", "--pdeathsig", "TERM", "env", "-C", where, "--", *argv),
    ]


def run_inside(
    instance: Instance,
    record: Record,
    argv: Sequence[str],
    *,
    timeout_s: float,
    stdin: bytes | None = None,
    extra_env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run ``argv`` inside the lab to its end and return what it printed.

    Raises:
        subprocess.TimeoutExpired: it was killed after ``timeout_s``.
    """
    return subprocess.run(
        enter_argv(instance, record, argv, cwd),
        input=stdin if stdin is not None else b"",
        capture_output=True,
        timeout=timeout_s,
        env=lab_environment(instance, record, extra_env),
        check=False,
    )


def exec_inside(
    instance: Instance, argv: Sequence[str], extra_env: Mapping[str, str] | None = None
) -> None:
    """Replace this process by ``argv``, running inside the lab."""
    record = require_ready(instance)
    command = enter_argv(instance, record, argv)
    if shutil.which(command[0]) is None:
        raise LabError(f"{command[0]} is not installed")
    environment = lab_environment(instance, record, extra_env)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdout.flush()
    os.execvp(command[0], command)


def require_ready(instance: Instance) -> Record:
    """Return the record of a lab that is up.

    Raises:
        LabError: it is not.
    """
    record = instance.ready_record()
    if record is None:
        raise LabError(
            f"the lab {instance.name} is not up; bring it up with: python -m tests.lab up"
        )
    return record


def must(argv: Sequence[str], *, timeout_s: float = 60, stdin: str | None = None) -> str:
    """Run a tool of the machine and return its stdout; a failure is a LabError with its last words."""
    try:
        done = subprocess.run(
            list(argv),
            input=stdin,
            text=True,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL if stdin is None else None,
        )
    except FileNotFoundError:
        raise LabError(f"{argv[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"`{' '.join(argv)}` did not end within {timeout_s:.0f} s") from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise LabError(f"`{' '.join(argv)}` exited {done.returncode}: {' / '.join(words)}")
    return done.stdout
