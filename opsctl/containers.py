"""Which container a command means, and the way to its node's Proxmox API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opsctl.errors import ConfigError, TransportError, UsageError
from opsctl.records import dataclass

if TYPE_CHECKING:
    from opsctl.proxmox import Api
    from opsctl.proxmox_container import Container
    from opsctl.session import Hosts
    from opsctl.site import Site
    from opsctl.transport.base import Transport


@dataclass(frozen=True, slots=True)
class Place:
    """A container: its number, the host entry of its node, and the servers that the site puts into it."""

    vmid: int
    node_host: str
    servers: tuple[str, ...]


def find_place(site: Site, target: str, node: str | None = None) -> Place:
    """Return the container that a word means: a vmid, a server, or the name of a pct host entry.

    Raises:
        UsageError: there is no such thing, or it is not in a container; a vmid without one clear node.
    """
    if node is not None:
        site.host(node)
    if target.isdigit():
        return _at(site, int(target), node or _only_node(site, int(target)))
    name = site.servers[target].host if target in site.servers else target
    if name not in site.hosts:
        site.server(target)  # raises, with the nearest name
    entry = site.hosts[name]
    if entry.pct is None or entry.via is None:
        raise UsageError(
            f"'{target}' is not in a container: its host '{name}' is reached directly",
            next_step="name a container: its vmid, a server in it, or its host entry",
            subject=target,
        )
    return _at(site, entry.pct, node or entry.via)


def nodes_of(site: Site) -> list[str]:
    """Return the host entries that are Proxmox nodes: a container names them, or they have the block."""
    named = [host.via for host in site.hosts.values() if host.via is not None]
    marked = [name for name, host in site.hosts.items() if host.proxmox is not None]
    return list(dict.fromkeys([*marked, *named]))


def _only_node(site: Site, vmid: int) -> str:
    if vmid < 100:
        raise UsageError(f"{vmid} is no container number: they start at 100", subject=str(vmid))
    holding = {host.via for host in site.hosts.values() if host.pct == vmid and host.via}
    found = sorted(holding) or nodes_of(site)
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(
            "the site names no Proxmox node",
            next_step="name it with --node HOST, or add `proxmox: {}` to its host entry",
            subject=str(vmid),
        )
    raise UsageError(
        f"container {vmid} could be on any of {', '.join(found)}",
        next_step=f"name its node: --node {found[0]}",
        subject=str(vmid),
    )


def _at(site: Site, vmid: int, node: str) -> Place:
    if site.host(node).pct is not None:
        raise UsageError(f"'{node}' is itself a container, no node", subject=node)
    inside = {name for name, host in site.hosts.items() if (host.pct, host.via) == (vmid, node)}
    servers = tuple(name for name, server in site.servers.items() if server.host in inside)
    return Place(vmid, node, servers)


def open_container(hosts: Hosts, place: Place) -> Container:
    """Return the container's handle; its ``api`` is closed by the caller.

    Raises:
        ConfigError: a secret cannot be read, or the node's name cannot be told.
    """
    from opsctl.proxmox_container import Container

    api = _open_api(hosts, place.node_host)
    try:
        return Container(api, _node_name(hosts, place.node_host, api), place.vmid)
    except BaseException:
        api.close()
        raise


def container_transport(hosts: Hosts, place: Place) -> Transport:
    """Return the way into the container: pct over its node's own transport."""
    from opsctl.transport.pct import PctTransport

    return PctTransport(place.vmid, hosts.transport(place.node_host), place.node_host)


def _open_api(hosts: Hosts, name: str) -> Api:
    from opsctl.proxmox import HttpsApi, PveshApi

    access = hosts.site.host(name).proxmox
    if access is None or access.api is None:
        return PveshApi(hosts.transport(name))
    return HttpsApi(
        access.api,
        token_id=access.token_id,
        token=access.token.resolve() if access.token else None,
        user=access.user,
        password=access.password.resolve() if access.password else None,
        ca_file=access.ca_file.expanduser() if access.ca_file else None,
        fingerprint=access.fingerprint,
    )


def _node_name(hosts: Hosts, name: str, api: Api) -> str:
    access = hosts.site.host(name).proxmox
    if access is not None and access.node is not None:
        return access.node
    if access is None or access.api is None:
        transport = hosts.transport(name)
        done = transport.run(["uname", "-n"], timeout_s=20.0)
        said = done.stdout.decode(errors="replace").strip()
        if done.exit_code != 0 or not said:
            raise TransportError(f"{transport.name}: its name cannot be read", code="no-node-name")
        return said.split(".")[0]
    names = sorted(str(item["node"]) for item in api.call("GET", "/nodes") or [])
    if len(names) != 1:
        raise ConfigError(
            f"{api.name} speaks for {len(names)} nodes ({', '.join(names) or 'none is visible'})",
            next_step=f"add the node's name: hosts.{name}.proxmox.node",
            code="which-node",
            subject=name,
        )
    return names[0]
