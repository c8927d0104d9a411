"""Stops where a stranger is easily taken for the server: each lives, and nothing is claimed too much."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import SafetyRefusal
from opsctl.site import Server
from opsctl.steps.base import StepResult
from opsctl.steps.stop import StopServer
from tests.lab import standin

from .stopping import (
    cmdline,
    context,
    end,
    family,
    free_port,
    is_alive,
    listens,
    standin_entry,
    standin_server,
    started,
    titles,
    wait_for,
)

pytestmark = pytest.mark.wire
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces")
JOB = "import time\ntime.sleep(120)\n"


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A program that has nothing to do with the server."""
    path = tmp_path / "train.py"
    path.write_text(JOB)
    return path


def server_argv(port: int, *flags: str) -> list[str]:
    return standin.argv(port, "--tp", "2", "--lab-startup-s", "0", *flags)


def find(text: str) -> int:
    """Return the pid whose command line has ``text`` as an element."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and text in cmdline(int(entry.name)).split("\0"):
            return int(entry.name)
    return 0


def stop(port: int, tmp_path: Path, **options: Any) -> StepResult:
    with context(standin_entry(port), tmp_path) as ctx:
        return StopServer(**{"grace_s": 5.0, **options}).run(ctx)


@contextmanager
def beside(argv: Sequence[str], port: int) -> Iterator[int]:
    """Start a program that starts a server, and wait until the server serves."""
    with started(argv, standin.environment()) as pid:
        wait_for(lambda: listens(port))
        wait_for(lambda: len([one for one in family(pid) if "sglang::" in cmdline(one)]) >= 3)
        yield pid


def test_a_job_that_the_server_s_own_shell_had_begun_is_asked_about(
    port: int, tmp_path: Path, job: Path
) -> None:
    """`train.py & exec python -m sglang.launch_server`: SGLang would kill it, as all that is below it."""
    line = f'{sys.executable} "$0" & exec "$@"'
    with beside(["bash", "-c", line, str(job), *server_argv(port)], port) as root:
        training = wait_for(lambda: find(str(job)))
        assert training in family(root)

        with pytest.raises(SafetyRefusal, match=r"train\.py runs on its own below") as refusal:
            stop(port, tmp_path)
        assert f"--evict {training}" in (refusal.value.next_step or "")
        assert is_alive(training)
        assert is_alive(root)

        stop(port, tmp_path, evict=(training,))
        assert not is_alive(root)
        assert not is_alive(training)


def test_a_double_forked_job_of_the_server_s_session_lives(
    port: int, tmp_path: Path, job: Path
) -> None:
    """It is below nobody any more, in the session that the server leads, and no helper by its kind."""
    line = f'( {sys.executable} "$0" & ) ; exec "$@"'
    with beside(["bash", "-c", line, str(job), *server_argv(port)], port) as root:
        training = wait_for(lambda: find(str(job)))
        result = stop(port, tmp_path)
        assert not is_alive(root)
        assert is_alive(training)
        rows = {row["pid"]: row for row in result.data["processes"]}
        assert (rows[training]["class"], rows[training]["outcome"]) == ("foreign", "untouched")
        assert "train.py" in rows[training]["reason"]
        end(training)


def test_a_job_of_the_same_shell_lives(port: int, tmp_path: Path, job: Path) -> None:
    """Same session, same parent: the shell and the job stay."""
    line = f'{sys.executable} "$0" & "$@" & wait'
    with beside(["bash", "-c", line, str(job), *server_argv(port)], port) as shell:
        training = wait_for(lambda: find(str(job)))
        stop(port, tmp_path)
        assert not [pid for pid in titles(shell) if is_alive(pid)]
        assert is_alive(training)
        assert is_alive(shell)


def test_the_notebook_that_launched_it_lives(port: int, tmp_path: Path) -> None:
    """A kernel that started the server as its child and does not wait for it: the dead root is named."""
    code = (
        "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(120)",
        *server_argv(port),
    )
    with beside([sys.executable, "-c", *code], port) as kernel:
        root = next(pid for pid in family(kernel) if pid != kernel)
        result = stop(port, tmp_path)
        assert is_alive(kernel)
        assert not is_alive(root)
        assert root in {row["pid"] for row in result.data["processes"]}
        assert result.exit_code == 0


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_the_other_panes_of_a_tmux_live(port: int, tmp_path: Path, job: Path) -> None:
    """The server runs in a pane of its own; the multiplexer and the other pane stay."""
    base = ["tmux", "-S", str(tmp_path / "socket"), "-f", "/dev/null"]
    env = standin.environment()
    env.pop("TMUX", None)

    def tmux(*words: str) -> str:
        done = subprocess.run([*base, *words], env=env, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    tmux("new-session", "-d", "-s", "work", sys.executable, str(job))
    try:
        multiplexer = int(tmux("display-message", "-p", "#{pid}"))
        training = int(tmux("list-panes", "-s", "-t", "work", "-F", "#{pane_pid}"))
        pane = tmux("new-window", "-t", "work", "-P", "-F", "#{pane_pid}", *server_argv(port))
        wait_for(lambda: listens(port) and len(titles(int(pane))) >= 3)

        stop(port, tmp_path)

        assert not is_alive(int(pane))
        assert is_alive(multiplexer)
        assert is_alive(training)
    finally:
        tmux("kill-server")


@contextmanager
def namespaced(port: int, *flags: str) -> Iterator[list[int]]:
    """Start a stand-in of the same port and model in namespaces of its own, as a container runtime does."""
    unshare = ["unshare", "--fork", *flags]
    with started([*unshare, *server_argv(port)], standin.environment()) as pid:
        wait_for(lambda: len([one for one in family(pid) if "sglang::" in cmdline(one)]) >= 3)
        yield [one for one in family(pid) if one != pid]


@needs_root
@pytest.mark.parametrize(
    "flags", [("--net",), ("--net", "--pid", "--mount-proc", "--kill-child")], ids=["net", "pid"]
)
def test_the_same_server_in_namespaces_of_its_own_lives(
    port: int, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """Same user, port and model in another network (and pid) namespace: ours goes, that one stays."""
    with namespaced(port, *flags) as theirs, standin_server(port) as ours:
        result = stop(port, tmp_path)
        assert not is_alive(ours)
        assert all(is_alive(pid) for pid in theirs)
        named = [finding.code for finding in result.findings]
        assert "port-held" not in named, result.findings


@pytest.mark.orphans  # nothing of ours runs: another test's server of this model would be a doubt, too
@needs_root
def test_the_same_server_in_another_network_namespace_alone_is_a_doubt(
    port: int, tmp_path: Path
) -> None:
    """Nothing of ours runs: whether that one is it cannot be told from here, so it is asked for."""
    with namespaced(port, "--net") as theirs:
        with pytest.raises(SafetyRefusal, match="another network namespace"):
            stop(port, tmp_path)
        assert all(is_alive(pid) for pid in theirs)


@pytest.mark.orphans  # nothing of ours runs: another test's server of this model would be a doubt, too
@needs_root
def test_a_container_s_server_on_the_same_port_number_keeps_nobody_from_starting(
    port: int, tmp_path: Path
) -> None:
    """A pid and a network namespace of its own: no server of this host, and no port of it."""
    with namespaced(port, "--net", "--pid", "--mount-proc", "--kill-child") as theirs:
        result = stop(port, tmp_path)
        assert result.exit_code == 0
        assert result.data["summary"] == "no process of it was running"
        assert result.findings == ()
        assert all(is_alive(pid) for pid in theirs)


def test_a_title_alone_is_no_worker(port: int, tmp_path: Path) -> None:
    """Somebody's program shows a scheduler's title: it has a parent that explains it, and lives."""
    code = (
        "import ctypes, sys, time; sys.path.insert(0, sys.argv[1]); "
        "from sglang.standin.process import set_title; set_title('sglang::scheduler_TP0'); "
        "time.sleep(120)"
    )
    argv = [sys.executable, "-c", code, str(standin.SITE)]
    with started(argv) as imitation:
        wait_for(lambda: cmdline(imitation).startswith("sglang::"))
        with standin_server(port) as ours:
            stop(port, tmp_path)
            assert not is_alive(ours)
        assert is_alive(imitation)


def test_a_server_whose_first_thread_has_ended_is_whole(port: int, tmp_path: Path) -> None:
    """It reads as a zombie without a command line while its other threads serve and hold memory."""
    code = (
        "import ctypes, sys, threading, time; "
        "from sglang.standin.process import set_title; "
        "threading.Thread(target=time.sleep, args=(120,)).start(); "
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    argv = [sys.executable, "-c", code]
    with started(argv, standin.environment()) as pid:
        wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
        with context(Server(host="here", port=port, command=argv), tmp_path) as ctx:
            result = StopServer(grace_s=1.0).run(ctx)
        rows = {row["pid"]: row["outcome"] for row in result.data["processes"]}
        assert rows[pid] in ("terminated", "killed")
        assert not Path(f"/proc/{pid}/task").exists() or len(os.listdir(f"/proc/{pid}/task")) == 1


def test_supervisord_starts_it_again_and_is_named(port: int, tmp_path: Path) -> None:
    """autorestart=true: the plan says so before, the stop sees the new one, and nobody claims `stopped`."""
    config = tmp_path / "supervisord.conf"
    config.write_text(
        f"[supervisord]\nnodaemon=true\nlogfile=/dev/null\nlogfile_maxbytes=0\npidfile={tmp_path}/pid\n"
        f"[program:glm5]\ncommand={' '.join(server_argv(port))}\nautorestart=true\nstartsecs=0\n"
    )
    argv = [sys.executable, "-m", "supervisor.supervisord", "-c", str(config)]
    with beside(argv, port) as daemon:
        result = stop(port, tmp_path)
        loops = [finding for finding in result.findings if finding.code == "restart-loop"]
        assert any("supervisorctl stop" in finding.next for finding in loops), result.findings
        assert is_alive(daemon)
        if result.exit_code == 0:  # it has not started the next one yet, which was foretold
            assert "may start it again" in loops[0].text
        else:
            assert any("was started again" in finding.text for finding in loops)


def test_a_server_under_another_name_is_stopped_whole(port: int, tmp_path: Path) -> None:
    """`exec -a glm5-prod python -m ...`: argv[0] is a label, the executable is what runs."""
    line = ["bash", "-c", 'exec -a glm5-prod "$@"', "bash", *server_argv(port)]
    with beside(line, port) as root:
        assert cmdline(root).startswith("glm5-prod\0")
        members = family(root)
        result = stop(port, tmp_path)

    assert result.exit_code == 0
    assert {row["pid"] for row in result.data["processes"]} >= set(members)
