"""The far side of the launch with real processes: they outlive the agent, and are found by the run's id."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.client import RemoteAgent, connect
from opsctl.errors import AgentError
from opsctl.transport.local import LocalTransport

pytestmark = pytest.mark.wire

SERVER = "import time,os,sys; print('up', os.environ.get('A'), flush=True); time.sleep(60)"


@contextmanager
def agent_on(interpreter: str | None = None) -> Iterator[RemoteAgent]:
    with connect(LocalTransport(), interpreter=interpreter) as agent:
        yield agent


@pytest.fixture
def request_of(tmp_path: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Build a launch request, and end what was launched by it."""
    asked: list[dict[str, Any]] = []

    def build(run: str = "r1", **changes: Any) -> dict[str, Any]:
        request = {
            "run": run,
            "server": "s",
            "state_dir": str(tmp_path / "state"),
            "via": "supervisor",
            "unit": None,
            "argv": [sys.executable, "-c", SERVER],
            "env": {"A": 'b $c "d"'},
            "log": str(tmp_path / "logs" / f"{run}.log"),
            "nofile": 4096,
            "record": {"port": 31999, "server": "s"},
            **changes,
        }
        asked.append(request)
        return request

    yield build
    for request in asked:
        path = Path(request["state_dir"]) / "runs" / request["run"] / "run.json"
        if path.exists():
            try:
                os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)
            except ProcessLookupError:
                pass


def wait_for(claim: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.02)


def test_a_launched_server_outlives_the_agent(request_of: Any, tmp_path: Path) -> None:
    """Nothing dies with the connection; the streams are the log, the session is its own."""
    request = request_of()
    with agent_on() as agent:
        started = agent.call("launch.start", request, timeout_s=20.0)
        agent_pid = agent.hello["pid"]

    wait_for(lambda: not Path(f"/proc/{agent_pid}").exists())
    with agent_on() as agent:
        found = agent.call("launch.find", request)

    assert started["state"] == found["state"] == "running"
    assert started["pid"] == found["pid"]
    assert os.getsid(found["pid"]) == found["pid"]
    wait_for(lambda: 'up b $c "d"' in Path(request["log"]).read_text())
    streams = {os.readlink(f"/proc/{found['pid']}/fd/{n}") for n in (1, 2)}
    assert streams == {request["log"]}
    assert os.readlink(f"/proc/{found['pid']}/fd/0") == "/dev/null"


def test_the_same_run_is_launched_once(request_of: Any) -> None:
    """A launch whose reply was lost is found, never repeated."""
    request = request_of()
    with agent_on() as agent:
        first = agent.call("launch.start", request, timeout_s=20.0)
        second = agent.call("launch.start", request, timeout_s=20.0)

    assert (first["changed"], second["changed"]) == (True, False)
    assert first["pid"] == second["pid"]


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("raise SystemExit(3)", {"code": 3, "signal": None}),
        ("pass", {"code": 0, "signal": None}),
        ("import os; os.kill(os.getpid(), 11)", {"code": None, "signal": 11}),
    ],
)
def test_an_end_is_recorded_with_code_or_signal(
    request_of: Any, code: str, wanted: dict[str, Any]
) -> None:
    """Also exit 0: a server that ends at once is not a success."""
    request = request_of(argv=[sys.executable, "-c", code])
    with agent_on() as agent:
        agent.call("launch.start", request, timeout_s=20.0)
        wait_for(lambda: agent.call("launch.find", request)["state"] == "exited")
        found = agent.call("launch.find", request)

    assert {key: found["exit"][key] for key in wanted} == wanted


def test_a_missing_program_is_a_failed_start(request_of: Any) -> None:
    """The exec's own error comes back, at once."""
    request = request_of(argv=["/no/such/python", "-m", "sglang"])
    with agent_on() as agent:
        started = agent.call("launch.start", request, timeout_s=20.0)

    assert started["state"] == "failed-to-start"
    assert "No such file" in started["exit"]["error"]


def test_a_log_that_cannot_be_written_stops_the_launch(request_of: Any) -> None:
    """/dev/full: the disk of the log is full, and nothing was started."""
    request = request_of(log="/dev/full")
    with agent_on() as agent, pytest.raises(AgentError) as caught:
        agent.call("launch.start", request, timeout_s=20.0)

    assert caught.value.code == "log"
    assert "No space left" in caught.value.message


