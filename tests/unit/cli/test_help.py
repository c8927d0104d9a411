"""Help pages that teach, and output that respects narrow terminals, pipes and NO_COLOR."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from opsctl.cli import COMMANDS, root, run

ROOT = Path(__file__).parents[3]


def commands() -> Iterator[tuple[str, click.Command]]:
    def walk(name: str, found: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield name, found
        if isinstance(found, click.Group):
            for word, below in sorted(found.commands.items()):
                yield from walk(f"{name} {word}", below)

    for name in sorted(COMMANDS):
        made = root.get_command(click.Context(root), name)
        assert made is not None
        yield from walk(name, made)


def help_of(name: str, width: int) -> str:
    found = dict(commands())[name]
    context = click.Context(
        found, info_name=f"opsctl {name}", terminal_width=width, max_content_width=width
    )
    return found.get_help(context)


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_every_help_page_has_an_example_that_is_a_command_of_its_own(name: str) -> None:
    """Reading --help is enough to type the first one; a group may show those of its commands."""
    text = help_of(name, 100)

    head, mark, rest = text.partition("Example")
    assert mark, head
    assert f"opsctl {name}" in rest.partition("\nOptions:")[0]


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_every_option_says_what_it_is(name: str) -> None:
    """No line of a help page is a bare name."""
    options = [one for one in dict(commands())[name].params if isinstance(one, click.Option)]

    assert [one.opts[-1] for one in options if not one.help] == []


# what follows `ct exec TARGET` belongs to the program that is run
@pytest.mark.parametrize("name", [name for name, _ in commands() if name != "ct exec"])
def test_a_wrong_option_is_answered_with_what_can_be_typed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, one sentence, and a next step: the near word or an example, and the page that tells all."""
    assert run([*name.split(), "--no-such-option-at-all"]) == 2

    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("opsctl: no such option '--no-such-option-at-all'")
    assert said[1].startswith("  next: ")
    assert f"opsctl {name} --help" in said[1]


@pytest.mark.parametrize(
    ("line", "sentence", "step"),
    [
        (
            "stop",
            "missing argument 'SERVER' (opsctl stop",
            "for example: opsctl stop glm5 --dry-run",
        ),
        ("gpu verfy", "no such command 'verfy'", "did you mean 'verify'?"),
        ("ct statsu", "no such command 'statsu'", "did you mean 'start' or 'status'?"),
        ("status --jsn", "no such option '--jsn'", "did you mean '--json'?"),
        ("smoke s --rate 0", "no such option '--rate'", "the load is a closed loop: --levels"),
        ("smoke s --num-prompts 9", "no such option '--num-prompts'", "--requests N is how many"),
        ("nosuch", "no such command 'nosuch'", "all of them: opsctl --help"),
        ("stop a b", "got unexpected extra argument (b)", "for example: opsctl stop glm5"),
    ],
)
def test_a_slip_is_told_in_one_voice(
    line: str, sentence: str, step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As every other error: lower case, what is wrong, what to do next; exit 2."""
    assert run(line.split()) == 2

    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"opsctl: {sentence}")
    assert said[1].startswith(f"  next: {step}")


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_help_fits_a_narrow_terminal_where_it_can(name: str) -> None:
    """Prose is wrapped; only the example lines, which must stay whole, may be longer."""
    lines = help_of(name, 60).splitlines()

    assert all(
        len(line) <= 60 for line in lines if "opsctl " not in line and "  " not in line.strip()
    )


@pytest.mark.parametrize("arguments", [["--help"], ["config", "check"], ["status"]])
def test_output_in_a_pipe_is_plain(tmp_path: Path, arguments: list[str]) -> None:
    """No escape sequences without a terminal, also when the environment pretends to be one."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path)}
    env |= {"HOME": str(tmp_path), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    env.pop("OPSCTL_SITE", None)

    done = subprocess.run(
        [sys.executable, "-m", "opsctl", *arguments],
        cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
    )  # fmt: skip

    assert b"\x1b" not in done.stdout + done.stderr
    assert done.stdout


def test_no_command_colours_its_text() -> None:
    """NO_COLOR has nothing to switch off: state is said in words, which a log and a screen reader keep."""
    for path in (ROOT / "opsctl" / "cli").glob("*.py"):
        assert not re.search(r"\bsecho\(|\.style\(|\\x1b\[[0-9;]*m", path.read_text()), path.name


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    """`opsctl config schema | head -1` has no trace and no complaint."""
    line = f"{sys.executable} -m opsctl config schema | head -1"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}

    done = subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.stderr) == ("{\n", "")
