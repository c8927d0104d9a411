"""A stop of real processes on this machine: what ends, what lives, and what is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opsctl.domain.stop_plan import plan_stop
from opsctl.errors import SafetyRefusal
from opsctl.site import Server, StopSettings
from opsctl.steps.base import StepOutcome, StepResult
from opsctl.steps.gpu_memory import PICTURE_KEY
from opsctl.steps.stop import StopServer

from .stopping import (
    context,
    family,
    free_port,
    is_alive,
    listens,
    standin_entry,
    standin_server,
    started,
    titles,
    tree_command,
    tree_server,
    wait_for,
)

pytestmark = pytest.mark.wire


def generic(port: int, *behaviours: str, **changes: Any) -> Server:
    return Server(host="here", port=port, command=tree_command(port, *behaviours), **changes)


def outcomes(result: StepResult) -> dict[int, str]:
    rows = result.data["processes"]
    return {row["pid"]: row["outcome"] for row in rows if row["class"] == "member"}


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def strangers() -> Iterator[list[int]]:
    """Start what the incident's one-liners would have killed: each must outlive every test."""
    lines = [
        ["python3", "-c", "import time; time.sleep(120)", "train.py", "--port", "30000"],
        ["bash", "-c", "sleep 120; : python3 -m sglang.launch_server"],
        ["tail", "-f", "/dev/null", "sglang.launch_server"],
        ["grep", "sglang", "-"],
    ]
    with ExitStack() as stack:
        pids = []
        for line in lines:
            if line[0] == "grep":  # waits for its input for ever
                reading, writing = os.pipe()
                grep = subprocess.Popen(line, stdin=reading, stdout=subprocess.DEVNULL)
                stack.callback(grep.wait, 10)
                stack.callback(grep.kill)
                stack.callback(os.close, writing)
                os.close(reading)
                pids.append(grep.pid)
            else:
                pids.append(stack.enter_context(started(line)))
        yield pids
        dead = [pid for pid in pids if not is_alive(pid)]
        assert not dead, "a stranger was killed"


def test_a_server_ends_whole_and_the_strangers_live(
    port: int, tmp_path: Path, strangers: list[int]
) -> None:
    """TERM to the root of a stand-in ends its tree; a second stop finds nothing and is fine."""
    with standin_server(port) as pid, context(standin_entry(port), tmp_path) as ctx:
        everyone = family(pid)

        first = StopServer().run(ctx)
        second = StopServer().run(ctx)

        assert set(outcomes(first)) == set(everyone)
        assert not any(is_alive(member) for member in everyone)
        assert (first.outcome, first.exit_code) == (StepOutcome.DONE, 0)
        assert (second.outcome, second.exit_code) == (StepOutcome.UNCHANGED, 0)


def test_kill_begins_with_kill(port: int, tmp_path: Path, strangers: list[int]) -> None:
    """Without grace every process that is ours gets KILL, and the times are told."""
    with standin_server(port, "--lab-ignore-term") as pid:
        with context(standin_entry(port), tmp_path) as ctx:
            everyone = family(pid)
            result = StopServer(hard=True).run(ctx)

        assert outcomes(result)[pid] == "killed"
        assert not any(is_alive(member) for member in everyone)
        assert 0.0 <= result.data["ending_s"] < 5.0


def test_who_ignores_term_is_killed_after_the_grace(port: int, tmp_path: Path) -> None:
    """TERM, the grace, TERM to the rest, KILL."""
    with tree_server(port, "--ignore-term") as pid:
        everyone = family(pid)
        with context(generic(port, "--ignore-term"), tmp_path) as ctx:
            result = StopServer(grace_s=0.3).run(ctx)

        assert set(outcomes(result).values()) == {"killed"}
        assert set(outcomes(result)) == set(everyone)


@pytest.mark.orphans
def test_orphans_of_a_stopped_root_end_too(port: int, tmp_path: Path) -> None:
    """Workers that are left when the root has exited get TERM, then KILL; they were recorded before."""
    with (
        standin_server(port, "--lab-orphans") as pid,
        context(standin_entry(port), tmp_path) as ctx,
    ):
        everyone = family(pid)
        result = StopServer(grace_s=5.0).run(ctx)

        assert len(everyone) >= 4
        assert not any(is_alive(member) for member in everyone)
        assert outcomes(result)[pid] == "terminated"


def test_a_double_forked_worker_is_found_by_its_session(port: int, tmp_path: Path) -> None:
    """Its parent is gone; it shares the session that the server leads."""
    with tree_server(port, "--double-fork") as pid:
        with context(generic(port, "--double-fork"), tmp_path) as ctx:
            result = StopServer().run(ctx)
        reasons = {row["pid"]: row["reason"] for row in result.data["processes"]}
        orphan = next(p for p, why in reasons.items() if "in the session" in why)

        assert orphan not in family(pid)
        assert not is_alive(orphan)


