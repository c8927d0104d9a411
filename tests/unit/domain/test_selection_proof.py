"""What alone proves that a process is the server, and what does not."""

from __future__ import annotations

import pytest

from opsctl.domain.process import candidates
from opsctl.facts import ProcessId

from .selecting import chosen
from .tables import BOOT, GPU0, LAUNCH, detail, hold, proc, server, system, title, view


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


def test_a_config_file_needs_the_listening_port() -> None:
    """A port that only a config file knows is proven by listening on it, else doubted."""
    process = proc(4200, 1, "python3 -m sglang.launch_server --config c.yaml --model /models/m")
    listening = {4200: detail(4200, listening_ports=(30000,))}

    assert chosen(system(process), details=listening).pids == {4200}
    assert [d.pid for d in chosen(system(process)).ambiguous] == [4200]


def test_a_command_line_over_another_program_is_no_server() -> None:
    """`exec -a python3 other -m sglang.launch_server` is not killed, and not passed over in silence."""
    spoofed = proc(5000, 1, LAUNCH, exe="/usr/bin/perl")
    updated = proc(4200, 1, LAUNCH, exe="/usr/bin/python3.11 (deleted)")

    alone = chosen(system(spoofed))

    assert not alone.pids
    assert "/usr/bin/perl, which is no Python" in alone.ambiguous[0].reason
    assert chosen(system(spoofed, updated)).pids == {4200}
    assert not chosen(system(spoofed, updated)).ambiguous
