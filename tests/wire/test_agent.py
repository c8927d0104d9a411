"""The real agent in a child process: what it survives, and how its end is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from opsctl.agent import client
from opsctl.agent.client import RemoteAgent, connect
from opsctl.agent.read import read_host, read_processes
from opsctl.errors import AgentError, OpsctlError, TransportError
from opsctl.transport.local import LocalChannel, LocalTransport

pytestmark = pytest.mark.wire


class Wrapped(LocalTransport):
    """This machine, with a shell script between; the command itself is the script's arguments."""

    def __init__(self, script: str) -> None:
        super().__init__()
        self._script = script

    def open(self, argv: Sequence[str]) -> LocalChannel:
        return super().open(["/bin/sh", "-c", self._script, "wrapper", *argv])


@pytest.fixture
def agent() -> Iterator[RemoteAgent]:
    with connect(LocalTransport()) as made:
        yield made


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def failure(act: Callable[[], object]) -> OpsctlError:
    """Return the error that ``act`` must raise."""
    with pytest.raises(OpsctlError) as caught:
        act()
    return caught.value


def start_failure(transport: LocalTransport, **options: object) -> OpsctlError:
    """Return the error with which no agent comes up."""

    def act() -> None:
        with connect(transport, **options):  # type: ignore[arg-type]
            pass

    return failure(act)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(claim: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if claim():
            return True
        time.sleep(0.02)
    return claim()


def test_an_agent_answers_and_leaves_nothing(tmp_path: Path) -> None:
    """Started, asked, ended: its process is gone when the block ends."""
    with connect(LocalTransport()) as agent:
        assert agent.call("agent.noop", {"x": [1]}) == {"x": [1]}
        pid = agent.hello["pid"]
        assert is_alive(pid)

    assert wait_until(lambda: not is_alive(pid))


def test_an_unknown_operation_is_a_named_failure(agent: RemoteAgent) -> None:
    """The agent stays usable after a failed operation."""
    error = failure(lambda: agent.call("process.fly"))

    assert (error.code, error.exit_code) == ("unknown-operation", 40)
    assert agent.call("agent.noop") == {}


def test_noise_before_the_marker_is_ignored() -> None:
    """Banner, motd, an rc file that prints without a newline, and an echo of the command line."""
    noisy = Wrapped('echo welcome; echo "$@"; echo \'{"id":1}\'; printf "no newline"; exec "$@"')

    with connect(noisy) as agent:
        assert agent.call("agent.noop") == {}


def test_a_login_script_that_eats_stdin_is_named() -> None:
    """It read what was meant for the agent; the error says so instead of a syntax error."""
    error = start_failure(Wrapped('head -c 40 >/dev/null; exec "$@"'))

    assert error.code == "stdin-eaten"
    assert "login script" in error.message


def test_a_source_cut_short_is_named() -> None:
    """The channel ended inside the agent's source."""
    error = start_failure(Wrapped('head -c 500 | "$@"'))

    assert (error.code, error.exit_code) == ("cut-source", 40)


def test_a_reply_cut_in_half_ends_the_call_at_once() -> None:
    """Half a frame is no frame: the call fails when the channel ends, not at its deadline."""
    cut = Wrapped('"$@" | dd bs=1 count=3000 status=none')
    began = time.monotonic()

    def act() -> None:
        with connect(cut, ping_s=0.1) as agent:
            agent.call("agent.noop", {"long": "x" * 8000}, timeout_s=30)

    error = failure(act)

    assert error.exit_code in (30, 40)
    assert time.monotonic() - began < 10


def test_a_damaged_reply_is_told_as_such() -> None:
    """Something writes into the frames: nothing after it is believed."""
    script = '"$@" | sed -u "s/.*pong.*/garbage from somewhere/"'

    def act() -> None:
        with connect(Wrapped(script)) as agent:
            agent.call("agent.noop", timeout_s=10)

    error = failure(act)

    assert "damaged" in error.message


def test_no_python_is_one_sentence() -> None:
    """The shell looked, and there is none."""
    error = start_failure(LocalTransport(), interpreter="/nonexistent/python3")

    assert (error.code, error.exit_code) == ("no-python", 40)
    assert "install python3" in (error.next_step or "")


def fake_python(folder: Path, version: str) -> Path:
    """Make a python3 that claims to be another version; everything else is real."""
    path = folder / "python3"
    claim = f"import sys; sys.version_info = ({version}, 'final', 0); "
    claim += f"sys.executable = '{path}'; exec(sys.argv[1])"
    path.write_text(f'#!/bin/sh\nshift 5\nexec {sys.executable} -I -S -u -c "{claim}" "$@"\n')
    path.chmod(0o755)
    return path


def test_an_old_python_is_named_with_what_is_needed(tmp_path: Path) -> None:
    """Found 3.6, needed 3.8: both are in the sentence."""
    error = start_failure(LocalTransport(), interpreter=str(fake_python(tmp_path, "3,6,15")))

    assert error.code == "old-python"
    assert "3.6.15" in error.message
    assert "3.8" in error.message


def test_an_old_python_hands_over_to_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first python3 of PATH is too old, /usr/bin has a good one: that one serves."""
    if not any(Path(place).exists() for place in client.boot.PYTHONS if place.startswith("/")):
        pytest.skip("no system Python to hand over to")
    fake_python(tmp_path, "3,6,15")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    with connect(LocalTransport()) as agent:
        assert agent.hello["executable"] != str(tmp_path / "python3")


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.13"])
def test_the_agent_runs_on_each_python(version: str) -> None:
    """Whole core and all operation modules load on the oldest and on new Pythons."""
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if not found:
        pytest.skip(f"no Python {version} here")
    with connect(LocalTransport(), interpreter=str(found[0])) as agent:
        for operation in ("host.read", "process.scan", "lock.read", "gpu.read", "leftovers.read"):
            agent.call(operation)
        agent.call("package.read", {"interpreter": [str(found[0])], "name": "pip"})
        agent.call("process.wait_gone", {"processes": [], "timeout_s": 0.1})
        assert agent.hello["python"].startswith(version)


def test_foreign_bytes_in_argv_survive_in_an_ascii_locale(
    monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    """A process named in latin-1 is read as it is, whatever the locale of the agent."""
    monkeypatch.setenv("LC_ALL", "POSIX")
    strange = subprocess.Popen([b"/bin/sh", b"-c", b"sleep 30; true", b"caf\xe9"])
    try:
        with connect(LocalTransport()) as agent:
            processes = {process.pid: process for process in read_processes(agent)}
    finally:
        strange.kill()
        strange.wait()

    assert processes[strange.pid].argv[-1].encode("utf-8", "surrogateescape") == b"caf\xe9"


def test_a_print_in_an_operation_does_not_damage_the_frames(agent: RemoteAgent) -> None:
    """A child's or library's output on stdout goes to stderr; stdin belongs to the frames alone."""
    request = {"interpreter": ["/bin/sh", "-c", "echo noise; cat; echo x >&2"], "name": "pip"}

    facts = agent.call("package.read", request)

    assert facts["error"] is not None
    assert agent.call("agent.noop") == {}


def test_calls_from_many_threads_get_their_own_answers(agent: RemoteAgent) -> None:
    """Whoever reads hands the others their frames."""
    seen: dict[int, object] = {}

    def ask(number: int) -> None:
        for turn in range(20):
            seen[number * 100 + turn] = agent.call("agent.noop", {"n": number * 100 + turn})["n"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(seen) == 160
    assert all(asked == answered for asked, answered in seen.items())


def test_a_call_is_answered_while_another_waits(
    agent: RemoteAgent, sleeper: subprocess.Popen[bytes]
) -> None:
    """A watch goes on for minutes; everything else must still be possible."""
    (process,) = [one for one in read_processes(agent) if one.pid == sleeper.pid]
    target = {"pid": process.pid, "start_ticks": process.identity.start_ticks}
    events: list[dict[str, object]] = []
    results: list[dict[str, object]] = []
    request = {"processes": [target], "timeout_s": 20}

    def watch() -> None:
        results.append(agent.call("process.watch", request, timeout_s=25, on_event=events.append))

    thread = threading.Thread(target=watch)
    thread.start()
    assert wait_until(lambda: bool(events))

    killed_s = time.time()
    signal_request = {**target, "boot_id": process.identity.boot_id, "signal": "KILL"}
    assert agent.call("process.signal", signal_request)["outcome"] == "sent"
    thread.join(10)

    assert events[0] == {"watching": [sleeper.pid]}
    assert events[1]["exit"] == sleeper.pid
    assert abs(float(str(events[1]["clock_s"])) - killed_s) < 1.0
    assert results[0]["gone"] == [sleeper.pid]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGSEGV, -11), (signal.SIGKILL, -9), (0, 3)])
def test_the_end_of_a_strangers_child_is_told_with_its_signal(
    agent: RemoteAgent, number: int, code: int
) -> None:
    """The agent is nobody's parent: the code is read while the parent has not collected it yet."""
    script = (
        "import subprocess, sys; child = subprocess.Popen(['sh', '-c', 'read x; exit 3'], "
        "stdin=subprocess.PIPE); print(child.pid, flush=True); sys.stdin.readline(); "
        "child.stdin.close(); sys.stdin.readline()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    (start,) = [p.identity.start_ticks for p in read_processes(agent) if p.pid == pid]

    def end(event: dict[str, object]) -> None:
        events.append(event)
        if "watching" in event and number:
            os.kill(pid, number)
        elif "watching" in event:
            assert parent.stdin is not None
            parent.stdin.write(b"\n")
            parent.stdin.flush()

    events: list[dict[str, object]] = []
    request = {"processes": [{"pid": pid, "start_ticks": start}], "timeout_s": 20}
    try:
        agent.call("process.watch", request, timeout_s=25, on_event=end)
    finally:
        parent.kill()
        parent.communicate(timeout=10)

    (exit_event,) = [event for event in events if "exit" in event]
    assert exit_event["exit_code"] == code


def test_a_withdrawn_operation_ends_on_the_host(
    agent: RemoteAgent, sleeper: subprocess.Popen[bytes]
) -> None:
    """A call past its deadline is cancelled there: its thread does not go on."""
    (process,) = [one for one in read_processes(agent) if one.pid == sleeper.pid]
    target = {"pid": process.pid, "start_ticks": process.identity.start_ticks}
    threads = Path(f"/proc/{agent.hello['pid']}/task")
    before = len(list(threads.iterdir()))

    request = {"processes": [target], "timeout_s": 60}
    error = failure(lambda: agent.call("process.watch", request, timeout_s=0.2))

    assert error.code == "operation-timeout"
    assert wait_until(lambda: len(list(threads.iterdir())) <= before), before


def test_an_agent_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that stops answering: the call ends at its deadline, later ones at once."""
    monkeypatch.setattr(client, "PONG_TIMEOUT_S", 0.3)
    with connect(LocalTransport(), ping_s=0.1) as agent:
        os.kill(agent.hello["pid"], signal.SIGSTOP)
        try:
            error = failure(lambda: agent.call("agent.noop", timeout_s=20))
            again = failure(lambda: agent.call("agent.noop", timeout_s=20))
        finally:
            os.kill(agent.hello["pid"], signal.SIGKILL)

    assert error.code == again.code == "agent-lost"
    assert "ping" in error.message


def test_an_agent_without_a_frame_ends_and_frees_its_locks(tmp_path: Path) -> None:
    """The client says nothing: the agent is gone after its silence, and so are its locks."""
    lock = {"names": ["a"], "owner": {"who": "frozen"}, "directory": str(tmp_path)}
    with connect(LocalTransport(), silence_s=2.0, ping_s=60) as silent:
        assert silent.call("lock.acquire", lock)["acquired"]
        with connect(LocalTransport()) as other:
            assert other.call("lock.acquire", lock)["holder"]["who"] == "frozen"
            assert wait_until(lambda: not is_alive(silent.hello["pid"]))
            assert other.call("lock.acquire", lock)["acquired"]
        error = failure(lambda: silent.call("agent.noop"))

    assert error.exit_code == 40


def test_pings_keep_an_idle_agent_alive() -> None:
    """Nothing is asked for longer than the silence allows, and the agent still answers."""
    with connect(LocalTransport(), silence_s=2.0, ping_s=0.2) as agent:
        time.sleep(3.0)

        assert agent.call("agent.noop") == {}


FROZEN_CLIENT = """
    import json, sys
    from opsctl.agent.client import connect
    from opsctl.agent.read import read_processes
    from opsctl.errors import OpsctlError
    from opsctl.transport.local import LocalTransport

    with connect(LocalTransport(), silence_s=2.0, ping_s=0.2) as agent:
        (target,) = [one for one in read_processes(agent) if one.pid == int(sys.argv[1])]
        print(json.dumps({"agent": agent.hello["pid"]}), flush=True)
        sys.stdin.readline()
        try:
            answer = agent.call("process.signal", {
                "pid": target.pid, "start_ticks": target.identity.start_ticks,
                "boot_id": target.identity.boot_id, "signal": "KILL"})
        except OpsctlError as error:
            answer = {"error": type(error).__name__, "message": error.message}
        print(json.dumps(answer), flush=True)
"""


def test_a_client_that_stood_still_signals_nothing_when_it_wakes(
    sleeper: subprocess.Popen[bytes],
) -> None:
    """SIGSTOP for longer than the lease: the agent has ended, the next call fails, the target lives."""
    code = textwrap.dedent(FROZEN_CLIENT)
    frozen = subprocess.Popen(
        [sys.executable, "-c", code, str(sleeper.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert frozen.stdin is not None
    assert frozen.stdout is not None
    agent_pid = json.loads(frozen.stdout.readline())["agent"]

    os.kill(frozen.pid, signal.SIGSTOP)
    frozen.stdin.write(b"go\n")
    frozen.stdin.flush()
    assert wait_until(lambda: not is_alive(agent_pid))
    os.kill(frozen.pid, signal.SIGCONT)
    answer = json.loads(frozen.stdout.readline())
    frozen.stdin.close()
    frozen.stdout.close()
    frozen.wait(10)

    assert answer["error"] == "AgentError"
    assert sleeper.poll() is None


def test_a_frozen_agent_forgets_what_was_queued_meanwhile(
    sleeper: subprocess.Popen[bytes],
) -> None:
    """The host stood still, the client gave up: the signal it had sent must not arrive late."""
    with connect(LocalTransport(), silence_s=2.0, ping_s=0.2) as agent:
        (target,) = [one for one in read_processes(agent) if one.pid == sleeper.pid]
        request = {
            "pid": target.pid,
            "start_ticks": target.identity.start_ticks,
            "boot_id": target.identity.boot_id,
            "signal": "KILL",
        }
        os.kill(agent.hello["pid"], signal.SIGSTOP)
        failure(lambda: agent.call("process.signal", request, timeout_s=0.1))
        time.sleep(2.3)
        os.kill(agent.hello["pid"], signal.SIGCONT)
        assert wait_until(lambda: not is_alive(agent.hello["pid"]))

    assert sleeper.poll() is None


def test_a_late_cancel_overtakes_a_queued_signal(sleeper: subprocess.Popen[bytes]) -> None:
    """A shorter freeze: the withdrawal came with the same read, so the signal is not sent."""
    with connect(LocalTransport()) as agent:
        (target,) = [one for one in read_processes(agent) if one.pid == sleeper.pid]
        request = {
            "pid": target.pid,
            "start_ticks": target.identity.start_ticks,
            "boot_id": target.identity.boot_id,
            "signal": "KILL",
        }
        agent.call("process.wait_gone", {"processes": [], "timeout_s": 0})  # the module is there
        os.kill(agent.hello["pid"], signal.SIGSTOP)
        error = failure(lambda: agent.call("process.signal", request, timeout_s=0.1))
        os.kill(agent.hello["pid"], signal.SIGCONT)
        assert agent.call("agent.noop") == {}

    assert error.code == "operation-timeout"
    assert sleeper.poll() is None


def test_a_killed_client_leaves_no_agent() -> None:
    """kill -9 of opsctl: the agent's stdin ends, and so does the agent."""
    code = (
        "import time\n"
        "from opsctl.agent.client import connect\n"
        "from opsctl.transport.local import LocalTransport\n"
        "with connect(LocalTransport()) as agent:\n"
        "    print(agent.hello['pid'], flush=True)\n"
        "    time.sleep(60)\n"
    )
    victim = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert victim.stdout is not None
    agent_pid = int(victim.stdout.readline())

    victim.kill()
    victim.wait()
    victim.stdout.close()

    assert wait_until(lambda: not is_alive(agent_pid))


def test_a_killed_agent_is_told_with_its_exit_code(agent: RemoteAgent) -> None:
    """Somebody killed it: AgentError, not a broken connection."""
    os.kill(agent.hello["pid"], signal.SIGKILL)

    error = failure(lambda: agent.call("agent.noop", timeout_s=10))

    assert isinstance(error, AgentError)
    assert "137" in error.message


def test_a_start_that_hangs_ends_in_time() -> None:
    """A login script that waits: said so after the start's deadline."""
    began = time.monotonic()

    error = start_failure(Wrapped("exec sleep 30"), start_timeout_s=0.4)

    assert error.code == "agent-start-timeout"
    assert time.monotonic() - began < 5


def test_a_host_that_allows_no_commands_is_quoted() -> None:
    """nologin prints its refusal to stdout and exits 1; that line is the reason."""
    error = start_failure(Wrapped('echo "This account is currently not available."; exit 1'))

    assert error.code == "agent-start"
    assert "not available" in error.message


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_a_read_only_and_a_full_tmp_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent writes no temporary file."""
    monkeypatch.chdir("/")  # a checkout below /tmp would vanish under the mount
    mount = 'unshare -m sh -c \'mount -t tmpfs -o {} tmpfs /tmp && {} exec "$@"\' x "$@"'
    for options, prepare in (
        ("ro", ""),
        ("size=4k", "head -c 9999 /dev/zero >/tmp/x 2>/dev/null;"),
    ):
        with connect(Wrapped("exec " + mount.format(options, prepare))) as agent:
            assert agent.call("gpu.read")["state"]
            assert read_host(agent).boot_id


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/proc/sys/kernel/ns_last_pid", os.W_OK),
    reason="needs CAP_CHECKPOINT_RESTORE",
)
def test_a_recycled_pid_is_left_alone(agent: RemoteAgent) -> None:
    """The pid was given to a younger process between plan and signal: that one survives."""
    old = subprocess.Popen(["sleep", "60"])
    (planned,) = [one for one in read_processes(agent) if one.pid == old.pid]
    time.sleep(0.05)  # a start time has ticks of 10 ms
    old.kill()
    old.wait()
    young = reuse_pid(old.pid)
    if young is None:
        pytest.skip("the pid was taken by somebody else meanwhile")
    request = {
        "pid": planned.pid,
        "start_ticks": planned.identity.start_ticks,
        "boot_id": planned.identity.boot_id,
        "signal": "KILL",
    }

    outcome = agent.call("process.signal", request)["outcome"]

    assert outcome == "recycled"
    assert young.poll() is None
    young.kill()
    young.wait()


def reuse_pid(pid: int) -> subprocess.Popen[bytes] | None:
    """Start a process that gets this pid, None when that does not come about."""
    for _ in range(50):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        made = subprocess.Popen(["sleep", "60"])
        if made.pid == pid:
            return made
        made.kill()
        made.wait()
    return None


def test_a_process_whose_first_thread_ended_is_alive(agent: RemoteAgent) -> None:
    """It reads as a zombie without argv, yet runs and holds its memory: seen as it is, and signalled."""
    code = (
        "import ctypes,threading,time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('up', flush=True)\n"
        "ctypes.CDLL(None).syscall(60, 0)\n"
    )
    if os.uname().machine != "x86_64":
        pytest.skip("system call number of x86_64")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    stat = Path(f"/proc/{process.pid}/stat")
    assert wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
    (seen,) = [one for one in read_processes(agent) if one.pid == process.pid]
    target = {"pid": seen.pid, "start_ticks": seen.identity.start_ticks}

    outcome = agent.call(
        "process.signal", {**target, "boot_id": seen.identity.boot_id, "signal": "KILL"}
    )
    gone = agent.call("process.wait_gone", {"processes": [target], "timeout_s": 5})
    process.stdout.close()
    process.wait()

    assert not seen.is_dead
    assert seen.argv[0] == sys.executable
    assert outcome["outcome"] == "sent"
    assert gone["gone"] == [process.pid]


@pytest.mark.parametrize("pid", [0, 1, -1, "1"])
def test_a_pid_that_means_many_is_never_signalled(agent: RemoteAgent, pid: object) -> None:
    """kill(2) takes 0 and -1 for whole groups; no request may reach that."""
    request = {"pid": pid, "start_ticks": 1, "boot_id": "x", "signal": "TERM"}

    assert failure(lambda: agent.call("process.signal", request)).code == "bad-request"


def test_signal_outcomes_for_the_dead(agent: RemoteAgent) -> None:
    """A zombie and a process that is gone are told apart, and neither is signalled."""
    child = subprocess.Popen(["true"])
    assert wait_until(lambda: not is_alive(child.pid))
    (zombie,) = [one for one in read_processes(agent) if one.pid == child.pid]
    request = {
        "pid": zombie.pid,
        "start_ticks": zombie.identity.start_ticks,
        "boot_id": zombie.identity.boot_id,
        "signal": "TERM",
    }

    first = agent.call("process.signal", request)["outcome"]
    child.wait()
    second = agent.call("process.signal", request)["outcome"]
    third = agent.call("process.signal", {**request, "boot_id": "of-an-earlier-boot"})["outcome"]

    assert zombie.is_dead
    assert (first, second, third) == ("zombie", "gone", "gone")


def test_the_transport_error_of_a_missing_shell_is_kept() -> None:
    """What the way itself reports wins over guesses about the agent."""

    class Nowhere(LocalTransport):
        def open(self, argv: Sequence[str]) -> LocalChannel:
            return super().open(["/nonexistent/shell"])

    assert isinstance(start_failure(Nowhere()), TransportError)


def test_a_frozen_agent_ends_although_its_client_still_waits(
    sleeper: subprocess.Popen[bytes],
) -> None:
    """The host stood still past the lease, so another operator may hold the lock: nothing is sent."""
    with connect(LocalTransport(), silence_s=2.0, ping_s=0.2) as agent:
        (target,) = [one for one in read_processes(agent) if one.pid == sleeper.pid]
        request = {
            "pid": target.pid,
            "start_ticks": target.identity.start_ticks,
            "boot_id": target.identity.boot_id,
            "signal": "KILL",
        }
        errors: list[OpsctlError] = []
        os.kill(agent.hello["pid"], signal.SIGSTOP)
        waiting = threading.Thread(
            target=lambda: errors.append(
                failure(lambda: agent.call("process.signal", request, timeout_s=20))
            )
        )
        waiting.start()
        time.sleep(2.3)
        os.kill(agent.hello["pid"], signal.SIGCONT)
        waiting.join(10)

    assert [error.exit_code for error in errors] == [40]
    assert sleeper.poll() is None


class Deaf:
    """A channel that takes everything and says nothing after an agent's first frame."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def read(self, timeout_s: float) -> bytes | None:
        time.sleep(timeout_s)
        return None

    def stderr_tail(self) -> bytes:
        return b""

    def close_stdin(self) -> None: ...

    def exit_code(self, timeout_s: float) -> int | None:
        return None

    def close(self) -> None: ...


def test_a_client_that_stood_still_sends_nothing_more() -> None:
    """Whatever became of the agent: past the lease not a byte goes out."""
    channel = Deaf()
    hello = b'{"protocol":1,"hello":{"pid":1}}\n'
    agent = RemoteAgent("deaf", channel, hello, silence_s=0.2, ping_s=60)
    agent.wait_hello(1)
    time.sleep(0.3)

    error = failure(lambda: agent.call("process.signal", {}, timeout_s=0.1))

    assert error.code == "agent-lost"
    assert "stood still" in error.message
    assert channel.written == []
    agent.close()
