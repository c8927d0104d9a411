"""Joining two views of one machine, and the site's entry with the launch record."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest

from opsctl.domain.protection import Table
from opsctl.facts import GpuReport
from opsctl.site import Server
from opsctl.steps.picture import identity_of, take_picture, translate
from tests.fakes import FakeAgent
from tests.unit.domain.tables import (
    AGENT,
    BOOT,
    GPU0,
    LAUNCH,
    gpu,
    hold,
    proc,
    report,
    system,
    title,
)

INNER_NS = "pid:[4026532000]"


def test_holders_are_translated_by_start_and_namespace() -> None:
    """The GPU host sees host pids; the container's view has its own."""
    outside = proc(363, 1, LAUNCH, ns_pids=(363, 12), pid_namespace=INNER_NS, start=777)
    inside = proc(12, 1, LAUNCH, ns_pids=(12,), pid_namespace=INNER_NS, start=777)

    here, unseen = translate([hold(GPU0, 363)], Table.of([outside]), Table.of([inside]))

    assert [(holder.pid, gpu_pid) for holder, gpu_pid in here] == [(12, 363)]
    assert unseen == []


@pytest.mark.parametrize(
    "changes", [{"start": 778}, {"pid_namespace": "pid:[9]"}, {"ns_pids": (13,)}, {"boot_id": "x"}]
)
def test_equal_numbers_alone_join_nothing(changes: dict[str, Any]) -> None:
    """Another start, namespace, inner pid or boot is another process."""
    outside = proc(363, 1, LAUNCH, ns_pids=(363, 12), pid_namespace=INNER_NS, start=777)
    inside = proc(
        12, 1, LAUNCH, **{"ns_pids": (12,), "pid_namespace": INNER_NS, "start": 777, **changes}
    )

    here, unseen = translate([hold(GPU0, 363)], Table.of([outside]), Table.of([inside]))

    assert here == []
    assert [holder.pid for holder in unseen] == [363]


def test_two_machines_join_nothing() -> None:
    """Without the GPU host's table every holder is elsewhere."""
    same = proc(363, 1, LAUNCH)
    assert translate([hold(GPU0, 363)], None, Table.of([same])) == ([], [hold(GPU0, 363)])


@dataclass
class OneHost:
    """A session whose agents are one fake."""

    agent: Any
    server: Server
    name: str = "glm5"
    container: str | None = None
    one_machine: bool = True
    others: dict[str, Server] | None = None

    @property
    def owner_agent(self) -> Any:
        return self.agent

    @property
    def gpu_agent(self) -> Any:
        return self.agent

    def neighbours(self) -> dict[str, Server]:
        return self.others or {}


def scan(*processes: Any) -> dict[str, Any]:
    """Return a process.scan reply of these processes."""
    strings: list[Any] = []
    rows = []
    for p in processes:
        for value in (p.cgroup, p.pid_namespace, p.exe):
            if value is not None and value not in strings:
                strings.append(value)
        number = {value: index for index, value in enumerate(strings)}
        rows.append(
            [
                p.pid,
                p.ppid,
                p.state,
                p.identity.start_ticks,
                p.session,
                p.uid,
                p.comm,
                list(p.argv),
                number[p.cgroup],
                list(p.ns_pids),
                number.get(p.pid_namespace),
                number.get(p.exe),
            ]
        )
    return {
        "boot_id": BOOT,
        "clock_ticks": 100,
        "uptime_s": 1e6,
        "rows": rows,
        "strings": strings,
        "users": {"0": "root"},
        "self_pid": AGENT,
    }


HOST = {
    "boot_id": BOOT,
    "hostname": "h",
    "kernel": "6",
    "systemd": True,
    "container": None,
    "pid_namespace": None,
    "uid": 0,
    "python": "3.11",
    "clock_ticks": 100,
    "clock_s": 0.0,
}
NO_GPU = {
    "state": "no-library",
    "detail": None,
    "driver_version": None,
    "cuda_version": None,
    "gpus": [],
    "xids": [],
    "kernel_module_version": None,
}


def agent(*processes: Any, records: list[dict[str, Any]] | None = None) -> FakeAgent:
    return FakeAgent(
        {
            "process.scan": scan(*processes),
            "process.detail": {"details": []},
            "gpu.read": NO_GPU,
            "launch.records": {"records": records or []},
            "host.read": HOST,
        }
    )


def gpu_reply(found: GpuReport) -> dict[str, Any]:
    """Return a gpu.read reply of this report."""
    body = asdict(found)
    for card in body["gpus"]:
        card["processes"] = [list(process.values()) for process in card["processes"]]
    return body


