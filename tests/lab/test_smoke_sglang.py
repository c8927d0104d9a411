"""`opsctl smoke SERVER` on real SGLang (CPU): healthy, frozen, killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli import run
from tests.lab.sglang import environment, launch
from tests.lab.sglang.server import free_port

VERSION = "0.5.12.post1"
READY_S = 300
ANSWERED = 52  # 2 to warm up, 40 of level 1, 10 of the next

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not environment.is_built(environment.default_prefix(), VERSION),
        reason="real SGLang is not built: python -m tests.lab.sglang build",
    ),
]


class Real:
    """One real server and the site file that names it ``s``.

    Args:
        folder: where its log, its site file and the state are.
        argv: makes the command line from the usual one.
        flags: further flags of SGLang.
    """

    def __init__(
        self,
        folder: Path,
        argv: Callable[[list[str]], list[str]] = lambda usual: usual,
        **flags: str | int | bool,
    ) -> None:
        self.folder = folder
        port = free_port()
        how = launch.launch(VERSION, port, **flags)
        command = argv(how.argv)
        self.log = folder / "server.log"
        entry = {
            "host": "here",
            "port": port,
            "command": command,
            "state_dir": str(folder / "far"),
            "smoke": {"levels": [1, 2, 5, 10], "tokens": 16},
        }
        site = {"hosts": {"here": {"local": True}}, "servers": {"s": entry}}
        (folder / "opsctl.yaml").write_text(json.dumps(site))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **how.env, "PYTHONPATH": ""},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_S
        while "fired up and ready" not in self.text():
            assert self.process.poll() is None, self.text()[-2000:]
            assert time.monotonic() < deadline, self.text()[-2000:]
            time.sleep(0.2)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def pid_of(self, title: str) -> int:
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, IndexError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                if (
                    int(stat[3]) == self.process.pid
                    and title.encode() in (entry / "cmdline").read_bytes()
                ):
                    return int(entry.name)
        raise AssertionError(f"no process titled {title}")

    def signal_under_load(self, pid: int, number: int) -> threading.Thread:
        """Signal ``pid`` once the log shows that level 1 (40 requests) is over and the next has begun."""
        begun = len(self.text())

        def watch() -> None:
            deadline = time.monotonic() + 120
            while self.text()[begun:].count("POST /generate") < ANSWERED:
                if time.monotonic() > deadline:
                    return
                time.sleep(0.01)
            os.kill(pid, number)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        return thread

    def end(self) -> None:
        """Kill whatever is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=30)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    server = Real(tmp_path_factory.mktemp("real"))
    yield server
    server.end()


def smoke(
    real: Real, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    words = ["smoke", "s", "--site", str(real.folder / "opsctl.yaml"), "--json"]
    code = run([*words, "--state", str(real.folder / "state"), *options])
    return code, json.loads(capsys.readouterr().out)


def test_real_server_passes_with_equal_answers_at_every_level(
    real: Real, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four levels, the same tokens at each, its processes proven and watched."""
    code, document = smoke(real, capsys)

    levels = document["data"]["levels"]
    assert code == 0, document["findings"]
    assert [level["outcome"] for level in levels] == ["passed"] * 4
    assert levels[-1]["in_flight"]["peak"] == 10
    assert levels[-1]["answers"]["wrong"] == 0
    assert levels[-1]["answers"]["compared"] > 10


def test_real_scheduler_that_is_frozen_is_a_hang(
    real: Real, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP in the middle of a level: no token, nothing died, and py-spy says where it stands."""
    spies = environment.default_prefix() / "base" / "bin"  # SGLang's own, which pip put there
    monkeypatch.setenv("PATH", f"{spies}:{os.environ['PATH']}")
    pid = real.pid_of("sglang::scheduler")
    thread = real.signal_under_load(pid, signal.SIGSTOP)

    code, document = smoke(
        real, capsys, "--levels", "1,5", "--requests", "40", "--stall", "4", "--allow-live"
    )

    thread.join(timeout=120)
    os.kill(pid, signal.SIGCONT)
    assert code == 60
    assert document["data"]["levels"][-1]["outcome"] == "hung"
    assert document["data"]["diagnosis"]["category"] == "silent-hang"
    frozen = next(p for p in document["data"]["evidence"]["alive"] if p["pid"] == pid)
    assert frozen["state"] == "T"
    assert "MainThread" in frozen["python_stack"]
    assert "event_loop" in frozen["python_stack"]


def test_real_scheduler_that_is_killed_is_seen_and_named(
    real: Real, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL in the middle of a level: the first sign within 250 ms, the process named."""
    thread = real.signal_under_load(real.pid_of("sglang::scheduler"), signal.SIGKILL)

    code, document = smoke(real, capsys, "--levels", "1,5,10", "--requests", "40", "--allow-live")

    thread.join(timeout=120)
    level = document["data"]["levels"][-1]
    exits = document["data"]["evidence"]["exits"]
    assert code == 60
    assert level["outcome"] == "crashed"
    assert "sglang::scheduler" in level["reason"]
    assert 0 <= level["sign"]["monotonic_s"] - exits[0]["monotonic_s"] < 0.25
    assert document["data"]["evidence"]["log"]["window"]
