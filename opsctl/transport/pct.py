"""A Proxmox VE container: ``pct exec`` on its node, reached over another transport."""

from __future__ import annotations

import re
from collections.abc import Sequence

from opsctl.errors import TransportError
from opsctl.transport.base import Channel, CommandResult, Transport

# The node's environment leaks into `pct exec` by default, and whether it does changes between versions
# (--keep-env); an empty one with these few names is the same everywhere.
ENVIRONMENT = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/root",
    "LANG=C.UTF-8",
)


class PctTransport:
    """Runs commands inside container ``vmid`` of the node that ``via`` reaches.

    Args:
        vmid: the container's number.
        via: the transport to its node.
        via_name: the node's name in the site file, for messages.
        pct: the program; by its path, for an ordinary user's PATH lacks it.
    """

    def __init__(
        self, vmid: int, via: Transport, via_name: str | None = None, pct: str = "/usr/sbin/pct"
    ) -> None:
        self.vmid = vmid
        self._pct = pct
        self.via = via
        self._via_name = via_name

    @property
    def name(self) -> str:
        return f"pct:{self.vmid} via {self._via_name or self.via.name}"

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> CommandResult:
        result = self.via.run(self._wrap(argv), stdin=stdin, timeout_s=timeout_s)
        refusal = self.explain(result.exit_code, result.stderr) if result.exit_code else None
        if refusal is not None:
            raise refusal
        return CommandResult(tuple(argv), result.exit_code, result.stdout, result.stderr)

    def open(self, argv: Sequence[str]) -> Channel:
        return self.via.open(self._wrap(argv))

    def explain(self, exit_code: int | None, stderr: bytes) -> TransportError | None:
        return explain_pct(self.name, self.vmid, stderr.decode("utf-8", "replace")) or (
            self.via.explain(exit_code, stderr)
        )

    def close(self) -> None:
        self.via.close()

    def _wrap(self, argv: Sequence[str]) -> list[str]:
        return [self._pct, "exec", str(self.vmid), "--", "/usr/bin/env", "-i", *ENVIRONMENT, *argv]


def explain_pct(name: str, vmid: int, stderr: str) -> TransportError | None:
    """Return what pct or lxc-attach itself complained about, or None when the command ran.

    Source:
        pve-container src/PVE/CLI/pct.pm and PVE/LXC/Config.pm; lxc 5 attach.c; the shell of the node.
    """
    if re.search(r"container '?\d+'? not running", stderr) or "Failed to get init pid" in stderr:
        text, code = "the container is not running", "container-stopped"
        step = f"start it: opsctl ct start {vmid}"
    elif re.search(r"Configuration file '\S*' does not exist", stderr):
        text = f"the node has no container {vmid}"
        step, code = "list the node's containers: pct list", "no-such-container"
    elif "vmid: type check" in stderr or "vmid: invalid format" in stderr:
        text, code = f"{vmid} is no container number", "no-such-container"
        step = "container numbers start at 100: pct list"
    elif re.search(r"pct'?: ((command )?not found|No such file)|cannot run \S*pct", stderr):
        text, code = "the node has no pct: it is not a Proxmox VE host", "no-pct"
        step = "correct `via` in the site file to the Proxmox VE node"
    elif re.search(r"please run as root|ipcc_send_rec|Unable to load access control", stderr):
        text, code = "pct needs root on the node", "pct-needs-root"
        step = "reach the node as root, or with `become: sudo`"
    elif "Failed to exec" in stderr and "lxc_attach" in stderr:
        text, code = "the container has no /usr/bin/env", "no-env"
        step = "is it a full Linux system? look inside with `pct enter`"
    else:
        return None
    return TransportError(f"{name}: {text}", next_step=step, code=code, subject=str(vmid))
