"""What is loaded to connect over SSH, and that what was left out is still there for who asks for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def python(code: str) -> str:
    """Run code in a process of its own, which has loaded nothing yet."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_connecting_needs_no_yaml_and_no_asyncio() -> None:
    """Two copies of PyYAML and asyncio are a third of what fabric loads."""
    names = {"yaml", "invoke.vendor.yaml.loader", "asyncio", "unittest.mock"}
    code = f"import sys, opsctl.transport.ssh; print(sorted({names!r} & set(sys.modules)))"
    assert python(code) == "[]"


def test_a_configuration_file_of_fabric_is_read_as_ever(tmp_path: Path) -> None:
    """Its YAML is loaded when there is something to read."""
    (tmp_path / ".fabric.yaml").write_text("run: {echo: true}\nown: [1, 2]\n")
    code = (
        "import os; "
        f"os.environ['HOME'] = {str(tmp_path)!r}; "
        "from opsctl.transport.light_import import fabric; "
        "config = fabric.Config(); print(config.run.echo, config.own); "
        "import sys; from invoke.util import yaml; loaded = sys.modules['invoke.vendor.yaml']; "
        "print(yaml.safe_load('a: 1'), sys.modules['invoke.vendor.yaml'] is loaded)"
    )
    assert python(code).splitlines() == ["True [1, 2]", "{'a': 1} True"]


def test_what_was_loaded_before_stays() -> None:
    """In a process that has fabric already, as a test's, nothing is replaced."""
    code = (
        "import unittest.mock as mock, invoke.vendor.yaml as yaml, sys; "
        "import opsctl.transport.light_import; "
        "print(sys.modules['unittest.mock'] is mock, sys.modules['invoke.vendor.yaml'] is yaml)"
    )
    assert python(code) == "True True"
