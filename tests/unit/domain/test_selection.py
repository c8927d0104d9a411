"""Which processes are the server: one test that it chooses, more that it does not."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.domain.process import Selection, candidates
from opsctl.domain.selection import select
from opsctl.facts import Process, ProcessId

from .tables import (
    AGENT,
    BOOT,
    GPU0,
    GPU1,
    GPU2,
    LAUNCH,
    detail,
    hold,
    proc,
    server,
    system,
    title,
    view,
)


def tree(root: int = 4200, **changes: Any) -> list[Process]:
    """A whole SGLang server under one root."""
    same = {"session": root, **changes}
    spawn = ("python3", "-c", "from multiprocessing.resource_tracker import main;main(25)")
    worker = (PYTHON_PATH, "/x/torch/_inductor/compile_worker/__main__.py", f"--parent={root + 2}")
    return [
        proc(root, 1, LAUNCH, **same),
        proc(root + 1, root, spawn, **same),
        title(root + 2, root, "sglang::scheduler_TP0", **same),
        title(root + 3, root, "sglang::scheduler_TP1", **same),
        title(root + 4, root, "sglang::detokenizer", **same),
        proc(root + 5, root + 2, worker, **same),
    ]


PYTHON_PATH = "/usr/bin/python3.11"
TREE_PIDS = {4200, 4201, 4202, 4203, 4204, 4205}


def chosen(processes: list[Process], **changes: Any) -> Selection:
    given = {"details": {}, "holders": [], "view": view(), "others": (), **changes}
    return select(given.pop("server", server()), processes, **given)


def test_the_whole_tree_of_a_server_is_chosen_with_reasons() -> None:
    """The root by its command line, everything below by the tree."""
    result = chosen(system(*tree()), holders=[hold(GPU0, 4202), hold(GPU1, 4203)])

    assert result.pids == TREE_PIDS
    assert [root.pid for root in result.roots] == [4200]
    assert result.roots[0].reason == "command line: sglang on port 30000 with this model"
    assert {m.pid: m.reason for m in result.members}[4205] == "child of pid 4202"
    assert not result.foreign
    assert not result.ambiguous


def test_a_server_without_port_option_is_on_the_default_port() -> None:
    """sglang listens on 30000 when nothing is said."""
    argv = ("python", "-m", "sglang.launch_server", "--model-path", "/models/m/")
    assert chosen(system(proc(4200, 1, argv))).pids == {4200}


@pytest.mark.parametrize("name", ["glm5-production", "-python", "sglang::server", "sh"])
def test_a_server_that_was_started_under_another_name_is_found(name: str) -> None:
    """`exec -a NAME python -m ...` changes argv[0]; what runs is the executable."""
    root = proc(4200, 1, (name, *LAUNCH[1:]), exe="/opt/venv/bin/python3.11 (deleted)")
    worker = title(4202, 4200, "sglang::scheduler_TP0", session=4200)

    assert candidates(server(), system(root, worker), [], view()) == [4200, 4202]
    assert chosen(system(root, worker)).pids == {4200, 4202}
    other = proc(4200, 1, (name, *LAUNCH[1:]), exe="/usr/bin/vim")
    assert not chosen(system(other)).pids


@pytest.mark.parametrize(
    "stranger",
    [
        proc(5000, 810, "grep sglang"),
        proc(5000, 810, ("bash", "-c", "ps aux | grep python3 | xargs kill -9")),
        proc(5000, 810, ("bash", "-c", " ".join(LAUNCH))),
        proc(5000, 1, ("ssh", "host", *LAUNCH)),
        proc(5000, 1, "vim /opt/sglang/launch_server.py"),
        proc(5000, 1, "/opt/venv/bin/python3 /opt/venv/bin/jupyter-lab --no-browser"),
        proc(5000, 1, "python3 train.py --model-path /models/m --port 30000"),
        proc(
            5000, 1, "/usr/bin/python3 /usr/share/unattended-upgrades/unattended-upgrade-shutdown"
        ),
        proc(5000, 1, "python3 -m sglang.bench_serving --model /models/m --port 30000"),
        proc(5000, 1, "python3 -m sglang.launch_server --model-path /models/b --port 30001"),
        proc(5000, 1, (), comm="sglang::schedul", state="Z"),
        proc(5000, 1, "sleep 100", comm="sglang::schedul", exe="/bin/sleep"),
    ],
)
def test_a_stranger_beside_the_server_is_left_alone(stranger: Process) -> None:
    """Whoever only mentions or resembles the server is no part of it."""
    result = chosen(system(*tree(), stranger))

    assert result.pids == TREE_PIDS
    assert not result.ambiguous


def test_children_of_a_stranger_are_left_alone() -> None:
    """A program that embeds an engine owns its titled workers."""
    script = proc(5000, 1, "python3 /ci/test/run_suite.py")
    worker = title(5001, 5000, "sglang::scheduler_TP0")

    result = chosen(system(*tree(), script, worker), holders=[hold(GPU0, 5001)])

    assert result.pids == TREE_PIDS
    assert [judged.pid for judged in result.foreign] == [5001]


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


def test_the_site_s_user_is_the_owner() -> None:
    """With the owner in the site file the same process is ours."""
    process = proc(4200, 1, LAUNCH, uid=1000, user="ops")
    found = chosen(system(process), server=server(user="ops"), view=view(owner_uid=None))
    assert found.pids == {4200}


def test_a_server_in_a_container_is_seen_from_its_host() -> None:
    """From the host, only the named container's processes are the server's."""
    ours = proc(363, 1, LAUNCH, cgroup="/lxc/129/ns", ns_pids=(363, 12), uid=100000, user=None)
    worker = title(
        364, 363, "sglang::scheduler", cgroup="/lxc/129/ns", ns_pids=(364, 14), uid=100000
    )
    other = proc(463, 1, LAUNCH, cgroup="/lxc/131/ns", ns_pids=(463, 12), uid=100000, user=None)
    nested = proc(
        563, 1, LAUNCH, cgroup="/lxc/129/ns/docker/" + "b" * 64, ns_pids=(563, 90, 1), uid=100000
    )
    outside = proc(663, 1, LAUNCH, uid=100000)

    result = chosen(
        system(ours, worker, other, nested, outside),
        view=view(container="129", owner_uid=100000),
    )

    assert result.pids == {363, 364}


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


def test_two_servers_of_the_site_are_told_apart() -> None:
    """What the site places elsewhere is neither ours nor a doubt."""
    argv = ("python3", "-m", "sglang.launch_server", "--model-path", "/models/m", "--port", "30001")
    other = server(name="other", port=30001, gpu_uuids=frozenset({GPU2}))

    result = chosen(system(proc(5200, 1, argv)), others=(other,))

    assert not result.members
    assert not result.ambiguous


def test_another_server_of_the_site_with_the_same_model_beside_ours() -> None:
    """Both live: only ours is chosen, with its own tree."""
    argv = ("python3", "-m", "sglang.launch_server", "--model-path", "/models/m", "--port", "30001")
    other = server(name="other", port=30001, gpu_uuids=frozenset({GPU2}))
    result = chosen(
        system(*tree(), proc(5200, 1, argv), title(5201, 5200, "sglang::scheduler_TP0")),
        others=(other,),
        holders=[hold(GPU0, 4202), hold(GPU2, 5201)],
    )

    assert result.pids == TREE_PIDS
    assert not result.ambiguous
    assert result.other_servers == ("pid 5200: port 30001, model /models/m",)


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


def test_the_launch_record_proves_a_retitled_process() -> None:
    """Pid, start and boot as recorded prove what no longer has a telling command line."""
    process = title(4202, 1, "sglang::scheduler_TP0")
    recorded = (ProcessId(BOOT, 4202, 5202),)

    assert chosen(system(process), server=server(recorded=recorded)).pids == {4202}


@pytest.mark.parametrize(
    "identity",
    [
        ProcessId(BOOT, 4202, 5203),
        ProcessId("another boot", 4202, 5202),
        ProcessId(BOOT, 4203, 5202),
    ],
)
def test_a_recycled_pid_is_not_the_recorded_process(identity: ProcessId) -> None:
    """A different start, boot or pid is a different process."""
    process = proc(4202, 1, "python3 train.py")
    assert not chosen(system(process), server=server(recorded=(identity,))).members


def test_the_session_that_the_record_names_proves_orphaned_workers() -> None:
    """Workers of a dead recorded root are the server's by the session that it led; others are not."""
    worker = title(4300, 1, "sglang::detokenizer", session=4200)
    elsewhere = title(4301, 1, "sglang::detokenizer", session=4201)
    job = proc(4302, 1, "python3 train.py", session=4200)
    recorded = (ProcessId(BOOT, 4200, 1000),)

    result = chosen(system(worker, elsewhere, job), server=server(recorded=recorded))

    assert result.pids == {4300}


