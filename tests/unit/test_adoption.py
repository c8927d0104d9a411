"""Where an adopted server runs: on the host, in a container of its node, or where opsctl has no way in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from opsctl.adoption import locate
from opsctl.adoption_place import Place, settle_name, with_hosts
from opsctl.errors import CouldNotTell, SafetyRefusal, UsageError
from opsctl.facts import Process
from opsctl.session import Hosts
from opsctl.site import Site
from tests.fakes import FakeAgent
from tests.unit.domain.tables import LAUNCH, proc

FIELDS = (
    "pid", "ppid", "state", "start_ticks", "session", "uid", "comm", "argv", "cgroup", "ns_pids",
    "pid_namespace", "exe",
)  # fmt: skip


def scanned(*processes: Process) -> dict[str, Any]:
    """Return what ``process.scan`` says of these processes."""
    strings: list[str] = []

    def number(text: str | None) -> int | None:
        if text is None:
            return None
        strings.append(text)
        return len(strings) - 1

    rows = [
        [
            p.pid, p.ppid, p.state, p.identity.start_ticks, p.session, p.uid, p.comm, list(p.argv),
            number(p.cgroup), list(p.ns_pids), number(p.pid_namespace), number(p.exe),
        ]
        for p in processes
    ]  # fmt: skip
    return {
        "boot_id": "b", "clock_ticks": 100, "uptime_s": 1e6, "fields": FIELDS, "rows": rows,
        "strings": strings, "users": {"0": "root"}, "self_pid": 1,
    }  # fmt: skip


def hosts_with(tables: dict[str, tuple[Process, ...]], name: str = "pve1") -> Hosts:
    site = with_hosts(Site(), {name: {"ssh": "root@192.0.2.6"}})
    hosts = Hosts(site)
    for host, table in tables.items():
        facts = {"hostname": "node7.example.org", "boot_id": "b", "kernel": "6", "systemd": True}
        facts |= {"container": None, "pid_namespace": None, "uid": 0, "python": "3.11.2"}
        facts |= {"clock_ticks": 100, "clock_s": 0.0}
        agent = FakeAgent({"process.scan": scanned(*table), "host.read": facts})
        hosts._agents[host] = cast(Any, agent)
    return hosts


OUTER = proc(377, argv=LAUNCH, cgroup="/lxc/129/ns/system.slice/x.service", ns_pids=(377, 12))
INNER = proc(12, argv=LAUNCH, cgroup="/system.slice/x.service", start=OUTER.identity.start_ticks)
PLACE = Place("pve1", {"pve1": {"ssh": "root@192.0.2.6"}})


def test_a_server_of_the_host_stays_there() -> None:
    """Its pid is the host's own."""
    hosts = hosts_with({"pve1": (proc(50, argv=LAUNCH),)})

    place, found = locate(hosts, PLACE, 50)

    assert (place, found.pid) == (PLACE, 50)


def test_a_server_in_a_container_is_looked_at_from_inside() -> None:
    """The container becomes a host entry, and the pid is the container's."""
    hosts = hosts_with({"pve1": (OUTER,), "ct129": (INNER,)})

    place, found = locate(hosts, PLACE, 377)

    assert (place.host, found.pid) == ("ct129", 12)
    assert place.added["ct129"] == {"pct": 129, "via": "pve1"}
    assert hosts.site.hosts["ct129"].pct == 129


@pytest.mark.parametrize(
    "changes",
    [
        {"cgroup": "/system.slice/docker-0123456789abcdef.scope", "ns_pids": (377, 1)},
        {"cgroup": "/user.slice/x", "ns_pids": (377, 4)},
        {"cgroup": "/lxc/named-one/ns", "ns_pids": (377, 4)},
    ],
    ids=["docker", "a pid namespace", "lxc by name"],
)
def test_a_container_without_a_way_in_is_refused(changes: dict[str, Any]) -> None:
    """opsctl could neither stop nor launch it there, so it does not pretend."""
    hosts = hosts_with({"pve1": (replace(OUTER, **changes),)})

    with pytest.raises(SafetyRefusal) as caught:
        locate(hosts, PLACE, 377)

    assert caught.value.code == "unknown-container"


def test_without_a_pid_the_only_server_is_meant() -> None:
    """None is exit 21, two are exit 2 with both named."""
    one, two = proc(50, argv=LAUNCH), proc(60, argv=(*LAUNCH[:-1], "30001"))

    assert locate(hosts_with({"pve1": (one,)}), PLACE, None)[1].pid == 50
    with pytest.raises(CouldNotTell):
        locate(hosts_with({"pve1": ()}), PLACE, None)
    with pytest.raises(UsageError) as caught:
        locate(hosts_with({"pve1": (one, two)}), PLACE, None)
    assert "pid 50" in caught.value.message
    assert "pid 60" in caught.value.message


def test_a_host_given_by_address_is_named_as_it_names_itself() -> None:
    """Its agent goes along; a host given by name keeps that."""
    hosts = hosts_with({"h-192-0-2-6": ()}, name="h-192-0-2-6")
    by_address = Place("h-192-0-2-6", {"h-192-0-2-6": {"ssh": "root@192.0.2.6"}})

    settled = settle_name(hosts, by_address)

    assert settled == Place("node7", {"node7": {"ssh": "root@192.0.2.6"}})
    assert list(hosts.site.hosts) == ["node7"]
    assert hosts.agent("node7") is not None
    assert settle_name(hosts, PLACE) is PLACE
