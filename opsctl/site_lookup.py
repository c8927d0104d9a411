"""Finding the site file, and finding hosts and servers in a site by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from opsctl.errors import UsageError

if TYPE_CHECKING:
    from opsctl.site import Host, Server

ONLY_THERE = frozenset({"127.0.0.1", "localhost", "::1", "0.0.0.0", "::"})
"""Addresses that lead elsewhere from another machine."""


class SiteLookup:
    """What one asks a site, however it was read."""

    if TYPE_CHECKING:
        hosts: dict[str, Host]
        servers: dict[str, Server]
        patches_dir: str | None
        _path: Path | None

    @property
    def path(self) -> Path | None:
        """The file it was read from; None without one."""
        return self._path

    @property
    def patch_folder(self) -> Path | None:
        """The folder of the site's own patches; None without one."""
        if self.patches_dir is None:
            return None
        base = self._path.parent if self._path else Path()
        return base / Path(self.patches_dir).expanduser()

    def host(self, name: str) -> Host:
        """Return a host entry. Raises UsageError with the nearest name."""
        if name in self.hosts:
            return self.hosts[name]
        if name in self.servers:
            its = self.servers[name].host
            raise UsageError(
                f"'{name}' is a server, not a host", next_step=f"its host: {its}", subject=name
            )
        raise UsageError(f"there is no host '{name}'", next_step=self._near(name), subject=name)

    def server(self, name: str) -> Server:
        """Return a server entry. Raises UsageError with the nearest name."""
        if name in self.servers:
            return self.servers[name]
        if name in self.hosts:
            its = [one for one, entry in self.servers.items() if name in self._places_of(entry)]
            step = (
                f"its servers: {', '.join(its)}"
                if its
                else f"servers: {', '.join(self.servers) or 'none'}"
            )
            raise UsageError(f"'{name}' is a host, not a server", next_step=step, subject=name)
        raise UsageError(f"there is no server '{name}'", next_step=self._near(name), subject=name)

    def _places_of(self, entry: Server) -> set[str | None]:
        """Return the hosts that a server is on: its own, that host's node, and that of its GPUs."""
        own = self.hosts.get(entry.host)
        return {entry.host, entry.gpus.host, own.via if own else None}

    def server_or_host(self, name: str) -> None:
        """Raise UsageError with the nearest names where ``name`` is neither a server nor a host."""
        if name not in self.servers and name not in self.hosts:
            raise UsageError(
                f"there is no server or host '{name}'", next_step=self._near(name), subject=name
            )

    def gpu_host_of(self, name: str) -> str:
        """Return the name of the host that owns the GPUs of server ``name``."""
        server = self.server(name)
        return server.gpus.host or server.host

    def _near(self, name: str) -> str:
        import difflib

        known = [*self.servers, *self.hosts]
        near = difflib.get_close_matches(name, known, 3)
        where = str(self._path) if self._path else "no site file was found: opsctl init makes one"
        begin = f"did you mean {' or '.join(repr(one) for one in near)}? " if near else ""
        servers, hosts = ", ".join(self.servers) or "none", ", ".join(self.hosts) or "none"
        return f"{begin}servers: {servers}; hosts: {hosts} ({where})"


def find_site_file(explicit: Path | None) -> Path | None:
    """Return the site file to use: the named one, ./opsctl.yaml, or the user's; None without any."""
    if explicit is not None:
        return explicit
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for path in (Path("opsctl.yaml"), config / "opsctl" / "opsctl.yaml"):
        if path.is_file():
            return path
    return None