@pytest.mark.orphans
def test_orphans_of_the_server_stay_with_its_supervisor(request_of: Any, tmp_path: Path) -> None:
    """A scheduler whose parent died is not handed to pid 1, so its tree can still be read."""
    note = tmp_path / "child"
    code = (
        "import os,sys,time\n"
        "pid=os.fork()\n"
        "if pid: time.sleep(0.2); os._exit(9)\n"
        f"time.sleep(0.6); open({str(note)!r},'w').write(str(os.getppid())); time.sleep(0.3)\n"
    )
    request = request_of(argv=[sys.executable, "-c", code])
    with agent_on() as agent:
        started = agent.call("launch.start", request, timeout_s=20.0)
        wait_for(lambda: note.exists() and note.read_text() != "")
        found = agent.call("launch.find", request)

    assert int(note.read_text()) == started["supervisor_pid"]
    assert found["exit"]["code"] == 9


def test_the_environment_is_not_left_on_the_disk(request_of: Any, tmp_path: Path) -> None:
    """Secrets of the environment live in the process, and nowhere in the state folder."""
    request = request_of(env={"TOKEN": "s3cr3t"})
    with agent_on() as agent:
        agent.call("launch.start", request, timeout_s=20.0)

    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if "s3cr3t" in path.read_text(errors="replace")]


def test_every_launch_is_listed(request_of: Any) -> None:
    """The records say which process belongs to which run and port."""
    with agent_on() as agent:
        one = agent.call("launch.start", request_of("r1"), timeout_s=20.0)
        request = request_of(
            "r2", argv=[sys.executable, "-c", "pass"], record={"port": 5, "server": "t"}
        )
        agent.call("launch.start", request, timeout_s=20.0)
        wait_for(lambda: agent.call("launch.find", request)["state"] == "exited")
        records = agent.call("launch.records", {"state_dir": request["state_dir"]})["records"]

    assert [(r["run"], r["state"], r["port"]) for r in records] == [
        ("r2", "exited", 5),
        ("r1", "running", 31999),
    ]
    assert records[1]["pid"] == one["pid"]


def test_a_run_id_cannot_leave_the_state_folder(request_of: Any) -> None:
    """It becomes a file name and a unit's name."""
    with agent_on() as agent, pytest.raises(AgentError, match="not a run id"):
        agent.call("launch.start", request_of("../../etc"), timeout_s=20.0)


def test_attempts_are_appended_once_and_read_back(tmp_path: Path) -> None:
    """One JSON line each; a line that a full disk cut is ended and counted, not guessed."""
    request = {"state_dir": str(tmp_path)}
    with agent_on() as agent:
        agent.call("attempts.append", {**request, "attempt": {"run": "r1"}})
        again = agent.call("attempts.append", {**request, "attempt": {"run": "r1"}})
        with open(tmp_path / "attempts.jsonl", "a") as out:
            out.write('{"run": "r2", "ser')
        agent.call("attempts.append", {**request, "attempt": {"run": "r3"}})
        read = agent.call("attempts.read", request)

    assert not again["appended"]
    assert read["attempts"] == [{"run": "r1"}, {"run": "r3"}]
    assert read["damaged"] == 1


def test_a_host_without_attempts_has_none(tmp_path: Path) -> None:
    """An absent file is an empty memory, not an error."""
    with agent_on() as agent:
        assert agent.call("attempts.read", {"state_dir": str(tmp_path)})["attempts"] == []


def test_a_log_is_read_in_whole_lines_from_an_offset(tmp_path: Path) -> None:
    """Half a line waits for its end; a log that was cut is read again from its beginning."""
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\nthr")
    with agent_on() as agent:
        first = agent.call("log_read.since", {"path": str(path), "offset": 0})
        path.write_bytes(b"one\ntwo\nthree\n\xff\n")
        second = agent.call("log_read.since", {"path": str(path), "offset": first["offset"]})
        path.write_bytes(b"new\n")
        third = agent.call("log_read.since", {"path": str(path), "offset": second["offset"]})
        tail = agent.call("log_read.tail", {"path": str(path), "lines": 1})

    assert first["text"] == "one\ntwo\n"
    assert second["text"] == "three\n�\n"
    assert (third["text"], third["restarted"]) == ("new\n", True)
    assert (tail["text"], tail["complete"]) == ("new", True)


def test_a_log_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """A fifo would block the reader for ever."""
    os.mkfifo(tmp_path / "fifo")
    with agent_on() as agent, pytest.raises(AgentError, match="is not a file"):
        agent.call("log_read.tail", {"path": str(tmp_path / "fifo")})


