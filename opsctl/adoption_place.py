"""Which host entry a server runs under: one of the site, or a new one with a name of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from opsctl.agent.read import read_host
from opsctl.errors import UsageError
from opsctl.records import dataclass
from opsctl.session import Hosts
from opsctl.site import Host, Site

LOCAL = "here"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server runs: a host of the site, which may have been added for it."""

    host: str
    added: Mapping[str, Mapping[str, Any]]


def place_of(site: Site, word: str | None, *, become: bool) -> Place:
    """Return the host entry that ``--host`` means: one of the site, or a new one.

    Raises:
        UsageError: the word is no host; ``become`` goes with a new ssh host.
    """
    if word is None or word in ("local", "localhost"):
        local = next((name for name, host in site.hosts.items() if host.local), None)
        if local is not None:
            return Place(local, {})
        return Place(free_name(site, LOCAL), {free_name(site, LOCAL): {"local": True}})
    if word in site.hosts:
        if become:
            raise UsageError(
                "--sudo is for a new host; the site's entry says how this one is reached"
            )
        return Place(word, {})
    known = next((name for name, host in site.hosts.items() if host.ssh == word), None)
    if known is not None:
        return Place(known, {})
    from opsctl.transport.ssh_connect import parse_target

    name = free_name(site, _host_name(parse_target(word).host))
    return Place(name, {name: {"ssh": word, **({"become": "sudo"} if become else {})}})


def _host_name(target: str) -> str:
    """Return a short name for a host: its first label, or its address with dashes."""
    is_address = ":" in target or re.fullmatch(r"[\d.]+", target) is not None
    label = target if is_address else target.split(".")[0]
    name = re.sub(r"[^A-Za-z0-9]+", "-", label).strip("-").lower() or "host"
    return f"h-{name}" if is_address or name[0].isdigit() else name


def free_name(site: Site, base: str) -> str:
    """Return ``base``, or with a number, so that no host or server has that name."""
    taken = {*site.hosts, *site.servers}
    names = [base, *(f"{base}-{number}" for number in range(2, 100))]
    return next(name for name in names if name not in taken)


def with_hosts(site: Site, added: Mapping[str, Mapping[str, Any]]) -> Site:
    """Return the site with further host entries."""
    hosts = {
        **site.hosts,
        **{name: Host.model_validate(dict(entry)) for name, entry in added.items()},
    }
    return site.model_copy(update={"hosts": hosts})


def settle_name(hosts: Hosts, place: Place) -> Place:
    """Name a new host that was given by its address after its own host name."""
    if not place.host.startswith("h-") or place.host not in place.added:
        return place
    name = _host_name(read_host(hosts.agent(place.host)).hostname)
    taken = {key: one for key, one in hosts.site.hosts.items() if key != place.host}
    name = free_name(hosts.site.model_copy(update={"hosts": taken}), name)
    hosts.rename(place.host, name)
    return Place(name, {name: place.added[place.host]})


def container_place(site: Site, node: str, vmid: str) -> Place:
    """Return the host entry of a container on a node, new where the site has none."""
    for name, host in site.hosts.items():
        if host.pct == int(vmid) and host.via == node:
            return Place(name, {})
    name = free_name(site, f"ct{vmid}")
    return Place(name, {name: {"pct": int(vmid), "via": node}})
