"""stdout and stderr of the real program: readers that leave, closed ones, a full disk, foreign bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .stopping import (
    family,
    free_port,
    is_alive,
    listens,
    started,
    tree_command,
    tree_server,
    wait_for,
)

pytestmark = pytest.mark.wire
OPSCTL = [sys.executable, "-m", "opsctl"]


@pytest.fixture
def port() -> int:
    return free_port()


def site_of(folder: Path, port: int, *behaviours: str) -> Path:
    path = folder / "opsctl.yaml"
    server = {"host": "here", "port": port, "command": tree_command(port, *behaviours)}
    path.write_text(json.dumps({"hosts": {"here": {"local": True}}, "servers": {"s": server}}))
    return path


def test_a_stop_whose_reader_left_ends_the_server_all_the_same(port: int, tmp_path: Path) -> None:
    """`opsctl stop s 2>&1 | true` says its lines to nobody, and still goes from TERM to KILL."""
    site = site_of(tmp_path, port, "--ignore-term")
    reading, writing = os.pipe()
    os.close(reading)
    with tree_server(port, "--ignore-term") as pid:
        everyone = family(pid)
        argv = [*OPSCTL, "stop", "s", "--yes", "--grace", "0.3", "--site", str(site)]
        argv += ["--state", str(tmp_path / "state")]

        done = subprocess.run(argv, stdout=writing, stderr=writing, timeout=60)

        assert not any(is_alive(member) for member in everyone)
    os.close(writing)
    assert done.returncode == 0


@pytest.mark.parametrize("way", ["left", "closed"])
def test_a_reader_that_left_does_not_turn_a_bad_end_into_a_good_one(
    way: str, port: int, tmp_path: Path
) -> None:
    """`opsctl logs s | head -c 0` found no log: 20, not 0."""
    site = site_of(tmp_path, port)
    reading, writing = os.pipe()
    os.close(reading)
    shell = '"$@" >&-' if way == "closed" else 'exec "$@"'
    argv = [*OPSCTL, "logs", "s", "--json", "--site", str(site), "--state", str(tmp_path / "state")]

    done = subprocess.run(
        ["bash", "-c", shell, "-", *argv], stdout=writing, stderr=subprocess.PIPE, timeout=60
    )

    os.close(writing)
    assert done.returncode == 20
    assert b"Traceback" not in done.stderr


def test_a_result_that_a_full_disk_lost_is_no_success(tmp_path: Path) -> None:
    """stdout on a full disk: one sentence and exit 1, no traceback."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*OPSCTL, "config", "example"], stdout=full, stderr=subprocess.PIPE, timeout=60
        )

    assert done.returncode == 1
    assert done.stderr == b"opsctl: the result could not be written: No space left on device\n"


def test_with_all_three_streams_closed_no_file_takes_their_place(tmp_path: Path) -> None:
    """A ledger that got descriptor 2 would be written full of talk."""
    state = tmp_path / "state"
    shell = '"$@" <&- >&- 2>&-'
    argv = [*OPSCTL, "history", "--state", str(state)]

    done = subprocess.run(["bash", "-c", shell, "-", *argv], timeout=60)

    assert done.returncode == 0
    assert (state / "ledger.sqlite").read_bytes().startswith(b"SQLite format 3")


def test_a_stranger_with_foreign_bytes_on_the_port_breaks_no_document(
    port: int, tmp_path: Path
) -> None:
    """Its command line is no UTF-8 and moves the cursor: the stop tells of it in a document and in text."""
    site = site_of(tmp_path, port, "--children", "1")
    argv = [os.fsencode(word) for word in tree_command(port)]
    state = ["--site", str(site), "--state", str(tmp_path / "state")]
    bytes_of_it = [*argv, b"--slow-term", b"0", b"--port", b"%d" % port]
    evil = tmp_path / os.fsdecode(b"caf\xe9 \x1b[2K\rgone.py")
    evil.write_bytes(Path(tree_command(port)[1]).read_bytes())
    bytes_of_it[1] = os.fsencode(evil)
    with started([os.fsdecode(word) for word in bytes_of_it]) as pid:
        wait_for(lambda: listens(port))

        document = subprocess.run(
            [*OPSCTL, "stop", "s", "--yes", "--json", *state], capture_output=True, timeout=60
        )
        text = subprocess.run(
            [*OPSCTL, "stop", "s", "--yes", *state],
            capture_output=True,
            timeout=60,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )

        assert is_alive(pid)
    body = json.loads(document.stdout.decode("utf-8"))
    assert body["exit_code"] == document.returncode == text.returncode != 1
    assert b"\x1b[2K" not in text.stdout + text.stderr
    (text.stdout + text.stderr).decode("utf-8")


def test_a_state_folder_that_cannot_be_made_keeps_no_server_running(
    port: int, tmp_path: Path
) -> None:
    """The stop is done and says that it is not recorded; what needs the ledger refuses with 50."""
    site = site_of(tmp_path, port)
    where = ["--site", str(site), "--state", "/proc/none", "--json"]
    with tree_server(port) as pid:
        stop = subprocess.run(
            [*OPSCTL, "stop", "s", "--yes", *where], capture_output=True, timeout=60
        )
        assert not is_alive(pid)
    history = subprocess.run([*OPSCTL, "history", *where], capture_output=True, timeout=60)

    document = json.loads(stop.stdout)
    assert (stop.returncode, document["exit_code"]) == (0, 0)
    assert "not-recorded" in [finding["code"] for finding in document["findings"]]
    assert (history.returncode, json.loads(history.stdout)["exit_code"]) == (50, 50)
