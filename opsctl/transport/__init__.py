"""Ways to a host: this machine, SSH, a Proxmox container. See ``base.Transport``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opsctl.errors import ConfigError
from opsctl.transport.base import Transport


def open_transport(
    entry: Mapping[str, Any], reach: Callable[[str], Transport] | None = None
) -> Transport:
    """Return the transport that one host entry of the site file describes; it connects on first use.

    Args:
        entry: ``{"local": True}``, ``{"ssh": "root@host:22"}`` or ``{"pct": 129, "via": "pve1"}``, each
            with an optional ``become: sudo`` (not for pct: it belongs to the node). For ssh also
            ``config_file``, ``known_hosts``, ``identity_file``, ``connect_timeout_s``.
        reach: returns the transport to another host by its name, for ``via``: a container and its node
            share one connection.
    """
    become = entry.get("become")
    if entry.get("ssh"):
        from opsctl.transport.ssh import SshTransport
        from opsctl.transport.ssh_connect import parse_target

        paths = {name: entry.get(name) for name in ("known_hosts", "identity_file")}
        options = {name: str(path) for name, path in paths.items() if path is not None}
        if entry.get("config_file") is not None:
            options["ssh_config_path"] = str(entry["config_file"])
        timeout_s = float(entry.get("connect_timeout_s", 10.0))
        target = parse_target(entry["ssh"], connect_timeout_s=timeout_s, **options)
        return SshTransport(target, become)
    if entry.get("pct"):
        from opsctl.transport.pct import PctTransport

        via = entry.get("via")
        if via is None:
            return PctTransport(int(entry["pct"]), open_transport({"local": True}), "this machine")
        if reach is None:
            raise ConfigError(f"the host '{via}' that container {entry['pct']} is on is not known")
        return PctTransport(int(entry["pct"]), reach(via), via)
    from opsctl.transport.local import LocalTransport

    return LocalTransport(become)
