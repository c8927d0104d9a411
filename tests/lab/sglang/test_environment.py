"""Building an environment: atomic, taken up again after a failure, rebuilt when the recipe changes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.sglang import environment


def silent(text: str) -> None:
    """Say nothing."""


def test_a_failed_build_leaves_nothing_in_place_and_is_taken_up_again(tmp_path: Path) -> None:
    """The environment appears whole or not at all; what was installed before the failure is kept."""
    home, installed = tmp_path / "env", []

    def fails(python: Path, say: Callable[[str], None]) -> None:
        (python.parent.parent / "half").touch()
        raise environment.BuildError("no network")

    def works(python: Path, say: Callable[[str], None]) -> None:
        installed.append((python.parent.parent / "half").exists())
        script = python.parent / "tool"
        script.write_text(f"#!{python}\nimport sys; print(sys.prefix)\n")
        script.chmod(0o755)

    with pytest.raises(environment.BuildError):
        environment._make(home, "recipe", fails, silent)
    assert not home.exists()

    environment._make(home, "recipe", works, silent)
    assert installed == [True]
    ran = subprocess.run([home / "bin" / "tool"], capture_output=True, text=True, timeout=20)
    assert ran.stdout.strip() == str(home), "scripts name the place where the environment lies"

    environment._make(home, "recipe", works, silent)
    assert installed == [True], "a finished one is used as it is"
    environment._make(home, "another recipe", works, silent)
    assert installed == [True, False], "a changed recipe starts from nothing"


def test_the_stand_ins_of_this_checkout_replace_older_ones(tmp_path: Path) -> None:
    """An environment built long ago gets the current code, and loses files that are gone."""
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    (site / "opsctl_lab_cpu").mkdir(parents=True)
    (site / "opsctl_lab_cpu" / "gone.py").touch()

    environment._install_shim(tmp_path)

    names = {path.name for path in (site / "opsctl_lab_cpu").iterdir()}
    assert names == {path.name for path in environment.SHIM.glob("*.py")}
    assert "hold.py" in names
    assert (site / "opsctl-lab-cpu.pth").read_text() == "import opsctl_lab_cpu\n"


def test_a_missing_library_is_named_with_its_package() -> None:
    """The traceback keeps both ends; a library that no package is known for is named all the same."""
    frames = [f'  File "module{number}.py", line 1, in <module>' for number in range(60)]
    begin = "Traceback (most recent call last):"
    sound = "OSError: cannot load library 'libsndfile.so': libsndfile.so: cannot open shared object file"
    other = "ImportError: libfoo-2.so.1: cannot open shared object file: No such file or directory"

    words = environment._import_words("\n".join([begin, *frames, sound]))
    unknown = environment._import_words(f"{begin}\n{other}")
    none = environment._import_words(f"{begin}\nModuleNotFoundError: No module named 'x'")

    assert words.splitlines()[0] == begin
    assert "(38 lines)" in words
    assert words.splitlines()[-2] == sound
    assert "  next: apt-get install libsndfile1, then run this again" in words.splitlines()[-1]
    assert "next: install the package that has libfoo-2.so.1" in unknown
    assert "next:" not in none
