"""What the far side measures around a launch: port, models, flags, probes, evidence; with real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from opsctl.agent.client import RemoteAgent, connect
from opsctl.transport.local import LocalTransport
from tests.lab import standin

pytestmark = pytest.mark.wire


@pytest.fixture(scope="module")
def agent() -> Iterator[RemoteAgent]:
    with connect(LocalTransport()) as made:
        yield made


@contextmanager
def answering(*pieces: bytes, pause_s: float = 0.0) -> Iterator[int]:
    """Listen on a port and answer each connection with these pieces, a pause after each; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)

        def serve() -> None:
            try:
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(65536)
                        for piece in pieces:
                            connection.sendall(piece)
                            time.sleep(pause_s)
            except OSError:
                return

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def probe(agent: RemoteAgent, port: int, timeout_s: float = 2.0) -> dict[str, object]:
    request = {"address": "127.0.0.1", "port": port, "path": "/health", "timeout_s": timeout_s}
    return agent.call("probe.request", request, timeout_s=timeout_s + 5)


def test_the_holder_of_a_port_is_named(agent: RemoteAgent) -> None:
    """Pid, start ticks and argv: whose it is can be decided by identity."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = agent.call("preflight.port", {"port": port})
    free = agent.call("preflight.port", {"port": port})

    assert found["free"] is False
    assert [one["pid"] for one in found["holders"]] == [os.getpid()]
    assert free == {"free": True, "holders": []}


def test_flags_are_read_by_the_installed_parser(agent: RemoteAgent) -> None:
    """Accepted, refused with the parser's own words, and could not be asked: three different replies."""
    request = {"python": sys.executable, "env": {"PYTHONPATH": str(standin.SITE)}}
    good = agent.call(
        "preflight.arguments",
        {**request, "flags": ["--model-path", "m", "--tp", "2"]},
        timeout_s=60,
    )
    bad = agent.call(
        "preflight.arguments", {**request, "flags": ["--model-path", "m", "--nope"]}, timeout_s=60
    )
    none = agent.call("preflight.arguments", {"python": sys.executable, "flags": []}, timeout_s=60)
    missing = agent.call("preflight.arguments", {"python": "/no/python", "flags": []}, timeout_s=60)

    assert (good["ok"], "--tp-size" in good["flags"]) == (True, True)
    assert bad["ok"] is False
    assert "--nope" in bad["error"]
    assert none["ok"] is None
    assert "No module named 'sglang'" in none["error"]
    assert missing["ok"] is None


def test_a_hanging_parser_is_bounded(agent: RemoteAgent, tmp_path: Path) -> None:
    """A child of ours with a deadline, whatever the import does."""
    package = tmp_path / "sglang" / "srt"
    package.mkdir(parents=True)
    for place in (tmp_path / "sglang", package):
        (place / "__init__.py").write_text("")
    (package / "server_args.py").write_text("import time; time.sleep(60)")
    request = {
        "python": sys.executable,
        "env": {"PYTHONPATH": str(tmp_path)},
        "flags": [],
        "timeout_s": 1,
    }

    reply = agent.call("preflight.arguments", request, timeout_s=20)

    assert reply["ok"] is None
    assert "did not answer within 1 s" in reply["error"]


def test_models_and_folders_are_looked_at(agent: RemoteAgent, tmp_path: Path) -> None:
    """A model without a config, one that is absent, a good one; room where the logs will be."""
    good, empty = tmp_path / "good", tmp_path / "empty"
    good.mkdir()
    empty.mkdir()
    (good / "config.json").write_text(json.dumps({"model_type": "llama"}))
    request = {
        "port": 1,
        "python": None,
        "paths": [str(good), str(empty), "/no/model"],
        "folders": [str(tmp_path / "logs" / "deep")],
        "programs": ["sh", "no-such-program"],
    }

    found = agent.call("preflight.survey", request, timeout_s=20)

    assert found["models"][str(good)]["error"] is None
    assert found["models"][str(good)]["config"]["model_type"] == "llama"
    assert "config.json" in found["models"][str(empty)]["error"]
    assert found["models"]["/no/model"] == {"exists": False, "error": "absent"}
    assert found["folders"][str(tmp_path / "logs" / "deep")]["free_bytes"] > 0
    assert found["programs"]["no-such-program"] is None
    assert found["programs"]["sh"]
    assert found["interpreter"] is None


