"""Who runs the files of a package: real environments that share one interpreter file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from opsctl.agent.ops.patch_users import running

pytestmark = pytest.mark.wire

SERVER = """
import os, sys
child = os.fork()
if child:
    print(child, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def environments(tmp_path: Path) -> list[Path]:
    """Return two environments of the same Python, each with a package `served` of its own."""
    made = []
    for name in ("one", "two"):
        folder = tmp_path / name
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60
        )
        package = next(folder.glob("lib/python3*/site-packages")) / "served"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "launch.py").write_text(SERVER)
        made.append(folder)
    return made


@contextmanager
def process(*argv: str | Path) -> Iterator[tuple[int, int]]:
    """Run a program until the end of the block; yield its pid and its child's."""
    child = subprocess.Popen(list(map(str, argv)), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        said = int(child.stdout.readline())
        yield child.pid, said
    finally:
        child.stdin.close()
        child.wait(timeout=20)
        child.stdout.close()


def python(environment: Path) -> Path:
    return environment / "bin" / "python"


def root(environment: Path) -> str:
    return str(next(environment.glob("lib/python3*/site-packages")) / "served")


def test_only_the_environment_s_own_processes_run_its_files(environments: list[Path]) -> None:
    """The other environment executes the same file, and a note-taker names the module: neither counts."""
    one, two = environments
    assert os.path.realpath(python(one)) == os.path.realpath(python(two))
    with ExitStack() as stack:
        server, worker = stack.enter_context(process(python(one), "-m", "served.launch"))
        stack.enter_context(process(python(two), "-m", "served.launch"))
        notes = (
            'print(0, flush=True); input("served.launch") if 0 else __import__("sys").stdin.read()'
        )
        stack.enter_context(process(python(one), "-c", notes, "my-served-notes"))

        found = running(str(python(one)), "served", root(one))

    assert {item["pid"] for item in found} == {server, worker}


def test_nobody_runs_it(environments: list[Path]) -> None:
    """An environment that only lies there has no users."""
    assert running(str(python(environments[0])), "served", root(environments[0])) == []
