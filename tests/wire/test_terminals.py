"""What a person sees on a terminal: 40 and 80 columns wide, with and without colour; and in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from tests.wire.ground import Ground, make_ground
from tests.wire.test_oncall import environment

pytestmark = [pytest.mark.wire, pytest.mark.timeout(180)]
COLOUR = re.compile(rb"\x1b\[(?:[\d;]*;)?(?:3[0-7]|4[0-7]|9[0-7]|10[0-7]|38|48)[\d;]*m")
ESCAPE = re.compile(rb"\x1b")
LINES = (
    "status", "status one", "doctor one", "stop one --dry-run", "restart one --dry-run", "gpu status one",
    "history", "show last", "patch list", "playbook list", "playbook show restart", "config check",
    "ct status 129", "logs one -n 3", "speculation explain one",
)  # fmt: skip


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A ground whose server runs."""
    with make_ground(tmp_path_factory.mktemp("ground")) as made:
        assert made.json("restart", "one", "--yes", "--no-smoke")["exit_code"] == 0
        yield made


def on_terminal(ground: Ground, line: str, columns: int, **env: str) -> tuple[int, bytes]:
    """Run one command on a terminal so wide; return its exit code and every byte that it drew."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    words = {"TERM": "xterm-256color", **environment(ground), **env}
    words.pop("COLUMNS", None)
    argv = [sys.executable, "-m", "opsctl", *line.split()]
    with subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ground.folder, env=words
    ) as process:
        os.close(theirs)
        drawn = b""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if not select.select([ours], [], [], 1)[0]:
                continue
            try:
                drawn += os.read(ours, 65536)
            except OSError:  # nobody has it open any more
                break
        os.close(ours)
        return process.wait(10), drawn


@pytest.mark.parametrize(
    ("columns", "line"), [(40, line) for line in LINES] + [(80, line) for line in LINES[:4]]
)
def test_commands_read_on_narrow_terminals(ground: Ground, columns: int, line: str) -> None:
    """No trace and no colour."""
    code, drawn = on_terminal(ground, line, columns, NO_COLOR="1")

    text = drawn.decode()
    assert code in (0, 2, 20, 21), text
    assert "Traceback" not in text
    assert not COLOUR.search(drawn)


@pytest.mark.parametrize(
    ("env", "escapes"),
    [({"TERM": "xterm", "NO_COLOR": "1"}, True), ({"TERM": "dumb", "NO_COLOR": ""}, False)],
)
def test_the_live_view_of_a_smoke_obeys_the_terminal(
    ground: Ground, env: dict[str, str], escapes: bool
) -> None:
    """NO_COLOR: it is drawn without colours. A dumb terminal gets plain lines."""
    code, drawn = on_terminal(ground, "smoke one --levels 1,2 --requests 4 --tokens 8", 80, **env)

    assert code == 0, drawn
    assert not COLOUR.search(drawn)
    assert bool(ESCAPE.search(drawn)) == escapes
    assert b"verdict: passed" in drawn


def test_a_smoke_on_a_terminal_of_40_columns_ends_with_its_verdict(ground: Ground) -> None:
    """The table is wider than that; the terminal wraps it, and nothing is lost."""
    code, drawn = on_terminal(ground, "smoke one --levels 1,2 --requests 4 --tokens 8", 40)

    assert code == 0, drawn
    assert b"verdict: passed" in drawn


def test_a_question_is_asked_on_a_terminal_and_no_means_no(ground: Ground) -> None:
    """Where nobody answers (end of input), nothing is changed."""
    before = ground.mains()
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "opsctl", "stop", "one"]
    with subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ground.folder, env=environment(ground)
    ) as process:
        os.close(theirs)
        drawn = b""
        while b"[y/N]" not in drawn:
            drawn += os.read(ours, 65536)
        os.write(ours, b"n\n")
        code = process.wait(30)
        os.close(ours)

    assert code == 50
    assert ground.mains() == before


def at_the_question(ground: Ground, line: str, keys: bytes) -> tuple[int, str]:
    """Type keys at the question, on the command's controlling terminal; return exit code and screen."""

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "opsctl", *line.split()]
    with subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ground.folder,
        env=environment(ground), preexec_fn=own_terminal,
    ) as process:  # fmt: skip
        os.close(theirs)
        drawn, typed, end = b"", False, time.monotonic() + 90
        while time.monotonic() < end:
            if not select.select([ours], [], [], 1)[0]:
                continue
            try:
                drawn += os.read(ours, 65536)
            except OSError:  # nobody has it open any more
                break
            if b"[y/N]" in drawn and not typed:
                typed = True
                os.write(ours, keys)
        os.close(ours)
        return process.wait(10), drawn.decode()


@pytest.mark.parametrize("command", ["restart", "stop"])
def test_ctrl_c_at_the_question_is_a_no_at_once(ground: Ground, command: str) -> None:
    """Exit 130 without a second question; nothing was signalled, and no run is left to go on with."""
    before = ground.mains()

    code, screen = at_the_question(ground, f"{command} one --state {ground.folder}/state", b"\x03")

    assert code == 130, screen
    assert screen.count("[y/N]") == 1
    assert "is finished first" not in screen
    assert "opsctl resume" not in screen
    assert ground.mains() == before
    if command == "restart":
        rows = ground.json("history", "-n", "1")["data"]["runs"]
        assert (rows[0]["outcome"], rows[0]["exit_code"]) == ("refused", 130)
        assert rows[0]["why"] == "ask: interrupted at the question; nothing was changed"
        assert ground.json("resume")["data"]["runs"] == []


def test_nothing_is_cut_in_a_pipe(ground: Ground) -> None:
    """A program that reads a table gets whole cells, whatever a terminal elsewhere is wide."""
    env = {**environment(ground)}
    env.pop("COLUMNS", None)
    for line in (*LINES[:2], LINES[5]):
        done = subprocess.run(
            [sys.executable, "-m", "opsctl", *line.split()],
            capture_output=True, cwd=ground.folder, env=env, stdin=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip
        assert b"\x1b" not in done.stdout + done.stderr, line
        assert "…" not in done.stdout.decode(), line