def test_it_all_runs_on_python_3_8(request_of: Any) -> None:
    """The oldest Python that the far side may have."""
    found = sorted(Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8"))
    old = str(found[0]) if found else None
    if old is None:
        pytest.skip("no Python 3.8 on this machine")
    request = request_of()
    with agent_on(old) as agent:
        started = agent.call("launch.start", request, timeout_s=20.0)
        agent.call("attempts.read", request)
        agent.call("log_read.tail", {"path": request["log"]})

        assert agent.hello["python"].startswith("3.8")
    assert started["state"] == "running"


def test_a_launch_that_a_reboot_took_is_started_again(request_of: Any, tmp_path: Path) -> None:
    """Nothing of it can be left, and its end was no fault of its own; the log begins anew."""
    request = request_of()
    with agent_on() as agent:
        first = agent.call("launch.start", request, timeout_s=20.0)
        wait_for(lambda: "up" in Path(request["log"]).read_text())
        os.kill(first["pid"], signal.SIGKILL)
        record = tmp_path / "state" / "runs" / "r1" / "launch.json"
        # here, unlike after a reboot, its supervisor lives on until it has written down the end
        wait_for(lambda: (record.parent / "exit.json").exists())
        record.write_text(json.dumps({**json.loads(record.read_text()), "boot_id": "another"}))

        gone = agent.call("launch.find", request)
        again = agent.call("launch.start", request, timeout_s=20.0)
        once = agent.call("launch.start", request, timeout_s=20.0)

    assert (gone["state"], gone["rebooted"]) == ("exited", True)
    assert (again["state"], again["changed"]) == ("running", True)
    assert again["pid"] != first["pid"]
    assert (once["changed"], once["pid"]) == (False, again["pid"])
    wait_for(lambda: Path(request["log"]).read_text().count("up ") == 1)
    assert "up " in Path(request["log"] + ".before-reboot").read_text()


def test_a_server_that_cannot_be_written_down_is_ended(request_of: Any, tmp_path: Path) -> None:
    """A full disk after the exec: a launch that counts as failed leaves no server that nobody knows of."""
    mark = f"unrecorded-{os.getpid()}"
    argv = [sys.executable, "-c", SERVER, mark]
    request = request_of(argv=argv)
    folder = Path(request["state_dir"]) / "runs" / "r1"
    (folder / "run.json").mkdir(parents=True)  # what replaces it fails, as on a full disk
    try:
        with agent_on() as agent:
            found = agent.call("launch.start", request, timeout_s=20.0)
            wait_for(lambda: (folder / "exit.json").exists())
            found = agent.call("launch.find", request)
    finally:
        (folder / "run.json").rmdir()

    assert found["state"] == "failed-to-start"
    assert not pids_with(mark)
    assert not (folder / "spec.json").exists()


def again(agent: RemoteAgent, request: dict[str, Any]) -> str:
    try:
        changed = agent.call("launch.start", request, timeout_s=20.0)["changed"]
    except AgentError as error:
        return error.code
    return "changed" if changed else "unchanged"


def pids_with(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in path.read_text(errors="replace").split("\0"):
                found.append(path.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("content", [b"[]", b"3", b"{}", b"", b"\xff", b"[" * 100_000])
@pytest.mark.parametrize("name", ["launch.json", "run.json", "exit.json", "members.json"])
def test_a_damaged_record_hides_no_other_and_is_never_launched_over(
    request_of: Any, name: str, content: bytes
) -> None:
    """The other launches are told; this one is not taken for one that never was while it may run."""
    good, bad = request_of(), request_of(run="r2")
    with agent_on() as agent:
        agent.call("launch.start", good, timeout_s=20.0)
        started = agent.call("launch.start", bad, timeout_s=20.0)
        path = Path(bad["state_dir"]) / "runs" / "r2" / name
        kept = path.read_bytes() if path.exists() else None
        path.write_bytes(content)
        try:
            records = agent.call("launch.records", {"state_dir": bad["state_dir"], "port": 31999})
            outcome = again(agent, bad)
        finally:
            if kept is not None:
                path.write_bytes(kept)

    assert "r1" in [one["run"] for one in records["records"]]
    assert outcome == ("record-damaged" if name in ("launch.json", "run.json") else "unchanged")
    assert started["pid"] == json.loads(path.with_name("run.json").read_text())["pid"]
