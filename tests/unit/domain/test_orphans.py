"""Workers whose server is gone: whose they are, or that it cannot be told."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.domain.process import Selection
from opsctl.domain.selection import select
from opsctl.facts import Process

from .tables import GPU0, GPU1, GPU2, LAUNCH, detail, hold, proc, server, system, title, view


def chosen(*processes: Process, **changes: Any) -> Selection:
    given = {"details": {}, "holders": [], "view": view(), "others": (), **changes}
    return select(given.pop("server", server()), system(*processes), **given)


OTHER = ("python3", "-m", "sglang.launch_server", "--model-path", "/models/b", "--port", "30001")


def test_orphans_on_our_gpus_are_ours_when_nobody_else_could_own_them() -> None:
    """Title, owner and one of the server's GPUs, with no other server alive."""
    result = chosen(
        title(4202, 1, "sglang::scheduler_TP0"),
        title(4203, 1, "sglang::scheduler_TP1"),
        holders=[hold(GPU0, 4202), hold(GPU1, 4203)],
    )

    assert result.pids == {4202, 4203}
    assert "no other server could own it" in result.members[0].reason


@pytest.mark.parametrize("adopter", ["/bin/bash", "/usr/bin/tmux", "/usr/lib/systemd/systemd"])
def test_a_subreaper_is_no_parent(adopter: str) -> None:
    """Orphans do not always land under pid 1."""
    reaper = proc(3000, 1, (adopter,), exe=adopter)
    orphan = title(4202, 3000, "sglang::scheduler_TP0")
    assert chosen(reaper, orphan, holders=[hold(GPU0, 4202)]).pids == {4202}


@pytest.mark.parametrize(
    ("argv", "changes"),
    [
        ("/usr/bin/python3 /usr/bin/circusd /etc/circus.ini", {}),
        ("/usr/bin/python3 /sbin/my_init", {}),
        (("PM2 v5.3.0: God Daemon (/root/.pm2)",), {"exe": "/usr/bin/node"}),
        ("/usr/bin/tini-static -s -- /run.sh", {"exe": "/usr/bin/tini-static"}),
        ("/sbin/docker-init -- bash", {"exe": "/sbin/docker-init"}),
        ("/usr/bin/python3 /app/main.py", {"ns_pids": (3000, 1)}),
    ],
)
def test_what_stands_in_for_init_is_no_parent(argv: Any, changes: dict[str, Any]) -> None:
    """Supervisors in Python or node, a container's init, and pid 1 of a namespace whatever runs as it."""
    reaper = proc(3000, 1, argv, **changes)
    orphan = title(4202, 3000, "sglang::scheduler_TP0")
    assert chosen(reaper, orphan, holders=[hold(GPU0, 4202)]).pids == {4202}


@pytest.mark.parametrize("argv", ["python3 bench_offline.py", "uvicorn app:app", "ray::Engine.run"])
def test_a_program_with_an_engine_in_it_is_the_parent(argv: str) -> None:
    """Its workers bear the same titles, on GPUs that the site calls ours: they are its own, and no doubt."""
    engine = proc(3000, 1, argv, exe="/usr/bin/python3.11")
    result = chosen(engine, title(4202, 3000, "sglang::scheduler_TP0"), holders=[hold(GPU0, 4202)])
    assert not result.members
    assert not result.ambiguous
    assert [one.pid for one in result.foreign] == [4202]


def test_orphans_on_other_gpus_are_not_ours() -> None:
    """What holds only other GPUs belonged to another server."""
    result = chosen(title(4202, 1, "sglang::scheduler_TP0"), holders=[hold(GPU2, 4202)])
    assert not result.members
    assert not result.ambiguous


def test_an_orphan_without_a_gpu_is_a_doubt() -> None:
    """A title and an owner alone prove nothing."""
    result = chosen(title(4204, 1, "sglang::detokenizer"))
    assert not result.members
    assert [doubt.pid for doubt in result.ambiguous] == [4204]


def test_an_orphan_without_a_gpu_follows_its_session() -> None:
    """It shares the session of a worker that is proven ours."""
    result = chosen(
        title(4202, 1, "sglang::scheduler_TP0", session=4200),
        title(4204, 1, "sglang::detokenizer", session=4200),
        holders=[hold(GPU0, 4202)],
    )
    assert result.pids == {4202, 4204}


