"""`python3 -m tests.lab` with a Python that has none of the lab's dependencies."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.instance import CHECKOUT

BARE = [sys.executable, "-S", "-m", "tests.lab"]  # -S: what is installed for it is not seen


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout with the lab and without .venv."""
    for part in ("__init__.py", *(f"lab/{path.name}" for path in CHECKOUT.glob("tests/lab/*.py"))):
        (tmp_path / "tests" / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / "tests" / part, tmp_path / "tests" / part)
    return tmp_path


def bare(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the lab's command line with an interpreter that has nothing installed."""
    return subprocess.run(
        [*BARE, *words], cwd=checkout, env={"PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def make_python(checkout: Path, text: str) -> None:
    """Put a program at the place of .venv's interpreter."""
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(text)
    python.chmod(0o755)


def test_a_bare_interpreter_hands_over_to_the_checkouts_own(checkout: Path) -> None:
    """The same command line, word by word, runs with .venv/bin/python; nothing else is imported before."""
    make_python(checkout, '#!/bin/sh\nfor word; do echo "[$word]"; done\n')

    done = bare(checkout, "run", "--", "echo", "two words", "-x")

    words = ["-m", "tests.lab", "run", "--", "echo", "two words", "-x"]
    assert (done.stdout.split("\n")[:-1], done.stderr) == ([f"[{word}]" for word in words], "")


def test_without_an_environment_it_says_what_makes_one(checkout: Path) -> None:
    """No .venv: one sentence, its mend, exit 2; never a traceback."""
    done = bare(checkout, "up")

    assert (done.returncode, done.stdout) == (2, "")
    assert "cryptography" in done.stderr
    assert done.stderr.splitlines()[1:] == [
        "  next: run `make demo` first, it makes .venv with all the lab needs"
    ]


def test_an_environment_that_lacks_it_too_is_not_called_twice(checkout: Path) -> None:
    """A half-made .venv ends with a sentence, not in a circle."""
    make_python(checkout, f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')

    done = bare(checkout, "status")

    assert done.returncode == 2
    assert "remove .venv" in done.stderr