def test_a_zombie_is_dead_and_named(port: int, tmp_path: Path) -> None:
    """It is not signalled, it is not waited for, and the stop succeeds."""
    with tree_server(port, "--zombie"), context(generic(port, "--zombie"), tmp_path) as ctx:
        begun = time.monotonic()
        result = StopServer(grace_s=10.0).run(ctx)

    assert "zombie" in outcomes(result).values()
    assert result.exit_code == 0
    assert time.monotonic() - begun < 8.0


def test_a_worker_forked_during_the_stop_is_stopped_in_another_round(
    port: int, tmp_path: Path
) -> None:
    """It was not in the plan; the table is looked at again."""
    with tree_server(port, "--late-child") as pid:
        with context(generic(port, "--late-child"), tmp_path) as ctx:
            result = StopServer(grace_s=2.0).run(ctx)
        assert len(outcomes(result)) == 4
        assert result.exit_code == 0
        assert not any(is_alive(member) for member in outcomes(result))
        assert pid in outcomes(result)


def test_a_pid_that_changed_hands_is_left_alone(port: int, tmp_path: Path) -> None:
    """The plan names a start that the process with this pid does not have: recycled, not signalled."""
    with tree_server(port) as pid, context(generic(port), tmp_path) as ctx:
        StopServer().preview(ctx)
        _, picture = ctx.live[PICTURE_KEY]  # type: ignore[misc]
        (root,) = picture.selection.roots
        changed = replace(picture, selection=replace(picture.selection, members=(_older(root),)))
        plan = plan_stop(changed.selection, changed.table)
        stopping = StopServer()._stopping(ctx, changed, plan)
        stopping.hold()
        stopping.terminate()
        stopping.finish()

        assert stopping.outcomes[pid] == "recycled"
        assert is_alive(pid)


def _older(member: Any) -> Any:
    identity = member.process.identity
    older = replace(identity, start_ticks=identity.start_ticks - 1)
    return replace(member, process=replace(member.process, identity=older))


def test_a_server_that_is_started_again_is_a_restart_loop(port: int, tmp_path: Path) -> None:
    """Something restarts it: exit 20, with who did it, and the new one is left running."""
    command = " ".join(tree_command(port))
    script = f"while true; do {command} & wait $!; sleep 0.05; done"
    with started(["bash", "-c", script, "loop"]):
        wait_for(lambda: listens(port))
        server = generic(port, stop=StopSettings(grace_s=2.0))
        with context(server, tmp_path) as ctx:
            result = StopServer().run(ctx)

        again = [f for f in result.findings if "was started again" in f.text]
        assert result.exit_code == 20
        assert [finding.code for finding in again] == ["restart-loop"]
        assert int(again[0].subject) not in outcomes(result)
        assert is_alive(int(again[0].subject))


def test_two_servers_on_one_host_are_told_apart(port: int, tmp_path: Path) -> None:
    """Same model, another port: the other one keeps its pids and start times."""
    other_port = free_port()
    with standin_server(port) as ours, standin_server(other_port) as theirs:
        others = family(theirs)
        with context(standin_entry(port), tmp_path) as ctx:
            result = StopServer().run(ctx)

        assert set(outcomes(result)) >= {ours}
        assert all(is_alive(pid) for pid in others)
        assert family(theirs) == others


def test_a_doubt_refuses_before_any_signal(port: int, tmp_path: Path) -> None:
    """The site's port, another model: both are named and both live."""
    with standin_server(port) as pid:
        entry = standin_entry(port, model="/models/other")
        with context(entry, tmp_path) as ctx, pytest.raises(SafetyRefusal) as refusal:
            StopServer().run(ctx)
        assert refusal.value.exit_code == 50
        assert "/models/other" in refusal.value.message
        assert is_alive(pid)


@pytest.mark.orphans
def test_orphans_without_their_root_are_refused_without_proof(port: int, tmp_path: Path) -> None:
    """No GPU, no record: titles alone are not taken for the server's. With the pids named they end."""
    with standin_server(port, "--lab-orphans") as pid:
        workers = titles(pid)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not is_alive(pid))
        with context(standin_entry(port), tmp_path) as ctx:
            with pytest.raises(SafetyRefusal, match="cannot be attributed"):
                StopServer().run(ctx)
            assert all(is_alive(worker) for worker in workers)

            StopServer(evict=tuple(workers), grace_s=1.0).run(ctx)
        assert not any(is_alive(worker) for worker in workers)


