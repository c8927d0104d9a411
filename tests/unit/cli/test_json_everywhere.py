"""Every command with --json prints one document with a published schema, whatever happens to it."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from opsctl.cli import run
from opsctl.schemas import names
from tests.schemas import check_document
from tests.unit.cli.test_help import commands

LEAVES = [name for name, found in commands() if not isinstance(found, click.Group)]
# enough to get past the parser; the servers, hosts and runs do not exist, and nothing is reached
WORDS = {
    "completion": ["bash"], "compare": ["a", "b"], "ct exec": ["129", "--", "true"],
    "ct rollback": ["129", "s"], "logs": ["s"], "patch new": ["p"], "schema": ["stop"],
    "smoke": ["s"], "adopt": ["1", "--host", "h"], "playbook show": ["restart"], "run": ["restart", "s"],
    "playbook check": ["restart"], "playbook list": [], "history": [], "config check": [], "config show": [],
    "config schema": [], "config example": [], "patch list": [], "patch check": [], "resume": [],
    "speculation tune": ["s"], "init": ["--host", "local", "--dry-run"], "status": ["s"], "doctor": ["s"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder is the whole world."""
    (tmp_path / "opsctl.yaml").write_text("hosts: {}\nservers: {}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("OPSCTL_SITE", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", [name for name in LEAVES if name != "init"])
def test_json_is_one_document_with_a_published_schema(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Success or error: stdout is one object, its schema is published, its exit code is the process's."""
    code = run([*name.split(), "--json", *WORDS.get(name, ["x"])])

    body = json.loads(capsys.readouterr().out)
    assert body["schema"] in names()
    assert body["schema"] == f"opsctl.{name.replace(' ', '-')}/1"
    assert body["exit_code"] == code
    check_document(body)


@pytest.mark.parametrize("name", LEAVES)
def test_an_option_that_does_not_exist_is_a_document_too(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that calls it wrongly reads the reason as it reads everything else."""
    code = run([*name.split(), "--json", "--no-such-option"])

    body = json.loads(capsys.readouterr().out)
    assert (code, body["schema"]) == (2, f"opsctl.{name.replace(' ', '-')}/1")
    check_document(body)
