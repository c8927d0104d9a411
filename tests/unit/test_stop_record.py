"""A stop in the ledger: the intent before the first signal, the outcome after it, and what is cut."""

from __future__ import annotations

import json
from pathlib import Path

from opsctl.ledger import Ledger
from opsctl.output import Document
from opsctl.stop_record import FOLDER, StopRecord


def record(state: Path, run: str) -> StopRecord:
    return StopRecord(state, run, "stop", "glm5", "me@here")


def files(state: Path) -> list[str]:
    return sorted(path.name for path in (state / FOLDER).iterdir())


def test_a_stop_is_a_run_of_the_ledger(tmp_path: Path) -> None:
    """Its id is in the document; whoever opens the ledger finds the run, and no file is left."""
    one = record(tmp_path, "r1")
    document = Document("stop", "stopped")
    one.begin()
    one.end(document)
    assert document.run == "r1"
    assert files(tmp_path) == ["r1.begun.json", "r1.ended.json"]

    ledger = Ledger.open(tmp_path)
    kept = ledger.find("r1")
    ledger.close()
    assert (kept.run.server, kept.run.outcome, kept.run.exit_code) == ("glm5", "done", 0)
    assert kept.document is not None
    assert kept.document["outcome"] == "stopped"
    assert files(tmp_path) == []


def test_the_intent_is_there_before_the_first_signal(tmp_path: Path) -> None:
    """As soon as begin returns, a crash leaves a trace: an open run."""
    record(tmp_path, "r1").begin()
    assert files(tmp_path) == ["r1.begun.json"]

    ledger = Ledger.open(tmp_path)
    cut = ledger.find("r1")
    ledger.close()
    assert (cut.run.outcome, cut.run.playbook) == (None, "stop")


def test_an_outcome_is_not_lost_to_who_looks_while_the_stop_goes_on(tmp_path: Path) -> None:
    """A history between begin and end takes the intent; the outcome comes to the same run afterwards."""
    one = record(tmp_path, "r1")
    one.begin()
    Ledger.open(tmp_path).close()
    one.cut("interrupted", 130)

    ledger = Ledger.open(tmp_path)
    runs = ledger.runs()
    ledger.close()
    assert [(run.id, run.outcome, run.exit_code) for run in runs] == [("r1", "interrupted", 130)]


def test_a_file_that_was_taken_over_and_left_is_taken_again(tmp_path: Path) -> None:
    """A crash between the ledger's commit and the file's removal: the run is there once."""
    one = record(tmp_path, "r1")
    one.begin()
    one.end(Document("stop", "stopped"))
    held = {path: path.read_text() for path in (tmp_path / FOLDER).iterdir()}
    Ledger.open(tmp_path).close()
    for path, text in held.items():
        path.write_text(text)

    ledger = Ledger.open(tmp_path)
    runs = ledger.runs()
    ledger.close()
    assert [(run.id, run.outcome) for run in runs] == [("r1", "done")]


def test_a_damaged_file_breaks_nothing(tmp_path: Path) -> None:
    """What says nothing is removed; what an older opsctl left is taken."""
    folder = tmp_path / FOLDER
    folder.mkdir()
    intent = {"server": "glm5", "verb": "kill", "who": "me", "at_s": 5.0}
    (folder / "r0.json").write_text(json.dumps(intent))
    (folder / "broken.json").write_text("{")
    (folder / "list.json").write_text("[]")

    ledger = Ledger.open(tmp_path)
    runs = ledger.runs()
    ledger.close()
    assert [(run.id, run.outcome) for run in runs] == [("r0", None)]
    assert files(tmp_path) == []


def test_what_the_ledger_cannot_take_stays(tmp_path: Path) -> None:
    """A full disk under the ledger loses no stop, and what it holds can be read."""
    Ledger.open(tmp_path).close()
    one = record(tmp_path, "r1")
    one.begin()
    one.end(Document("stop", "stopped"))

    ledger = Ledger.open(tmp_path)
    with ledger._engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM runs")
        connection.exec_driver_sql("PRAGMA query_only=ON")
    one.end(Document("stop", "stopped"))
    ledger.take_over(tmp_path)
    assert ledger.runs() == []
    ledger.close()
    assert files(tmp_path) == ["r1.ended.json"]


def test_a_disk_that_cannot_be_written_does_not_keep_a_server_running(tmp_path: Path) -> None:
    """The stop goes on, and the document says that it is not recorded."""
    (tmp_path / FOLDER).write_text("a file where the folder should be")
    document = Document("stop", "stopped")
    one = record(tmp_path, "r1")
    one.begin()
    one.end(document)
    assert "not-recorded" in {finding.code for finding in document.findings}


def test_a_refused_stop_leaves_nothing(tmp_path: Path) -> None:
    """Before begin there is no run."""
    record(tmp_path, "r1").cut("refused", 50)
    assert list(tmp_path.iterdir()) == []
