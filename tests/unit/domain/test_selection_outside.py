"""Who is not the server and in its way: holders of its GPUs, listeners on its port."""

from __future__ import annotations

import pytest

from .selecting import BLUE, HERE, TREE_PIDS, chosen, tree
from .tables import GPU0, GPU1, GPU2, detail, hold, proc, server, system, title, view


def test_a_holder_of_our_gpus_names_the_server_of_the_site_that_it_is_of() -> None:
    """It is left alone as any stranger is, and is called by its name and not a stranger."""
    argv = ("python3", "-m", "sglang.launch_server", "--model-path", "/models/m", "--port", "30001")
    other = server(name="other", port=30001)
    worker = title(5201, 5200, "sglang::scheduler_TP0", session=5200)
    stranger = proc(6000, 1, "python3 train.py")

    result = chosen(
        system(proc(5200, 1, argv), worker, stranger),
        others=(other,),
        holders=[hold(GPU0, 5201), hold(GPU1, 6000)],
    )

    assert not result.members
    assert {one.pid: one.server for one in result.foreign} == {5201: "other", 6000: None}
    assert result.foreign[0].reason == "server other of this site: sglang::scheduler_TP0"


@pytest.mark.parametrize(
    ("exe", "kind"),
    [
        ("/usr/bin/nvidia-persistenced", "C"),
        ("/usr/bin/nv-hostengine", "C"),
        ("/usr/bin/dcgm-exporter", "C"),
        ("/usr/bin/nv-fabricmanager", "C"),
        ("/usr/bin/nvidia-cuda-mps-server", "M"),
        ("/usr/lib/xorg/Xorg", "G"),
        ("/usr/bin/plasmashell", "G"),
    ],
)
def test_daemons_and_displays_on_our_gpu_are_protected(exe: str, kind: str) -> None:
    """Whatever they hold, they are named and never a target."""
    daemon = proc(600, 1, (exe,), exe=exe)
    result = chosen(system(*tree(), daemon), holders=[hold(GPU0, 600, kind=kind)])

    assert [judged.pid for judged in result.protected] == [600]
    assert not result.foreign
    assert 600 not in result.pids


def test_foreign_holders_are_named() -> None:
    """A training job, another user's notebook and an invisible pid on our GPUs are foreign."""
    job = proc(6000, 1, "python3 train.py")
    notebook = proc(6001, 1, "python3 -m ipykernel", uid=1001, user="ada")
    result = chosen(
        system(*tree(), job, notebook),
        holders=[hold(GPU0, 6000), hold(GPU1, 6001), hold(GPU0, 318764), hold(GPU2, 6002)],
    )

    assert {judged.pid: judged.reason for judged in result.foreign} == {
        6000: "python3 train.py",
        6001: "ada's: python3 -m ipykernel",
        318764: "not visible from here",
    }


def test_a_neighbour_on_other_gpus_is_no_holder_of_ours() -> None:
    """It has the devices open, as every CUDA process has; NVML shows it on another GPU alone."""
    neighbour, unplaced = proc(6000, 1, "python3 train.py"), proc(6001, 1, "python3 idle.py")
    opened = ("/dev/nvidia0", "/dev/nvidiactl")
    result = chosen(
        system(*tree(), neighbour, unplaced),
        details={pid: detail(pid, gpu_devices=opened) for pid in (6000, 6001)},
        holders=[hold(GPU2, 6000)],
    )

    assert [judged.pid for judged in result.foreign] == [6001]


def test_a_holder_in_another_container_is_protected() -> None:
    """Another tenant is named and never touched."""
    other = proc(6000, 1, "python3 train.py", cgroup="/lxc/131/ns", ns_pids=(6000, 5))
    result = chosen(system(*tree(), other), holders=[hold(GPU0, 6000)])
    assert [(judged.pid, judged.reason) for judged in result.protected] == [
        (6000, "runs in container 131")
    ]


def test_pids_of_another_machine_are_not_joined() -> None:
    """NVML's numbers of the GPU host say nothing about equal numbers here."""
    result = chosen(
        system(*tree(), proc(6000, 1, "python3 train.py")),
        holders=[hold(GPU0, 6000), hold(GPU0, 4202)],
        view=view(holders_here=False),
    )
    assert not result.foreign
    assert result.pids == TREE_PIDS


def test_who_listens_on_our_port_is_named() -> None:
    """A stranger on the server's port is reported, not chosen."""
    stranger = proc(7000, 1, "nginx")
    details = {7000: detail(7000, listening_ports=(30000,))}
    result = chosen(system(stranger), details=details)
    assert not result.members
    assert [judged.pid for judged in result.port_holders] == [7000]


def test_a_port_of_another_network_namespace_is_not_ours() -> None:
    """The same number in a container is another port: who listens on it stands in nobody's way."""
    stranger = proc(7000, 1, "nginx")
    for theirs, named in ((HERE, [7000]), (BLUE, []), (None, [7000])):
        details = {7000: detail(7000, listening_ports=(30000,), network_namespace=theirs)}
        result = chosen(system(stranger), details=details, view=view(network=HERE))
        assert [judged.pid for judged in result.port_holders] == named, theirs
