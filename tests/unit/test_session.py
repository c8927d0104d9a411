"""Transports of a run: who shares a connection."""

from __future__ import annotations

import json
from pathlib import Path

from opsctl.session import SHARED_BY, Hosts
from opsctl.site import load_site
from opsctl.transport.pct import PctTransport


def test_a_container_goes_over_its_nodes_connection_and_many_do_not(tmp_path: Path) -> None:
    """One SSH handshake for a container and its node; sshd opens ten sessions on one connection."""
    containers = {f"ct{n}": {"pct": n, "via": "pve1"} for n in range(101, 109)}
    path = tmp_path / "opsctl.yaml"
    path.write_text(json.dumps({"hosts": {"pve1": {"ssh": "root@192.0.2.6"}, **containers}}))
    hosts = Hosts(load_site(path))

    ways = [hosts.transport(name) for name in containers]

    node = hosts.transport("pve1")
    shared = [isinstance(way, PctTransport) and way.via is node for way in ways]
    assert shared == [True] * SHARED_BY + [False] * (8 - SHARED_BY)
    hosts.close()
