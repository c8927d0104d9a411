"""Completion: the right names, no heavy import, and silence where a file is broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.ledger import Ledger

ROOT = Path(__file__).parents[3]
SITE = """\
hosts:
  pve1: {ssh: root@192.0.2.6}
  ct129: {pct: 129, via: pve1}
servers:
  glm5: {host: ct129, command: [/bin/true]}
patches_dir: mine
"""


def environment(folder: Path, **more: str) -> dict[str, str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    env |= {"XDG_CONFIG_HOME": str(folder / "config"), "HOME": str(folder)}
    env.pop("OPSCTL_SITE", None)
    return env | more


def complete(folder: Path, line: str) -> tuple[list[str], str]:
    """Ask as bash does; returns the words and what was said on stderr."""
    words = line.split(" ")
    env = environment(
        folder, _OPSCTL_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1)
    )
    done = subprocess.run(
        [sys.executable, "-m", "opsctl"], cwd=folder, env=env, capture_output=True, text=True, timeout=60
    )  # fmt: skip
    return [row.split(",", 1)[1] for row in done.stdout.split()], done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a site, a patch of its own, and a ledger with one run."""
    (tmp_path / "opsctl.yaml").write_text(SITE)
    (tmp_path / "mine" / "our-fix").mkdir(parents=True)
    (tmp_path / "mine" / "our-fix" / "patch.yaml").write_text("id: our-fix\n")
    state = tmp_path / "state" / "opsctl"
    state.mkdir(parents=True)
    ledger = Ledger.open(state)
    ledger.begin(
        "20261129-1", server="glm5", playbook="restart", at_s=1.0, who="a", reason=None, inputs={}
    )
    ledger.close()
    return tmp_path


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("opsctl sto", ["stop"]),
        ("opsctl stop g", ["glm5"]),
        ("opsctl status ", ["glm5", "pve1", "ct129"]),
        ("opsctl doctor p", ["pve1"]),
        ("opsctl ct start 1", ["129"]),
        ("opsctl ct start 129 --node c", ["ct129"]),
        ("opsctl patch apply glm5 ou", ["our-fix"]),
        ("opsctl run res", ["restart", "restart-hung"]),
        ("opsctl playbook show sto", ["stop"]),
        ("opsctl show 2026", ["20261129-1"]),
        ("opsctl stop --gr", ["--grace"]),
        ("opsctl completion f", ["fish"]),
        ("opsctl patch new spec", []),
    ],
)
def test_names_are_completed_where_they_are_meant(
    folder: Path, line: str, wanted: list[str]
) -> None:
    """Servers, hosts, containers, patches, playbooks and runs, each in its place."""
    words, said = complete(folder, line)

    assert (words, said) == (wanted, "")


@pytest.mark.parametrize("text", ["hosts: [\n", "- a\n", "servers: 3\nhosts: {a: 1}\n", "\xff", ""])
def test_a_broken_site_file_completes_nothing_and_says_nothing(tmp_path: Path, text: str) -> None:
    """A half-edited file must not print a trace into the command line."""
    (tmp_path / "opsctl.yaml").write_text(text, encoding="latin-1")

    assert complete(tmp_path, "opsctl stop ") == ([], "")


def test_a_broken_ledger_and_none_complete_nothing(tmp_path: Path) -> None:
    """And none is made by asking."""
    assert complete(tmp_path, "opsctl show ") == ([], "")
    assert not (tmp_path / "state").exists()
    (tmp_path / "state" / "opsctl").mkdir(parents=True)
    (tmp_path / "state" / "opsctl" / "ledger.sqlite").write_text("no database")
    assert complete(tmp_path, "opsctl show ") == ([], "")


def test_a_look_at_the_ledger_leaves_no_file(folder: Path) -> None:
    """Neither where it is at rest, nor of what a writer has open just now."""
    state = folder / "state" / "opsctl"

    assert complete(folder, "opsctl show 2026")[0] == ["20261129-1"]

    assert [path.name for path in state.iterdir()] == ["ledger.sqlite"]
    ledger = Ledger.open(state)
    ledger.begin(
        "20261130-2", server="s", playbook="stop", at_s=2.0, who="a", reason=None, inputs={}
    )
    assert complete(folder, "opsctl show 20261130")[0] == ["20261130-2"]
    ledger.close()
    assert [path.name for path in state.iterdir()] == ["ledger.sqlite"]


def test_completion_imports_nothing_heavy(folder: Path) -> None:
    """A TAB loads click and YAML, no models, no SSH, no database layer."""
    heavy = ("pydantic", "fabric", "paramiko", "rich", "sqlalchemy", "jinja2", "httptools")
    code = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr))\n"
        "from opsctl.cli import main\nmain([])"
    )
    env = environment(
        folder, _OPSCTL_COMPLETE="bash_complete", COMP_WORDS="opsctl stop ", COMP_CWORD="2"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, timeout=60
    )  # fmt: skip

    assert done.stdout == "plain,glm5\n"
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_printed_and_is_valid(tmp_path: Path, shell: str) -> None:
    """What is printed can be sourced: the shell's own parser takes it, where it is installed."""
    done = subprocess.run(
        [sys.executable, "-m", "opsctl", "completion", shell],
        env=environment(tmp_path), capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert f"_OPSCTL_COMPLETE={shell}_complete" in done.stdout
    program = shutil.which(shell)
    if program is not None:
        script = tmp_path / "script"
        script.write_text(done.stdout)
        checked = subprocess.run([program, "-n", str(script)], capture_output=True, timeout=30)
        assert checked.returncode == 0, checked.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_with_the_script_sourced(folder: Path) -> None:
    """The whole way: the function that bash calls on TAB fills COMPREPLY."""
    bin_ = folder / "bin"
    bin_.mkdir()
    (bin_ / "opsctl").write_text(f'#!/bin/sh\nexec {sys.executable} -m opsctl "$@"\n')
    (bin_ / "opsctl").chmod(0o755)
    script = "source <(opsctl completion bash)\nCOMP_WORDS=(opsctl stop g) COMP_CWORD=2\n"
    script += '_opsctl_completion opsctl\necho "${COMPREPLY[@]}"'

    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder, env=environment(folder, PATH=f"{bin_}:{os.environ['PATH']}"),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert (done.stdout, done.stderr) == ("glm5\n", "")