@pytest.mark.parametrize(
    ("pieces", "pause_s", "status", "error"),
    [
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",), 0.0, 200, None),
        ((b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",), 0.0, 503, None),
        ((b"",), 3.0, None, "timed out"),
        ((b"not http at all\r\n\r\n",), 0.0, None, "BadStatusLine"),
    ],
)
def test_a_probe_says_what_came(
    agent: RemoteAgent,
    pieces: tuple[bytes, ...],
    pause_s: float,
    status: int | None,
    error: str | None,
) -> None:
    """Good, busy, silent, and no HTTP: nothing is raised, everything is named."""
    with answering(*pieces, pause_s=pause_s) as port:
        reply = probe(agent, port)

    assert reply["status"] == status
    assert error is None or error in str(reply["error"])


def test_a_dripping_server_does_not_outlast_the_deadline(agent: RemoteAgent) -> None:
    """Each byte in time, the whole never: the deadline covers all of it."""
    drip = [b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", *[b"x"] * 100]
    begun = time.monotonic()
    with answering(*drip, pause_s=0.2) as port:
        reply = probe(agent, port, timeout_s=1.0)

    assert reply["status"] is None
    assert time.monotonic() - begun < 4.0


def test_a_closed_port_is_refused(agent: RemoteAgent) -> None:
    """Nobody listens: refused, which is something else than silence."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    assert probe(agent, port)["refused"] is True


def test_evidence_shows_the_tree_of_a_process(agent: RemoteAgent) -> None:
    """Root and child with state and wait channel; what may not be read is None, within its time."""
    code = "import subprocess; subprocess.run(['sleep', '30'])"
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        time.sleep(0.5)
        found = agent.call("evidence.collect", {"roots": [child.pid], "limit_s": 5.0}, timeout_s=10)
        pids = {one["pid"]: one for one in found["processes"]}
        tree = [pid for pid, one in pids.items() if "sleep 30" in one["title"]]
        for pid in tree:
            os.kill(pid, 9)

    assert child.pid in pids
    assert "kernel" in found  # the watch of a smoke reads it
    assert tree
    assert pids[child.pid]["state"] in ("S", "R")


@pytest.mark.parametrize(("mode", "seen"), [(0o755, True), (0o777, False)])
def test_the_python_stack_comes_from_the_py_spy_beside_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, seen: bool
) -> None:
    """SGLang brings one, which is not on the agent's PATH; a file that anybody can write is not run."""
    python, spy = tmp_path / "python", tmp_path / "py-spy"
    python.symlink_to(sys.executable)
    spy.write_text('#!/bin/sh\necho "Thread 1 (idle): event_loop_overlap $*"\n')
    spy.chmod(mode)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # without the tests' own
    with (
        connect(LocalTransport()) as agent,
        subprocess.Popen([str(python), "-c", "import time; time.sleep(30)"]) as child,
    ):
        try:
            request = {"roots": [child.pid], "limit_s": 5.0}
            found = agent.call("evidence.collect", request, timeout_s=10)
        finally:
            child.kill()

    mine = next(one for one in found["processes"] if one["pid"] == child.pid)
    said = f"Thread 1 (idle): event_loop_overlap dump --nonblocking --pid {child.pid}"
    if shutil.which("py-spy") is None:
        assert ((mine["python_stack"] or "").strip() == said) == seen


def test_a_frozen_and_a_spinning_process_are_seen_by_the_real_py_spy(
    agent: RemoteAgent, tmp_path: Path
) -> None:
    """Both kinds of hang: SIGSTOP, which py-spy can only look at without stopping it, and a busy loop."""
    spy = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if spy is None:
        pytest.skip("py-spy is not installed")
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if os.geteuid() != 0 and scope.exists() and scope.read_text().strip() != "0":
        pytest.skip("only root may look at another process's memory here")
    program = tmp_path / "scheduler.py"
    program.write_text(
        "import sys, time\n"
        "def event_loop_overlap():\n"
        "    print(flush=True)\n"
        "    while True:\n"
        "        time.sleep(0.01) if sys.argv[1] == 'frozen' else sum(range(100))\n"
        "event_loop_overlap()\n"
    )
    children = {}
    try:
        for kind in ("frozen", "spinning"):
            child = subprocess.Popen([sys.executable, str(program), kind], stdout=subprocess.PIPE)
            children[kind] = child
            assert child.stdout is not None
            child.stdout.readline()
        children["frozen"].send_signal(signal.SIGSTOP)

        roots = [child.pid for child in children.values()]
        found = agent.call("evidence.collect", {"roots": roots, "limit_s": 20.0}, timeout_s=30)
    finally:
        for child in children.values():
            child.kill()
            child.wait(timeout=10)
            if child.stdout is not None:
                child.stdout.close()

    seen = {one["pid"]: one for one in found["processes"]}
    for kind, child in children.items():
        assert "event_loop_overlap (scheduler.py:" in (seen[child.pid]["python_stack"] or ""), kind
    assert seen[children["frozen"].pid]["state"] in "Tt"
