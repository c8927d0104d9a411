"""Which processes are the server: one test that it chooses, more that it does not."""

from __future__ import annotations

import pytest

from opsctl.domain.process import candidates
from opsctl.facts import Process

from .selecting import TREE_PIDS, chosen, tree
from .tables import (
    AGENT,
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


def test_the_whole_tree_of_a_server_is_chosen_with_reasons() -> None:
    """The root by its command line, everything below by the tree."""
    result = chosen(system(*tree()), holders=[hold(GPU0, 4202), hold(GPU1, 4203)])

    assert result.pids == TREE_PIDS
    assert [root.pid for root in result.roots] == [4200]
    assert result.roots[0].reason == "command line: sglang on port 30000 with this model"
    assert {m.pid: m.reason for m in result.members}[4205] == "child of pid 4202"
    assert not result.foreign
    assert not result.ambiguous


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
