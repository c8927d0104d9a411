"""Servers that fit in part: a doubt and not an absence, or another's."""

from __future__ import annotations

from typing import Any

import pytest

from .selecting import BLUE, HERE, chosen
from .tables import LAUNCH, detail, proc, server, system, view


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"uid": 1000, "user": "ops"}, "belongs to ops"),
        ({"cgroup": "/lxc/131/ns", "ns_pids": (4200, 7)}, "runs in container 131"),
        ({"cgroup": f"/system.slice/docker-{'a' * 64}.scope"}, f"runs in container {'a' * 64}"),
        ({"ns_pids": (4200, 7), "pid_namespace": "pid:[1]"}, "a pid namespace of its own"),
        ({"pid_namespace": "pid:[1]"}, "a pid namespace of its own"),
    ],
)
def test_the_same_command_line_elsewhere_is_a_doubt(changes: dict[str, Any], reason: str) -> None:
    """Another owner's or container's server with our port is never chosen, and never called absent."""
    result = chosen(system(proc(4200, 1, LAUNCH, **changes)))

    assert not result.members
    assert [doubt.pid for doubt in result.ambiguous] == [4200]
    assert reason in result.ambiguous[0].reason


@pytest.mark.parametrize(
    ("port", "model"), [("30001", "/models/m"), ("30000", "/models/b")], ids=["port", "model"]
)
def test_a_server_that_fits_in_part_is_a_doubt(port: str, model: str) -> None:
    """Same model on another port, or the port with another model: nothing is claimed."""
    argv = f"python3 -m sglang.launch_server --model-path {model} --port {port}"
    result = chosen(system(proc(4200, 1, argv)))

    assert not result.members
    assert len(result.ambiguous) == 1
    assert len(result.ambiguous[0].candidates) == 2


def test_a_server_of_another_network_namespace_is_not_ours() -> None:
    """Same owner, port and model behind `ip netns exec`: beside ours it lives, without ours it is a doubt."""
    ours, other = proc(4200, 1, LAUNCH), proc(7000, 1, LAUNCH)
    details = {
        4200: detail(4200, network_namespace=HERE),
        7000: detail(7000, network_namespace=BLUE),
    }
    both = chosen(system(ours, other), details=details, view=view(network=HERE))
    assert (both.pids, both.ambiguous) == ({4200}, ())

    alone = chosen(system(other), details=details, view=view(network=HERE))
    assert not alone.members
    assert "another network namespace" in alone.ambiguous[0].reason


def test_a_command_in_another_network_namespace_is_a_doubt() -> None:
    """A server of another kind is told by its command; where it serves counts as well."""
    process = proc(7000, 1, "/usr/bin/serve --port 30000")
    details = {7000: detail(7000, network_namespace=BLUE)}
    command = server(command=("/usr/bin/serve", "--port", "30000"))
    result = chosen(system(process), server=command, details=details, view=view(network=HERE))
    assert (result.pids, [doubt.pid for doubt in result.ambiguous]) == (set(), [7000])


def test_another_container_s_server_on_the_same_port_is_no_doubt() -> None:
    """A server in a Docker container with a network of its own keeps nobody from starting ours."""
    cgroup = "/system.slice/docker-0123456789abcdef.scope"
    other = proc(7000, 1, LAUNCH, cgroup=cgroup, ns_pids=(7000, 12))
    details = {7000: detail(7000, listening_ports=(30000,), network_namespace=BLUE)}
    assert chosen(system(other), details=details, view=view(network=HERE)).ambiguous == ()
    shared = {7000: detail(7000, listening_ports=(30000,), network_namespace=HERE)}
    assert chosen(system(other), details=shared, view=view(network=HERE)).ambiguous


@pytest.mark.parametrize("ports", [(), None])
def test_a_server_that_may_get_our_port_from_its_file_is_no_absence(ports: Any) -> None:
    """All in a config file and not listening yet: `already stopped` would be a guess."""
    loading = proc(4200, 1, "python3 -m sglang.launch_server --config /etc/a.yaml")
    details = {4200: detail(4200, listening_ports=ports)}
    elsewhere = {4200: detail(4200, listening_ports=(30777,))}

    result = chosen(system(loading), details=details)

    assert not result.pids
    assert [one.pid for one in result.ambiguous] == [4200]
    assert "may still be starting" in result.ambiguous[0].reason
    assert not chosen(system(loading), details=elsewhere).ambiguous
