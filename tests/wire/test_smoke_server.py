"""`opsctl smoke SERVER` on a server of the site: processes and log are watched, crashes explained."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli import run
from tests.lab import standin
from tests.schemas import read_document
from tests.wire.ground import free_port

pytestmark = pytest.mark.wire
READY = "The server is fired up and ready to roll!"
EAGLE = ["--speculative-algorithm", "EAGLE3", "--speculative-num-draft-tokens", "16"]

Document = dict[str, Any]


class Started:
    """A stand-in server, and the site file that names it ``s``."""

    def __init__(self, folder: Path, flags: tuple[str, ...]) -> None:
        self.port = free_port()
        self.log = folder / "server.log"
        self.site = folder / "opsctl.yaml"
        self.state = folder / "state"
        entry = {
            "host": "here",
            "port": self.port,
            "python": sys.executable,
            "model": str(standin.SITE),
            "state_dir": str(folder / "far"),
            "smoke": {"levels": [1, 2, 5, 10]},
        }
        self.site.write_text(
            json.dumps({"hosts": {"here": {"local": True}}, "servers": {"s": entry}})
        )
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                standin.argv(self.port, *flags),
                env=standin.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 20
        while READY not in self.log.read_text(errors="replace"):
            assert time.monotonic() < deadline, self.log.read_text(errors="replace")[-1000:]
            time.sleep(0.02)

    def pid_of(self, title: str) -> int:
        """Return the pid of a child by its title."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                argv = (entry / "cmdline").read_bytes()
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                if title.encode() in argv and int(stat[3]) == self.process.pid:
                    return int(entry.name)
        raise AssertionError(f"no {title}")

    def kill_when_loaded(self, pid: int, number: int, requests: int) -> threading.Thread:
        """Signal a process once the log shows so many answered or running requests."""

        def watch() -> None:
            deadline = time.monotonic() + 30
            while self.log.read_text(errors="replace").count("Prefill batch") < requests:
                if time.monotonic() > deadline:
                    return
                time.sleep(0.005)
            os.kill(pid, number)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def start(*flags: str) -> Started:
        started.append(Started(tmp_path, flags))
        return started[-1]

    yield start
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait(timeout=10)


@pytest.fixture
def smoke(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Document]]:
    def call(server: Started, *options: str) -> tuple[int, Document]:
        capsys.readouterr()
        words = ["smoke", "s", "--site", str(server.site), "--state", str(server.state), "--json"]
        code = run([*words, *options])
        return code, read_document(capsys.readouterr().out)

    return call


