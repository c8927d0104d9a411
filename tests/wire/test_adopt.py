"""`opsctl adopt` and `init` on this machine, with a real process as the server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import standin
from tests.schemas import read_document

pytestmark = pytest.mark.wire
SECRET = "hf_thisIsNoRealSecret0123"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """A stand-in on a free port, listening; gives its pid and port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**standin.environment(), "HF_TOKEN": SECRET, "NCCL_DEBUG": "WARN"}
    argv = standin.argv(port, "--tp", "1", "--lab-startup-s", "0", f"--api-key={SECRET}")
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            argv, env=env, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 30
        while b"ready to roll" not in (tmp_path / "server.log").read_bytes():
            assert time.monotonic() < deadline, (tmp_path / "server.log").read_text()[-2000:]
            time.sleep(0.05)
        yield process.pid, port
    finally:
        os.killpg(process.pid, 9)
        process.wait(10)


def opsctl(folder: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    env = {
        **os.environ,
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "none"),
    }
    env.pop("OPSCTL_SITE", None)
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "opsctl", *words, "--json"],
        cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    return done.returncode, read_document(done.stdout), done.stdout + done.stderr


def test_a_server_of_this_machine_is_adopted_and_status_shows_the_same_pid(
    server: tuple[int, int], tmp_path: Path
) -> None:
    """Without a site file one is made; a secret of the server is nowhere in it, nor on the screen."""
    pid, port = server

    refused = opsctl(tmp_path, "adopt", str(pid))
    code, document, text = opsctl(tmp_path, "adopt", str(pid), "--name", "mine", "--yes")
    assert (refused[0], refused[1]["findings"][0]["code"]) == (50, "not-confirmed")
    assert code == 0, text
    status, seen, _ = opsctl(tmp_path, "status", "mine")

    written = (tmp_path / "opsctl.yaml").read_text()
    assert SECRET not in text + written
    assert document["data"]["entry"]["env"]["NCCL_DEBUG"] == "WARN"
    assert document["data"]["entry"]["env"]["HF_TOKEN"] == {"env": "HF_TOKEN"}
    assert document["data"]["entry"]["port"] == port
    assert document["data"]["entry"]["log_dir"] == str(tmp_path)
    assert status in (0, 21)  # 21: this machine has a GPU library that cannot answer
    assert seen["data"]["servers"][0]["state"] == "listening"
    assert seen["data"]["servers"][0]["processes"][0]["pid"] == pid
    assert opsctl(tmp_path, "adopt", str(pid), "--yes")[1]["outcome"] == "already-adopted"
    assert opsctl(tmp_path, "init", "--yes")[1]["findings"][0]["code"] == "exists"