@pytest.mark.orphans
def test_orphans_that_are_just_ending_do_not_refuse_a_neighbour_s_stop(
    port: int, tmp_path: Path
) -> None:
    """Another server's main process is gone, its workers end a moment later: the second look is clear."""
    with standin_server(free_port(), "--lab-orphans") as other, standin_server(port) as pid:
        workers = titles(other)
        os.kill(other, signal.SIGKILL)
        wait_for(lambda: not is_alive(other))
        with context(standin_entry(port), tmp_path) as ctx:
            looks: list[float] = []

            def end_workers(seconds: float) -> None:
                looks.append(seconds)
                for worker in workers:
                    os.kill(worker, signal.SIGKILL)
                wait_for(lambda: not any(is_alive(worker) for worker in workers))

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ctx.clock, "sleep", end_workers)
                StopServer(grace_s=1.0).run(ctx)

        assert looks
        assert not is_alive(pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_user_s_server_is_never_touched(port: int, tmp_path: Path) -> None:
    """Same command line under another user: refused, alive; with `user:` in the site it is ours."""

    def drop() -> None:
        os.setgid(65534)
        os.setuid(65534)

    argv = ["/usr/bin/python3", "-c", "import time; time.sleep(60)", "--port", str(port)]
    process = subprocess.Popen(argv, preexec_fn=drop, start_new_session=True)
    try:
        server = Server(host="here", port=port, command=argv)
        with context(server, tmp_path) as ctx:
            result = StopServer().run(ctx)
            assert outcomes(result) == {}
            assert process.poll() is None
        with context(server.model_copy(update={"user": "nobody"}), tmp_path) as ctx:
            result = StopServer(grace_s=2.0).run(ctx)
            assert outcomes(result) == {process.pid: "zombie"} or not is_alive(process.pid)
    finally:
        process.kill()
        process.wait(timeout=10)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the freezer")
def test_a_process_in_d_state_is_reported_and_not_waited_for_ever(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KILL is queued; the step says that a reboot is needed, exit 20."""
    freezer = Path("/sys/fs/cgroup/freezer")
    if not freezer.is_dir():
        pytest.skip("no v1 freezer here")
    import opsctl.steps.stopping as module

    monkeypatch.setattr(module, "KILL_WAIT_S", 0.5)
    group = freezer / f"opsctl-stop-{os.getpid()}"
    group.mkdir()
    try:
        with tree_server(port, "--children", "0") as pid:
            (group / "cgroup.procs").write_text(str(pid))
            (group / "freezer.state").write_text("FROZEN")
            try:
                server = generic(port, "--children", "0")
                with context(server, tmp_path) as ctx:
                    result = StopServer(grace_s=0.2).run(ctx)
            finally:
                (group / "freezer.state").write_text("THAWED")
            assert outcomes(result) == {pid: "stuck"}
            assert result.exit_code == 20
            assert any("reboot" in finding.text for finding in result.findings)
            wait_for(lambda: not is_alive(pid))
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def test_the_command_asks_and_refuses_without_a_terminal(port: int, tmp_path: Path) -> None:
    """Without --yes and without a terminal: exit 50, and the pid is the same."""
    site = tmp_path / "opsctl.yaml"
    site.write_text(
        "hosts:\n  here: {local: true}\nservers:\n  s:\n    host: here\n"
        f"    port: {port}\n    command: {tree_command(port)}\n"
    )
    base = [sys.executable, "-m", "opsctl", "stop", "s", "--site", str(site)]
    base += ["--state", str(tmp_path / "state")]
    with tree_server(port) as pid:
        asked = subprocess.run(base, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        dry = subprocess.run([*base, "--dry-run"], capture_output=True, timeout=60)
        assert asked.returncode == 50
        assert dry.returncode == 0
        assert str(pid) in dry.stdout.decode()
        assert is_alive(pid)
        done = subprocess.run([*base, "--yes", "--json"], capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert '"outcome": "stopped"' in done.stdout.decode()
        assert not is_alive(pid)


def test_a_port_that_a_stranger_holds_is_not_called_stopped(port: int, tmp_path: Path) -> None:
    """Nothing of the server runs, and something listens on its port: exit 20, and it is named and alive."""
    site = tmp_path / "opsctl.yaml"
    site.write_text(
        "hosts:\n  here: {local: true}\nservers:\n  s:\n    host: here\n"
        f"    port: {port}\n    python: {sys.executable}\n    model: /models/m\n"
    )
    base = [sys.executable, "-m", "opsctl", "stop", "s", "--site", str(site), "--json", "--yes"]
    with tree_server(port) as pid:
        done = subprocess.run(
            [*base, "--state", str(tmp_path / "state")], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 20, done.stderr
        assert '"outcome": "port-held"' in done.stdout
        assert str(pid) in done.stdout
        assert is_alive(pid)
