"""Documents of commands that no other test asks for, as they are printed, against their schemas."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from opsctl.cli import run
from tests.schemas import read_document
from tests.wire.ground import Ground, make_ground

pytestmark = [pytest.mark.wire, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A ground whose server runs, launched by a run of the ledger."""
    with make_ground(tmp_path_factory.mktemp("ground")) as made:
        assert made.json("restart", "one", "--yes", "--no-smoke")["exit_code"] == 0
        for side in ("old", "new"):
            (made.folder / side).mkdir()
            (made.folder / side / "core.py").write_text(f"NAME = '{side}'\n")
        yield made


@pytest.mark.parametrize(
    "line",
    [
        "config check",
        "config show",
        "gpu probe one",
        "gpu status one",
        "gpu verify here",
        "gpu wait one --timeout 0",
        "history",
        "kill one --dry-run",
        "logs one -n 5",
        "patch check",
        "patch list",
        "patch new demo --version 1.0 --package demo --old old --new new --into made",
        "playbook check stop",
        "playbook list",
        "playbook show restart",
        "resume",
        "restart one --dry-run",
        "schema",
        "show last",
        "smoke one --dry-run",
        "speculation explain one",
        "speculation tune one --dry-run",
        "status",
        "stop one --dry-run",
        "history --nonsense",
    ],
)
def test_the_document_is_what_its_schema_says(
    ground: Ground,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also with nothing on standard output but the document, and its exit code the process's."""
    monkeypatch.chdir(ground.folder)

    code = run([*ground.command(*line.split())[3:], "--json"])
    document = read_document(capsys.readouterr().out)

    assert document["exit_code"] == code
    assert document["schema"].startswith(f"opsctl.{line.split()[0]}")
