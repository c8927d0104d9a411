"""What the lab asks of the kernel before it builds anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.instance import CHECKOUT

ASK = """
import os, sys
sys.path.insert(0, sys.argv[1])
from tests.lab import kernel, rootfs
from tests.lab.errors import LabError
os.mkdir(sys.argv[2] + "/proc")
kernel.unshare(kernel.NEWNS)
kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
kernel.bind("/proc", sys.argv[2] + "/proc", recursive=True)
before = kernel.in_chroot()
os.chroot(sys.argv[2])
os.chdir("/")
try:
    rootfs.check_machine()
except LabError as error:
    print(before, error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot(2) needs root")
def test_a_chroot_is_told_before_anything_is_built(tmp_path: Path) -> None:
    """Whoever enters the lab's namespaces would be outside of it; one sentence says so."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(CHECKOUT), str(tmp_path)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip

    assert done.stdout.startswith("False not inside a chroot: "), done.stdout + done.stderr