def test_a_living_leader_that_is_not_the_recorded_one_proves_nothing() -> None:
    """The number of a dead root leads another session now."""
    leader = proc(4200, 1, "bash", session=4200)
    worker = title(4300, 4200, "sglang::detokenizer", session=4200)
    recorded = (ProcessId(BOOT, 4200, 1000),)

    assert not chosen(system(leader, worker), server=server(recorded=recorded)).members


def test_the_server_s_unit_and_run_mark_prove() -> None:
    """The unit of the cgroup, and the mark in the environment, are set at launch only."""
    inside = proc(4300, 1, "python3 x.py", cgroup="/system.slice/opsctl-r1.service")
    marked = proc(4400, 1, "python3 y.py")
    identity = server(unit="opsctl-r1.service", run_id="r1")
    details = {4400: detail(4400, environment_markers={"OPSCTL_RUN": "r1"})}

    assert chosen(system(inside, marked), server=identity, details=details).pids == {4300, 4400}


def test_the_agent_is_protected_even_in_the_server_s_unit() -> None:
    """Proof never outweighs protection: the agent, its login and pid 1 are left alone, and said."""
    unit = "/system.slice/opsctl-r1.service"
    processes = [
        proc(1, 0, "/sbin/init", session=1, cgroup=unit),
        proc(800, 1, LAUNCH, cgroup=unit),
        proc(AGENT, 800, "python3 -I -S -u -c BOOT", cgroup=unit, session=810),
        proc(901, AGENT, "python3 -c nvml", cgroup=unit, session=810),
    ]
    result = chosen(processes, server=server(unit="opsctl-r1.service"))

    assert not result.members
    assert {doubt.pid for doubt in result.ambiguous} == {1, 800, AGENT, 901}
    assert all(doubt.is_protected for doubt in result.ambiguous)


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


