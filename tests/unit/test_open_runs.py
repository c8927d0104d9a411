"""What `status` says of an open run, read from one small file, and from the ledger only when there is one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from opsctl.ledger import Ledger
from opsctl.open_runs import FOLDER, mark, open_run_of, unmark, unmark_all


def begin(state: Path, run: str, *steps: tuple[str, str | None]) -> None:
    """Write a run down whose steps ended so; None: it never ended."""
    ledger = Ledger.open(state)
    ledger.begin(
        run, server="glm5", playbook="restart", at_s=1.0, who="ops", reason=None, inputs={}
    )
    for position, (name, outcome) in enumerate(steps):
        turn = ledger.begin_step(run, position, name, "read", float(position))
        if outcome is not None:
            ledger.end_step(run, position, turn, at_s=9.0, outcome=outcome, changed=False, body={})
    ledger.close()
    mark(state, run, "glm5")


def die(state: Path, run: str) -> None:
    """Let the process that marked the run be gone."""
    path = state / FOLDER / run
    words = path.read_text().split("\n")
    path.write_text("\n".join([*words[:3], "1"]))


def test_a_run_of_a_living_process_is_under_way_and_of_a_dead_one_open(tmp_path: Path) -> None:
    """The step that has not ended is named, and how to go on only where nobody does."""
    begin(tmp_path, "r1", ("stop", "done"), ("ready", None))

    alive = open_run_of(tmp_path, "glm5")
    die(tmp_path, "r1")
    dead = open_run_of(tmp_path, "glm5")

    assert alive is not None
    assert dead is not None
    assert "run r1 (restart) is under way, at step ready" in alive.text
    assert alive.next == ""
    assert (dead.text, dead.next) == (
        "run r1 (restart) is open: it was cut at step ready",
        "opsctl resume r1",
    )
    assert open_run_of(tmp_path, "other") is None


def test_an_ended_or_overtaken_run_is_not_told(tmp_path: Path) -> None:
    """By its mark, and by the ledger where a mark was left behind."""
    begin(tmp_path, "r1", ("stop", None))
    unmark(tmp_path, "r1")
    assert open_run_of(tmp_path, "glm5") is None
    mark(tmp_path, "r1", "glm5")
    unmark_all(tmp_path, "glm5")
    assert open_run_of(tmp_path, "glm5") is None
    mark(tmp_path, "r1", "glm5")
    ledger = Ledger.open(tmp_path)
    ledger.finish("r1", at_s=2.0, outcome="done", exit_code=0, signature=None, document={})
    ledger.close()
    assert open_run_of(tmp_path, "glm5") is None


def test_without_an_open_run_no_database_is_loaded(tmp_path: Path) -> None:
    """The usual look costs one listing of a folder."""
    script = (
        "import sys; from pathlib import Path; from opsctl.open_runs import open_run_of; "
        "print(open_run_of(Path(sys.argv[1]), 'glm5'), 'sqlite3' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=30
    )

    assert done.stdout.split() == ["None", "False"]
