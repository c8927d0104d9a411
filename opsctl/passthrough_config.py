"""Where a container's lines are mended: in its file on the node, or through the API as far as that may.

The API sets ``devN`` for ``root@pam`` alone, logged in with its password: Proxmox VE compares the caller
with that name, and a token's name is another one, also for a token of root. Raw ``lxc.*`` lines cannot be
set through it by anybody (pve-container: check_ct_modify_config_perm, update_vm).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from opsctl.domain.passthrough_fix import api_settings, text_of
from opsctl.errors import AgentError, SafetyRefusal
from opsctl.output import Finding

if TYPE_CHECKING:
    from opsctl.containers import Place
    from opsctl.domain.passthrough_fix import Edit
    from opsctl.proxmox_container import Container
    from opsctl.session import Hosts

ROOT = "root@pam"
REFUSALS = ("container-locked", "changed-meanwhile", "config-busy")


class Configuration(Protocol):
    """One container's configuration: its text of now, and the way to write edits to it."""

    by: str
    path: str
    text: str

    def refusal(self, edits: Sequence[Edit]) -> Finding | None:
        """Return why these edits cannot be written this way, and what to do; None when they can."""

    def write(self, edits: Sequence[Edit], text: str) -> str | None:
        """Write them; returns where the old text is kept, where it is."""


class ByFile:
    """The file on the node, replaced whole under the node's own lock; needs root there."""

    by = "file"

    def __init__(self, hosts: Hosts, place: Place) -> None:
        self._agent, self._vmid = hosts.agent(place.node_host), place.vmid
        before = self._agent.call("ctconf.read", {"vmid": place.vmid}, timeout_s=15.0)
        self.path, self.text, self._sha256 = before["path"], before["text"], before["sha256"]

    def refusal(self, edits: Sequence[Edit]) -> Finding | None:
        return None

    def write(self, edits: Sequence[Edit], text: str) -> str | None:
        request = {"vmid": self._vmid, "sha256": self._sha256, "text": text}
        try:
            return str(self._agent.call("ctconf.replace", request, timeout_s=30.0)["backup"])
        except AgentError as error:
            if error.code not in REFUSALS:
                raise
            raise SafetyRefusal(
                f"container {self._vmid}: {error.message.rpartition(': ')[2]}; nothing was written",
                next_step="look at what changes it, then run this again",
                code=error.code,
                subject=str(self._vmid),
            ) from error


class ByApi:
    """The API's ``config``: devN lines alone, and only as root@pam."""

    by = "api"

    def __init__(self, container: Container, login: str) -> None:
        self._container, self._login = container, login
        config = container.config()
        self._digest: str | None = config.pop("digest", None)
        self.path = f"/etc/pve/lxc/{container.vmid}.conf"
        self.text = text_of(config)

    def refusal(self, edits: Sequence[Edit]) -> Finding | None:
        vmid, settings = self._container.vmid, api_settings(edits)
        raw = [edit for edit in edits if edit.key not in settings]
        if not raw and self._login == ROOT:
            return None
        if raw:
            text = (
                "lxc.* lines cannot be set through the API by anybody, only in the file on the node"
            )
        else:
            text = f"the API lets only {ROOT} itself set devices; {self._login} may not"
            text += f" (no token may, not even one of {ROOT})"
        return Finding("root-only", str(vmid), text, self._by_hand(settings, raw))

    def _by_hand(self, settings: dict[str, str], raw: Sequence[Edit]) -> str:
        """Return what root types on the node, and how opsctl could do it."""
        vmid = self._container.vmid
        words = " ".join(f"--{key} {value}" for key, value in settings.items())
        steps = [f"pct set {vmid} {words}"] if settings else []
        for edit in raw:
            place = f"in {self.path}" + (f" in the place of `{edit.old}`" if edit.old else "")
            steps.append(f"`{edit.new}` {place}")
        return (
            f"as root on the node: {'; '.join(steps)}. Or let opsctl do it: the node's host entry as root or "
            f"with `become: sudo`" + ("" if raw else f", or `user: {ROOT}` with its password")
        )

    def write(self, edits: Sequence[Edit], text: str) -> str | None:
        self._container.configure(api_settings(edits), self._digest)
        return None


def open_configuration(
    hosts: Hosts, place: Place, container: Container, plan: Callable[[str], Sequence[Edit]]
) -> Configuration:
    """Return the way that can write what ``plan`` wants of a text: the API where it may, else the file.

    Where neither can, the API's: it has read the text, and its refusal says what is missing.

    Raises:
        PveError, TransportError, AgentError: the configuration could not be read.
    """
    access = hosts.site.host(place.node_host).proxmox
    if access is None or access.api is None:
        return ByFile(hosts, place)
    by_api = ByApi(container, access.user or access.token_id or "")
    if by_api.refusal(plan(by_api.text)) is None:
        return by_api
    try:
        return ByFile(hosts, place)
    except AgentError as error:
        if error.code != "no-config":
            raise
        return by_api


def still_pending(container: Container, edits: Sequence[Edit]) -> list[str]:
    """Return which of the edited settings the running container takes only at its next start."""
    wanted: dict[str, Any] = api_settings(edits)
    return [key for key in container.pending() if key in wanted]
