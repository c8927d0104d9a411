"""The root of the command line: help, exit codes, errors as one sentence or one document."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.cli import COMMANDS, root, run
from opsctl.errors import TransportError
from tests.schemas import read_document

HEAVY = ("pydantic", "fabric", "paramiko", "rich", "sqlalchemy", "jinja2", "yaml", "httptools")


def test_every_command_can_be_imported_and_teaches() -> None:
    """A line in COMMANDS names something real, with a help text."""
    for name in COMMANDS:
        command = root.get_command(None, name)  # type: ignore[arg-type]

        assert command is not None, name
        assert command.help, name


def test_help_imports_nothing_heavy() -> None:
    """`opsctl --help` stays fast because it imports click and nothing else of weight."""
    code = (
        "import sys\nfrom opsctl.cli import run\n"
        "try:\n    run(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)

    assert done.stderr.strip().splitlines()[-1] == "[]"
    assert "Exit codes" in done.stdout


def test_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """A typo is exit 2 and gets the command that was meant."""
    assert run(["confg"]) == 2

    assert "next: did you mean 'config'?" in capsys.readouterr().err


def test_error_is_one_sentence_and_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong site file: exit 10, no traceback, a next step, nothing on stdout."""
    path = tmp_path / "opsctl.yaml"
    path.write_text("hosst: {}\n")

    assert run(["config", "check", "--site", str(path)]) == 10

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "did you mean 'hosts'?" in captured.err
    assert "next:" in captured.err
    assert "Traceback" not in captured.err


def test_error_with_json_is_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json also a failure prints one object, with the contract's keys."""
    assert run(["config", "check", "--json", "--site", str(tmp_path / "absent.yaml")]) == 10

    document = read_document(capsys.readouterr().out)
    assert document["exit_code"] == 10
    assert document["findings"][0]["code"] == "config"
    assert set(document) == {"schema", "outcome", "exit_code", "run", "findings", "data"}


def test_usage_error_with_json_is_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    """A script that asked for JSON gets JSON also for a wrong option; exit 2."""
    assert run(["config", "check", "--jsn", "--json"]) == 2

    document = read_document(capsys.readouterr().out)
    assert document["exit_code"] == 2
    assert "--jsn" in document["findings"][0]["text"]


def test_internal_error_is_exit_1_without_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug of ours says so in one sentence; the trace comes on request."""
    monkeypatch.setitem(COMMANDS, "boom", ("tests.unit.cli.test_root:absent", "x"))
    monkeypatch.delenv("OPSCTL_TRACEBACK", raising=False)

    assert run(["boom"]) == 1

    err = capsys.readouterr().err
    assert "internal error" in err
    assert "Traceback" not in err


def test_exit_codes_of_the_families_are_the_contract() -> None:
    """The families keep the numbers that scripts rely on."""
    from opsctl import errors

    codes = {
        name: getattr(errors, name).exit_code
        for name in [
            "UsageError",
            "ConfigError",
            "CheckFailed",
            "CouldNotTell",
            "TransportError",
            "AgentError",
            "SafetyRefusal",
            "ServerCrashed",
            "SmokeFailed",
            "NotMeasured",
            "Interrupted",
        ]
    }

    assert list(codes.values()) == [2, 10, 20, 21, 30, 40, 50, 60, 70, 75, 130]
    assert TransportError("x").exit_code == 30


@pytest.mark.parametrize(
    ("argv", "schema"),
    [
        (["stop", "nobody", "--json", "--yes"], "opsctl.stop/1"),
        (["gpu", "verify", "nobody", "--json"], "opsctl.gpu-verify/1"),
    ],
)
def test_an_error_has_the_schema_of_its_command(
    argv: list[str], schema: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A script that reads `gpu verify` finds its name also when the host is unknown."""
    site = tmp_path / "opsctl.yaml"
    site.write_text("hosts: {}\nservers: {}\n")
    code = run([*argv, "--site", str(site), "--state", str(tmp_path)])
    assert code == 2
    assert read_document(capsys.readouterr().out)["schema"] == schema


@pytest.mark.parametrize("words", ["stop s --grace", "stop s --drain", "run restart s --deadline"])
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_wait_of_no_finite_length_is_a_usage_error(
    words: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is ever later than NaN: a grace of that length would not end."""
    assert run([*words.split(), number]) == 2

    assert "no number of seconds" in capsys.readouterr().err


def test_a_wait_beyond_every_clock_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """It would fail where the wait begins: after the first signal."""
    assert run(["stop", "s", "--grace", "1e300"]) == 2

    assert "more than 1e+09" in capsys.readouterr().err