SITE = Server(host="h", port=30000, python="/opt/sglang/bin/python", model="/models/m")


def test_a_picture_joins_site_record_and_table() -> None:
    """The launch record proves the worker whose root is gone."""
    orphan = title(4202, 1, "sglang::scheduler_TP0", start=5)
    record = {
        "run": "r1",
        "pid": 4202,
        "start_ticks": 5,
        "boot_id": BOOT,
        "unit": None,
        "state": "running",
    }
    session = OneHost(agent(*system(orphan), records=[record]), SITE)

    picture = take_picture(session)

    assert picture.selection.pids == {4202}
    assert picture.server.run_id == "r1"


def test_a_record_of_an_earlier_boot_proves_nothing() -> None:
    """The numbers belong to another life of the machine."""
    orphan = title(4202, 1, "sglang::scheduler_TP0", start=5)
    record = {"run": "r1", "pid": 4202, "start_ticks": 5, "boot_id": "before", "unit": "u.service"}
    picture = take_picture(OneHost(agent(*system(orphan), records=[record]), SITE))

    assert picture.server.recorded == ()
    assert picture.server.unit is None
    assert not picture.selection.members


def test_a_container_s_record_counts_under_the_node_s_boot_id() -> None:
    """LXC gives each container a boot id of its own; the kernel and its start ticks are the node's."""
    session = OneHost(agent(), SITE, container="129")
    record = {"run": "r1", "pid": 12, "start_ticks": 5, "boot_id": "inner", "unit": None}

    found = identity_of(session, [record], [], "inner", BOOT)

    assert [(entry.boot_id, entry.pid) for entry in found.recorded] == [(BOOT, 12)]


@pytest.mark.parametrize(
    ("uid_map", "outside"),
    [
        ([[0, 100000, 65536]], 101000),
        ([[0, 100000, 1000], [1000, 1000, 1], [1001, 101001, 64535]], 1000),  # a bind mount's user
        ([[0, 0, 4294967295]], 1000),
    ],
)
def test_the_server_s_user_is_found_through_the_container_s_id_map(
    uid_map: list[list[int]], outside: int
) -> None:
    """`lxc.idmap` may split the ranges: one user inside is that very user outside."""
    inside = {"cgroup": "/lxc/129/ns", "pid_namespace": INNER_NS, "ns_pids": (4200, 12)}
    mine = proc(4200, 1, LAUNCH, uid=outside, **inside)
    init = proc(4000, 1, "/sbin/init", uid=uid_map[0][1], **{**inside, "ns_pids": (4000, 1)})
    fake = agent(*system(init, mine))
    fake.operations["host.read"] = {**HOST, "uid_map": uid_map}
    session = OneHost(fake, SITE.model_copy(update={"user": "1000"}), container="129")

    assert take_picture(session).selection.pids == {4200}
    other = replace(session, server=SITE.model_copy(update={"user": "1001"}))
    assert not take_picture(other).selection.members


def test_only_daemons_and_displays_count_as_residents_of_a_card() -> None:
    """Who is not to be signalled for its place (another container's) uses the card like any stranger."""
    other = proc(5000, 1, "python train.py", cgroup="/lxc/130/ns", ns_pids=(5000, 9))
    mps = proc(5001, 1, "nvidia-cuda-mps-server", exe="/usr/bin/nvidia-cuda-mps-server")
    card = report(gpu(holders=[(5000, 9 << 30), (5001, 30 << 20, "M")]))
    fake = agent(*system(other, mps))
    fake.operations["gpu.read"] = gpu_reply(card)

    picture = take_picture(OneHost(fake, SITE))

    assert {pid: kind for pid, (kind, _) in picture.gpu_classes.items()} == {
        5000: "protected",
        5001: "protected",
    }
    assert picture.resident_gpu_pids == {5001}


def test_a_user_that_only_the_name_tells_is_compared_by_name() -> None:
    """The site's user of this machine needs no number."""
    mine = proc(4200, 1, LAUNCH, uid=1000, user="ops")
    facts = scan(*system(mine))
    facts["users"] = {"0": "root", "1000": "ops"}
    fake = agent()
    fake.operations["process.scan"] = facts
    session = OneHost(fake, SITE.model_copy(update={"user": "ops"}))

    assert take_picture(session).selection.pids == {4200}
    other = replace(session, server=SITE.model_copy(update={"user": "ada"}))
    assert not take_picture(other).selection.members
