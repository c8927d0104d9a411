"""A shell command as it has to be typed here, to run on a host of the site."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opsctl.site import Host


def typed_here(name: str, entry: Host, command: str) -> str:
    """Return the command line of this machine that runs ``command`` on host ``name``.

    Args:
        name: of the host's entry in the site file.
        entry: how the host is reached.
        command: one simple shell command, for root.
    """
    if entry.pct is not None:
        return f"opsctl ct exec {name} -- {command}"
    if entry.ssh is None:
        return command
    place, _, port = entry.ssh.rpartition(":")
    if not (place and port.isdigit()) or ":" in place:
        place, port = entry.ssh, ""
    words = ["ssh"]
    words += ["-F", str(entry.config_file)] if entry.config_file else []
    words += ["-i", str(entry.identity_file)] if entry.identity_file else []
    words += ["-p", port] if port else []
    sudo = "sudo " if entry.become else ""
    return f"{shlex.join([*words, place])} {shlex.quote(sudo + command)}"