def test_a_session_shared_with_another_server_s_worker_proves_nothing() -> None:
    """Two servers started from one shell share its session."""
    result = chosen(
        title(4202, 1, "sglang::scheduler_TP0", session=4200),
        title(4302, 1, "sglang::scheduler_TP0", session=4200),
        title(4204, 1, "sglang::detokenizer", session=4200),
        holders=[hold(GPU0, 4202), hold(GPU2, 4302)],
    )
    assert result.pids == {4202}
    assert [doubt.pid for doubt in result.ambiguous] == [4204]


def test_an_orphan_that_a_living_server_could_own_is_a_doubt_that_names_both() -> None:
    """An older server of the same owner may be its parent: refuse."""
    rival = proc(4000, 1, OTHER)
    result = chosen(rival, title(4202, 1, "sglang::scheduler_TP0"), holders=[hold(GPU0, 4202)])

    assert not result.members
    (doubt,) = result.ambiguous
    assert doubt.pid == 4202
    assert doubt.candidates == (
        "glm5 (port 30000, model /models/m)",
        "pid 4000 (port 30001, model /models/b)",
    )


def test_a_living_server_with_that_rank_already_is_no_rival() -> None:
    """A server has one worker of each title."""
    result = chosen(
        proc(4000, 1, OTHER),
        title(4001, 4000, "sglang::scheduler_TP0"),
        title(4202, 1, "sglang::scheduler_TP0"),
        holders=[hold(GPU2, 4001), hold(GPU0, 4202)],
    )
    assert result.pids == {4202}


def test_a_younger_server_is_no_rival() -> None:
    """What started after the orphan cannot be its parent."""
    result = chosen(
        proc(9000, 1, OTHER), title(4202, 1, "sglang::scheduler_TP0"), holders=[hold(GPU0, 4202)]
    )
    assert result.pids == {4202}


def test_a_server_that_the_site_puts_on_other_gpus_is_no_rival() -> None:
    """The site says which GPUs are whose."""
    other = server(name="b", port=30001, model="/models/b", gpu_uuids=frozenset({GPU2}))
    result = chosen(
        proc(4000, 1, OTHER),
        title(4202, 1, "sglang::scheduler_TP0"),
        holders=[hold(GPU0, 4202)],
        others=(other,),
    )
    assert result.pids == {4202}


@pytest.mark.parametrize(
    "changes",
    [
        {"uid": 1000, "user": "ops"},
        {"cgroup": "/lxc/131/ns", "ns_pids": (4202, 9)},
    ],
)
def test_an_orphan_of_another_owner_or_place_is_never_ours(changes: dict[str, Any]) -> None:
    """The title and the GPU do not outweigh the owner."""
    result = chosen(title(4202, 1, "sglang::scheduler_TP0", **changes), holders=[hold(GPU0, 4202)])
    assert not result.members
    assert [j.pid for j in (*result.foreign, *result.protected)] == [4202]


def test_a_title_on_another_executable_is_a_doubt() -> None:
    """A program that calls itself a scheduler and is no Python is not taken."""
    fake = proc(4202, 1, ("sglang::scheduler_TP0",), exe="/usr/bin/miner")
    result = chosen(fake, holders=[hold(GPU0, 4202)])
    assert not result.members
    assert "/usr/bin/miner" in result.ambiguous[0].reason


def test_the_workers_of_a_living_server_are_its_own() -> None:
    """They are neither ours nor in doubt, also on our GPU: then they are foreign."""
    result = chosen(
        proc(4100, 1, LAUNCH),
        proc(4000, 1, OTHER),
        title(4001, 4000, "sglang::scheduler_TP0"),
        holders=[hold(GPU0, 4001)],
    )
    assert result.pids == {4100}
    assert not result.ambiguous
    assert [judged.pid for judged in result.foreign] == [4001]


def test_where_nvml_s_pids_cannot_be_joined_an_open_device_counts() -> None:
    """Inside a container, and with no other server of the site there."""
    orphan = title(42, 1, "sglang::scheduler_TP0")
    details = {42: detail(42, gpu_devices=("/dev/nvidia0",))}
    blind = view(holders_here=False)
    other = server(name="b", port=30001)

    assert chosen(orphan, details=details, view=blind).pids == {42}
    assert not chosen(orphan, view=blind).members
    assert not chosen(orphan, details=details, view=blind, others=(other,)).members