def test_a_child_under_another_user_is_not_taken_by_the_tree() -> None:
    """The owner must fit for every member, also below the root."""
    result = chosen(system(*tree(), proc(4300, 4200, "sleep 9", uid=33, user="www-data")))
    assert result.pids == TREE_PIDS


def test_a_younger_parent_is_no_parent() -> None:
    """A snapshot that caught a reused pid does not adopt older processes."""
    older = proc(4300, 4200, "python3 train.py", start=10)
    assert chosen(system(*tree(), older)).pids == TREE_PIDS


def test_a_zombie_below_the_root_is_a_member() -> None:
    """It is dead and named, not forgotten."""
    dead = proc(4300, 4200, (), state="Z", comm="sglang::schedul")
    assert 4300 in chosen(system(*tree(), dead)).pids


def test_a_generic_server_is_found_by_its_command() -> None:
    """Any server with a command of its own; SGLang's titles are not its."""
    identity = server(command=("/usr/bin/my-server", "--port", "8000"), port=8000, model=None)
    ours = proc(7000, 1, "/usr/bin/my-server --port 8000")
    child = proc(7001, 7000, "my-worker")
    other = proc(7002, 1, "/usr/bin/my-server --port 8001")
    orphan = title(7003, 1, "sglang::scheduler")

    result = chosen(system(ours, child, other, orphan), server=identity, holders=[hold(GPU0, 7003)])

    assert result.pids == {7000, 7001}
    assert [judged.pid for judged in result.foreign] == [7003]


def test_who_listens_on_our_port_is_named() -> None:
    """A stranger on the server's port is reported, not chosen."""
    stranger = proc(7000, 1, "nginx")
    details = {7000: detail(7000, listening_ports=(30000,))}
    result = chosen(system(stranger), details=details)
    assert not result.members
    assert [judged.pid for judged in result.port_holders] == [7000]


def test_what_a_shell_had_begun_before_it_became_the_server_is_a_doubt() -> None:
    """`train.py & exec python -m sglang.launch_server`: SGLang would end its child; its session lives on."""
    own = [
        proc(4300, 4200, "python3 train.py --lr 1", session=4200),
        proc(4301, 4300, "python3 -c from_multiprocessing", session=4200),
        proc(4302, 4200, "bash watch.sh", session=4200),
        proc(4303, 1, "python3 -u /home/u/eval.py", session=4200),
    ]
    helpers = [
        proc(
            4400, 4200, "python3 /opt/v/site-packages/torch/_inductor/compile_worker", session=4200
        ),
        proc(4401, 4200, "python3 /opt/sglang/bin/ninja -v", session=4200),
        proc(4402, 4200, "sh -c nvcc", session=4200),
        proc(4403, 1, "python3 -c from_multiprocessing", session=4200),
    ]
    root = proc(4200, 1, LAUNCH)
    result = chosen(system(root, *own, *helpers))
    assert result.pids == {4200, 4400, 4401, 4402, 4403}
    assert [doubt.pid for doubt in result.ambiguous] == [4300, 4302]
    assert "train.py" in result.ambiguous[0].reason
    assert [judged.pid for judged in result.foreign] == [4303]

    recorded = server(recorded=(root.identity,))  # launched by opsctl: it was never a shell
    assert chosen(system(root, *own, *helpers), server=recorded).pids > {4300, 4302}


