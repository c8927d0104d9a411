"""A stop in the ledger: the intent before the first signal, the outcome after it, and what is cut."""

from __future__ import annotations

import json
from pathlib import Path

from opsctl.cli.stop_record import FOLDER, StopRecord
from opsctl.ledger import Ledger
from opsctl.output import Document


def record(state: Path, run: str) -> StopRecord:
    return StopRecord(state, run, "stop", "glm5", "me@here")


def test_a_stop_is_a_run_of_the_ledger(tmp_path: Path) -> None:
    """Its id is in the document, its document in the ledger, and no intent is left."""
    one = record(tmp_path, "r1")
    document = Document("stop", "stopped")
    one.begin()
    one.end(document)

    ledger = Ledger.open(tmp_path)
    kept = ledger.find("r1")
    ledger.close()
    assert document.run == "r1"
    assert (kept.run.server, kept.run.outcome) == ("glm5", "done")
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_the_intent_is_there_before_the_first_signal(tmp_path: Path) -> None:
    """As soon as begin returns, a crash leaves a trace, whatever the ledger does."""
    (tmp_path / FOLDER).mkdir()
    seen = []
    one = record(tmp_path, "r1")
    one._open = lambda: seen.append(list((tmp_path / FOLDER).glob("*.json")))  # type: ignore[method-assign]
    one.begin()
    one.cut("cut", 30)
    assert [path.name for path in seen[0]] == ["r1.json"]


def test_the_ledger_is_not_loaded_before_it_is_wanted(tmp_path: Path) -> None:
    """Loading it takes the interpreter for 0.15 s, in which no signal would be sent."""
    one = record(tmp_path, "r1")
    one.begin()
    assert [path.name for path in tmp_path.iterdir()] == [FOLDER]
    assert one._opening is None

    one.open()
    one.open()  # as often as the stop has to wait
    one.end(Document("stop", "stopped"))
    ledger = Ledger.open(tmp_path)
    assert ledger.find("r1").run.outcome == "done"
    ledger.close()


def test_a_stop_that_was_cut_is_known_after_the_next_one(tmp_path: Path) -> None:
    """opsctl was killed after its intent: the next stop hands it to the ledger, without an outcome."""
    folder = tmp_path / FOLDER
    folder.mkdir()
    intent = {"server": "glm5", "verb": "kill", "who": "me", "at_s": 5.0}
    (folder / "r0.json").write_text(json.dumps(intent))
    (folder / "broken.json").write_text("{")
    one = record(tmp_path, "r1")
    one.begin()
    one.end(Document("stop", "stopped"))

    ledger = Ledger.open(tmp_path)
    cut = ledger.find("r0")
    ledger.close()
    assert (cut.run.outcome, cut.run.playbook) == (None, "stop")
    assert list(folder.iterdir()) == []


def test_a_ledger_that_cannot_be_written_does_not_keep_a_server_running(tmp_path: Path) -> None:
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
