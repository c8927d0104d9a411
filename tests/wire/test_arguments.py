"""The installed parser's answer: kept while nothing that it read has changed, and asked again otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.ops import arguments, procfs

pytestmark = pytest.mark.wire

PARSER = """\
import os
from sglang import extra
with open(os.environ["ASKED"], "a") as out:
    out.write("asked\\n")
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", required=True)
        parser.add_argument("--tp", type=int)
"""


class Place:
    """An environment with a package whose import is counted."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "site"
        self.runtime = folder / "run"
        self._asked = folder / "asked"
        package = self.site / "sglang" / "srt"
        package.mkdir(parents=True)
        (folder / "cwd").mkdir()
        (self.site / "sglang" / "__init__.py").write_text("")
        (self.site / "sglang" / "extra.py").write_text("A = 1\n")
        (package / "__init__.py").write_text("")
        (package / "server_args.py").write_text(PARSER)
        (self.site / "some.pth").write_text("# nothing\n")
        (self.site / "sitecustomize.py").write_text(
            f"import site; site.addsitedir({str(self.site)!r})"
        )
        self.request: dict[str, Any] = {
            "python": sys.executable,
            "cwd": str(folder / "cwd"),
            "env": {
                "PYTHONPATH": str(self.site),
                "PYTHONDONTWRITEBYTECODE": "1",
                "ASKED": str(self._asked),
                "OPSCTL_RUN": "run-1",
            },
            "flags": ["--model-path", "m", "--tp", "2"],
        }

    def ask(self) -> tuple[dict[str, Any], int]:
        """Return the answer, and how often the parser was asked so far."""
        reply = arguments.arguments(self.request, None)  # type: ignore[arg-type]
        return reply, self._asked.read_text().count("asked")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    monkeypatch.setattr(procfs, "runtime_directory", lambda: str(made.runtime))
    monkeypatch.setattr(arguments, "SETTLED_S", 0.0)  # the package was made just now
    return made


def test_an_unchanged_environment_is_asked_once(place: Place) -> None:
    """The second answer is the first one, and says since when it holds; the run's id is no part of it."""
    first, _ = place.ask()
    place.request["env"]["OPSCTL_RUN"] = "run-2"
    second, asked = place.ask()

    assert asked == 1
    assert (first["ok"], first["kept_since"]) == (True, None)
    assert "--tp" in first["flags"]
    assert second["kept_since"] > 0
    assert {**second, "kept_since": None} == first


def edit_as_nobody_sees(place: Place) -> None:
    """Change one byte, and set size and time back."""
    file = place.site / "sglang" / "extra.py"
    about = file.stat()
    file.write_text("A = 2\n")
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))


def replace_as_pip_does(place: Place) -> None:
    file = place.site / "sglang" / "srt" / "server_args.py"
    file.with_suffix(".new").write_text(PARSER)
    os.replace(file.with_suffix(".new"), file)


CHANGES: dict[str, Callable[[Place], Any]] = {
    "a file, with its size and time set back": edit_as_nobody_sees,
    "the parser, by a rename": replace_as_pip_does,
    "a module in front of others": lambda p: (p.site / "csv.py").write_text(""),
    "a module in a package": lambda p: (p.site / "sglang" / "new.py").write_text(""),
    "a path file": lambda p: (p.site / "some.pth").write_text("# something\n"),
    "another folder in front": lambda p: (p.site / "sglang-1.dist-info").mkdir(),
    "the environment": lambda p: p.request["env"].update(SGLANG_X="1"),
    "the flags": lambda p: p.request["flags"].extend(["--tp", "4"]),
    "the folder": lambda p: p.request.update(cwd="/"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_makes_it_be_asked_again(place: Place, what: str) -> None:
    """Whatever the import would see differently."""
    place.ask()
    CHANGES[what](place)
    reply, asked = place.ask()
    assert (asked, reply["ok"], reply["kept_since"]) == (2, True, None)


def test_a_refusal_is_asked_each_time(place: Place) -> None:
    """Nobody waits for an answer that was wrong once."""
    place.request["flags"].append("--nope")
    for number in (1, 2):
        reply, asked = place.ask()
        assert (asked, reply["ok"]) == (number, False)
        assert "--nope" in reply["error"]
    assert not place.runtime.exists()


def test_what_changed_while_it_was_asked_is_not_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade that runs at the same time: the answer may be the old package's."""
    monkeypatch.setattr(arguments, "SETTLED_S", 600.0)
    place.ask()
    assert place.ask()[1] == 2


def test_an_answer_that_others_can_write_is_not_taken(place: Place) -> None:
    """Nor a damaged one, nor a link."""
    place.ask()
    (kept,) = place.runtime.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.chmod(0o666)
    assert place.ask()[1] == 2
    kept.write_text("{")
    assert place.ask()[1] == 3
    kept.rename(kept.with_name("elsewhere"))
    kept.symlink_to(kept.with_name("elsewhere"))
    assert place.ask()[1] == 4


def test_only_a_few_answers_are_kept(place: Place) -> None:
    """Each set of flags has its own; other files of the folder stay."""
    place.runtime.mkdir()
    (place.runtime / "nvml-1").write_text("")
    for number in range(arguments.KEPT + 2):
        place.request["flags"] = ["--model-path", str(number)]
        place.ask()
    names = [one.name for one in place.runtime.iterdir()]
    assert len(names) == arguments.KEPT + 1
    assert "nvml-1" in names


def test_a_wrapper_that_starts_another_interpreter_is_asked_again(place: Place) -> None:
    """`python` of the site may be a script: its new content may mean another environment."""
    wrapper = place.runtime.parent / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    place.request["python"] = str(wrapper)
    place.ask()
    _, kept = place.ask()

    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -B "$@"\n')
    _, asked = place.ask()

    assert (kept, asked) == (1, 2)


def test_an_interpreter_that_comes_first_on_the_path_is_asked(place: Place) -> None:
    """`python: python3` is whichever PATH gives at the moment."""
    folders = [place.runtime.parent / name for name in ("new", "old")]
    for folder in folders:
        folder.mkdir()
    place.request["python"] = "somepython"
    place.request["env"]["PATH"] = ":".join(map(str, folders))
    (folders[1] / "somepython").symlink_to(sys.executable)
    place.ask()
    _, kept = place.ask()

    (folders[0] / "somepython").symlink_to(sys.executable)
    _, asked = place.ask()

    assert (kept, asked) == (1, 2)


def test_a_user_site_that_comes_into_being_is_looked_at(place: Place) -> None:
    """The first `pip install --user` makes a folder that comes before the system's packages."""
    base = place.runtime.parent / "user"
    place.request["env"]["PYTHONUSERBASE"] = str(base)
    place.request["python"] = os.path.realpath(sys.executable)  # a venv has no user site
    place.ask()
    _, kept = place.ask()

    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (base / "lib" / version / "site-packages").mkdir(parents=True)
    _, asked = place.ask()

    assert (kept, asked) == (1, 2)