def test_incident_is_found_bracketed_and_explained(serve: Any, smoke: Any) -> None:
    """C=1, 2, 5 pass, 10 kills the server, and the sizes are said to be 10 requests x 16 draft tokens."""
    server = serve("--lab-crash-above", "5", *EAGLE)

    code, document = smoke(server)

    data = document["data"]
    assert code == 60
    assert data["bracket"] == {"last_good": 5, "first_bad": 10}
    assert data["diagnosis"]["category"] == "shape-mismatch"
    assert (data["diagnosis"]["sizes"]["a"], data["diagnosis"]["sizes"]["b"]) == (160, 10)
    reason = data["levels"][-1]["reason"]  # what raised, then which process ended
    assert "Scheduler hit an exception" in reason.split("; ")[0]
    assert "size of tensor a (160)" in reason.split("; ")[0]
    assert "opsctl smoke s --bisect" in data["diagnosis"]["next"][0]
    died = data["levels"][-1]["sign"]
    assert died["in_flight"] == 10
    assert "#running-req" in data["evidence"]["last_batch"]
    assert any("160 = 10 requests x 16 draft tokens" in f["text"] for f in document["findings"])
    assert any("Scheduler hit an exception" in line for line in data["evidence"]["log"]["window"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("title", ["sglang::scheduler", "sglang::detokenizer"])
def test_death_of_a_process_is_seen_within_a_quarter_second(
    serve: Any, smoke: Any, number: int, title: str
) -> None:
    """A worker that is killed inside a level ends the level; the process's end is the first sign."""
    server = serve("--lab-watchdog-s", "1", "--lab-itl-ms", "20")
    thread = server.kill_when_loaded(server.pid_of(title), number, 12)

    code, document = smoke(server, "--levels", "1,5,10")

    thread.join(timeout=10)
    level = document["data"]["levels"][-1]
    assert code == 60
    assert level["outcome"] == "crashed"
    assert title in level["reason"]
    first = document["data"]["evidence"]["exits"][0]
    assert title in first["name"]
    assert 0 <= level["sign"]["monotonic_s"] - first["monotonic_s"] < 0.25


def test_frozen_scheduler_is_a_hang(serve: Any, smoke: Any) -> None:
    """Nothing died and the port answers: no token for the stated time is what remains to see."""
    server = serve("--lab-itl-ms", "20")
    pid = server.pid_of("sglang::scheduler")
    thread = server.kill_when_loaded(pid, signal.SIGSTOP, 8)

    code, document = smoke(server, "--levels", "1,5,10", "--stall", "1")

    thread.join(timeout=10)
    os.kill(pid, signal.SIGCONT)
    assert code == 60
    assert document["data"]["levels"][-1]["outcome"] == "hung"
    assert document["data"]["diagnosis"]["category"] == "silent-hang"


def test_port_that_answers_with_dead_workers_is_a_crash(serve: Any, smoke: Any) -> None:
    """Health says 200 for ever; the process watch knows better."""
    server = serve("--lab-health-lies", "--lab-kill-above", "5")

    code, document = smoke(server)

    level = document["data"]["levels"][-1]
    assert code == 60
    assert level["outcome"] == "crashed"
    assert level["sign"]["source"] in ("process", "log")


def test_healthy_server_is_watched_and_left_alone(serve: Any, smoke: Any) -> None:
    """Nobody dies of being smoked."""
    server = serve()

    code, document = smoke(server, "--levels", "1,2")

    assert code == 0
    assert server.process.poll() is None
    assert document["data"]["evidence"] == {}


def test_dry_run_generates_nothing(serve: Any, smoke: Any) -> None:
    """Real reads and the exact plan; not one request reaches the scheduler."""
    server = serve()

    code, document = smoke(server, "--dry-run")

    assert code == 0
    assert [one["concurrency"] for one in document["data"]["levels"]] == [1, 2, 5, 10]
    assert "Prefill batch" not in server.log.read_text().partition(READY)[2]


def test_server_that_was_dead_before_we_came_is_a_hang_at_the_first_level(
    serve: Any, smoke: Any
) -> None:
    """The port answers, the workers are gone: told within four stall times, and never as refused."""
    server = serve("--lab-health-lies")
    os.kill(server.pid_of("sglang::scheduler"), signal.SIGKILL)
    begun = time.monotonic()

    code, document = smoke(server, "--levels", "1,5", "--stall", "1", "--allow-live")

    assert code == 60
    assert len(document["data"]["levels"]) == 1
    assert document["data"]["levels"][0]["outcome"] in ("hung", "crashed")
    assert document["data"]["bracket"] == {"last_good": None, "first_bad": 1}
    assert time.monotonic() - begun < 60


def test_frozen_port_is_a_hang_and_not_an_endless_wait(serve: Any, smoke: Any) -> None:
    """The main process is stopped: connections open, and nothing answers any question."""
    server = serve()
    os.kill(server.process.pid, signal.SIGSTOP)
    begun = time.monotonic()

    code, document = smoke(server, "--levels", "1", "--stall", "1")

    os.kill(server.process.pid, signal.SIGCONT)
    assert code == 60
    assert document["data"]["levels"][0]["outcome"] == "hung"
    assert time.monotonic() - begun < 60


def test_metrics_are_read_before_and_after_each_level(serve: Any, smoke: Any) -> None:
    """What the server counted itself stands beside what the client saw: tokens, running, acceptance."""
    server = serve(*EAGLE, "--enable-metrics")

    code, document = smoke(server, "--levels", "1,2", "--requests", "4", "--tokens", "8")

    assert code == 0
    for level in document["data"]["levels"]:
        told = level["server"]
        assert {"running", "queue", "token_usage", "accept_length"} <= told["before"].keys()
        assert told["after"]["running"] == 0
        assert told["retractions"] == 0
        assert told["generation_tokens"] >= level["tokens"]


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("leak", "kv-pool-leak"),
        pytest.param("assert", "index-out-of-bounds", marks=pytest.mark.slow),  # ends after a limit
    ],
)
def test_fault_that_shows_when_the_server_is_idle_fails_the_level_before(
    serve: Any, smoke: Any, text: str, category: str
) -> None:
    """Every answer was right and on time; the log tells of the loss after the load, ended or not."""
    server = serve("--lab-leak-above", "2", "--lab-leak-text", text)

    code, document = smoke(server, "--levels", "2,5", "--idle", "2", "--tokens", "8")

    level = document["data"]["levels"][-1]
    assert code == 60
    assert level["concurrency"] == 5
    assert level["outcome"] in ("crashed", "hung")
    assert level["ok"] == level["requests"] == 15  # what was done before it died
    assert level["sign"]["done_before"] == 15
    assert "after the load, while idle" in level["reason"]
    assert document["data"]["bracket"] == {"last_good": 2, "first_bad": 5}
    assert document["data"]["diagnosis"]["category"] == category