def test_what_runs_in_the_server_s_service_is_part_of_it() -> None:
    """A unit whose script begins an exporter and becomes the server ends as a whole."""
    cgroup = "/system.slice/sglang.service"
    root = proc(4200, 1, LAUNCH, cgroup=cgroup)
    exporter = proc(4300, 4200, "python3 exporter.py", cgroup=cgroup, session=4200)
    result = chosen(system(root, exporter))
    assert (result.pids, result.ambiguous) == ({4200, 4300}, ())


HERE, BLUE = "net:[1]", "net:[2]"


def test_a_port_of_another_network_namespace_is_not_ours() -> None:
    """The same number in a container is another port: who listens on it stands in nobody's way."""
    stranger = proc(7000, 1, "nginx")
    for theirs, named in ((HERE, [7000]), (BLUE, []), (None, [7000])):
        details = {7000: detail(7000, listening_ports=(30000,), network_namespace=theirs)}
        result = chosen(system(stranger), details=details, view=view(network=HERE))
        assert [judged.pid for judged in result.port_holders] == named, theirs


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


def test_a_config_file_needs_the_listening_port() -> None:
    """A port that only a config file knows is proven by listening on it, else doubted."""
    process = proc(4200, 1, "python3 -m sglang.launch_server --config c.yaml --model /models/m")
    listening = {4200: detail(4200, listening_ports=(30000,))}

    assert chosen(system(process), details=listening).pids == {4200}
    assert [d.pid for d in chosen(system(process)).ambiguous] == [4200]


def test_candidates_are_few() -> None:
    """Descriptors are read for servers, their trees, titled workers and holders; not for the rest."""
    crowd = [proc(pid, 1, "postgres") for pid in range(20000, 20100)]
    found = candidates(
        server(), system(*tree(), *crowd, proc(6000, 1, "x")), [hold(GPU0, 6000)], view()
    )
    assert found == sorted({*TREE_PIDS, 6000})


def test_opsctl_s_supervisor_is_left_alone_and_no_doubt() -> None:
    """It carries the run's mark too; it ends with the server and writes down how."""
    folder = "/var/lib/opsctl/runs/r1"
    argv = ("/usr/bin/python3", "-I", "-S", f"{folder}/supervise.py", folder)
    supervisor = proc(4000, 1, argv)
    server_process = proc(4200, 4000, LAUNCH, session=4200)
    orphan = title(4202, 4000, "sglang::scheduler", session=4200)
    marked = {p: detail(p, environment_markers={"OPSCTL_RUN": "r1"}) for p in (4000, 4200)}

    result = chosen(
        system(supervisor, server_process, orphan), server=server(run_id="r1"), details=marked
    )

    assert result.pids == {4200, 4202}
    assert not result.ambiguous


def test_an_orphan_below_the_supervisor_is_an_orphan() -> None:
    """The supervisor adopts what the server leaves behind; it owns no engine."""
    folder = "/var/lib/opsctl/runs/r1"
    supervisor = proc(4000, 1, ("python3", "-I", "-S", f"{folder}/supervise.py", folder))
    orphan = title(4202, 4000, "sglang::scheduler_TP0")
    assert chosen(system(supervisor, orphan), holders=[hold(GPU0, 4202)]).pids == {4202}


def test_workers_without_a_parent_are_no_roots_while_the_launched_one_lives() -> None:
    """They get their TERM after it; without it they are the first."""
    root = proc(4200, 1, LAUNCH, session=4200)
    worker = title(4202, 1, "sglang::scheduler_TP0", session=4200)
    holders = [hold(GPU0, 4202)]

    whole = chosen(system(root, worker), holders=holders)
    orphaned = chosen(system(worker), holders=holders)

    assert [one.pid for one in whole.roots] == [4200]
    assert whole.pids == {4200, 4202}
    assert [one.pid for one in orphaned.roots] == [4202]


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


def test_a_command_line_over_another_program_is_no_server() -> None:
    """`exec -a python3 other -m sglang.launch_server` is not killed, and not passed over in silence."""
    spoofed = proc(5000, 1, LAUNCH, exe="/usr/bin/perl")
    updated = proc(4200, 1, LAUNCH, exe="/usr/bin/python3.11 (deleted)")

    alone = chosen(system(spoofed))

    assert not alone.pids
    assert "/usr/bin/perl, which is no Python" in alone.ambiguous[0].reason
    assert chosen(system(spoofed, updated)).pids == {4200}
    assert not chosen(system(spoofed, updated)).ambiguous
