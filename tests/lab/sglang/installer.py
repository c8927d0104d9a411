"""Installing packages into an environment: with uv where it is, many times quicker, else with pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.lab import pip_config

TIMEOUT_S = 1800.0
KEPT_LINES = 8


class BuildError(Exception):
    """A step of a build failed; what the installer said is the message."""


def install(python: Path, requirements: list[str], cache: Path, say: Callable[[str], None]) -> None:
    """Install exactly ``requirements``, without what they depend on; ``cache`` keeps what was fetched.

    Raises:
        BuildError: neither uv nor pip could.
    """
    uv = find_uv()
    if uv is not None:
        argv = [uv, "pip", "install", "--quiet", "--python", str(python), "--no-deps"]
        done = _run([*argv, *requirements], {**pip_config.read(), "UV_CACHE_DIR": str(cache)})
        if done.returncode == 0:
            return
        say(f"uv could not install ({_tail(done)[-1]}): trying pip, which takes minutes longer")
    done = _run([*_pip(python), "install", "--no-deps", *requirements])
    if done.returncode != 0:
        what = " ".join(requirements)
        raise BuildError(f"pip exited {done.returncode}: {what}\n" + "\n".join(_tail(done)))


def find_uv() -> str | None:
    """Return uv of the environment that runs this, or on PATH."""
    return shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


def _pip(python: Path) -> list[str]:
    pip = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check"]
    return [*pip, "--python", str(python)]


def _run(argv: list[str], more: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    from tests.lab.fixture import outside_network

    with outside_network():  # a test process may be in the lab's network, which leads nowhere
        return subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**os.environ, **(more or {})},
            stdin=subprocess.DEVNULL,
            check=False,
        )


def _tail(done: subprocess.CompletedProcess[str]) -> list[str]:
    return done.stderr.strip().splitlines()[-KEPT_LINES:] or [f"exit {done.returncode}"]
