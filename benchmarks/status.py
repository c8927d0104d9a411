"""``opsctl status`` of one host, whole process, against ``ssh host true``."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.agent_echo import box
from benchmarks.measure import Figure, in_turns, process
from tests.wire.sshd import Sshd


def write_site(sshd: Sshd) -> Path:
    """Write a site file whose one host is the private sshd."""
    site = sshd.folder / "opsctl.yaml"
    host = f"{{ssh: box, config_file: {sshd.config}, known_hosts: {sshd.known_hosts}}}"
    site.write_text(f"hosts:\n  box: {host}\n")
    return site


def run() -> list[Figure]:
    """Measure both as a shell would run them."""
    with box() as sshd:
        command = [sys.executable, "-m", "opsctl", "status", "box", "--site", str(write_site(sshd))]
        ours = process(command, allowed=(0, 21))  # 21: no NVIDIA library here is "could not tell"
        peer = process(["ssh", "-F", str(sshd.config), "box", "true"])
        return [Figure("opsctl status of one host / ssh host true", *in_turns(ours, peer, 11), 2.5)]
