"""The last run of a server on the status screen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.cli.status import document_of, text_of
from opsctl.cli.status import tell_last_runs as tell
from opsctl.domain.overview import Judgement, ServerState
from opsctl.last_run import last_failed_run
from opsctl.ledger import Ledger
from opsctl.status import Overview, ServerView


def record(state: Path, *runs: tuple[str, str, int | None]) -> None:
    """Write runs of glm5 down, oldest first: name, playbook, exit code (None: still open)."""
    ledger = Ledger.open(state)
    for at_s, (name, playbook, code) in enumerate(runs):
        ledger.begin(
            name, server="glm5", playbook=playbook, at_s=at_s, who="ops", reason=None, inputs={}
        )
        if code is not None:
            ledger.finish(
                name, at_s=at_s + 0.5, outcome="crashed" if code else "done", exit_code=code,
                signature="shape-mismatch:ab12" if code else None, document={},
            )  # fmt: skip
    ledger.close()


def seen(state: ServerState) -> Overview:
    view = ServerView("glm5", "gpu1", 30000, Judgement(state, "no process of it"), None, "gpu1")
    return Overview((), (view,))


def test_a_crash_is_told_under_a_stopped_server(tmp_path: Path) -> None:
    """Stopped alone does not say why; the evidence taken since does not hide it."""
    record(tmp_path, ("r1", "restart", 60), ("r2", "evidence", 0))
    kept = tmp_path / "runs" / "r1" / "server.log"
    kept.parent.mkdir(parents=True)
    kept.write_text("x\n")
    overview = seen(ServerState.STOPPED)
    before = sorted(tmp_path.iterdir())

    tell(tmp_path, overview)

    assert sorted(tmp_path.iterdir()) == before
    assert (
        "last run r1 failed (exit 60): shape-mismatch:ab12; next: opsctl show r1, opsctl diagnose r1"
        in text_of(overview)
    )
    told = document_of(overview, None).data["servers"][0]["last_failed_run"]
    assert (told["run"], told["exit_code"], told["log_kept"]) == ("r1", 60, True)


def test_a_run_without_a_kept_log_is_not_said_to_be_diagnosed(tmp_path: Path) -> None:
    """The command that is named has to work."""
    record(tmp_path, ("r1", "restart", 50))

    found = last_failed_run(tmp_path, "glm5")

    assert found is not None
    assert "diagnose" not in found.describe()


@pytest.mark.parametrize(
    "newer", [("r2", "stop", 0), ("r2", "restart", None)], ids=["passed", "open"]
)
def test_a_newer_run_that_did_not_fail_is_no_news(
    tmp_path: Path, newer: tuple[str, str, int | None]
) -> None:
    """Stopped on purpose, or being restarted right now."""
    record(tmp_path, ("r1", "restart", 60), newer)

    assert last_failed_run(tmp_path, "glm5") is None
    assert last_failed_run(tmp_path, "other") is None


def test_what_a_run_that_goes_on_has_written_is_read(tmp_path: Path) -> None:
    """It may stand in the WAL only."""
    ledger = Ledger.open(tmp_path)
    record(tmp_path, ("r1", "restart", 60))

    found = last_failed_run(tmp_path, "glm5")
    ledger.close()

    assert found is not None


def test_no_ledger_or_a_broken_one_is_no_error_and_nothing_is_made(tmp_path: Path) -> None:
    """Status works without the ledger, and leaves nothing behind."""
    assert last_failed_run(tmp_path, "glm5") is None
    assert list(tmp_path.iterdir()) == []

    (tmp_path / "ledger.sqlite").write_text("no database\n" * 200)

    assert last_failed_run(tmp_path, "glm5") is None


def test_a_server_that_runs_costs_no_look_at_the_ledger(tmp_path: Path) -> None:
    """What serves needs no story of an older crash."""
    record(tmp_path, ("r1", "restart", 60))
    overview = seen(ServerState.LISTENING)

    tell(tmp_path, overview)

    assert "last run" not in text_of(overview)
    assert document_of(overview, None).data["servers"][0]["last_failed_run"] is None


def test_the_look_loads_no_sqlalchemy(tmp_path: Path) -> None:
    """Status stays as fast as it is."""
    record(tmp_path, ("r1", "restart", 60))
    code = (
        "import sys; from pathlib import Path; from opsctl.last_run import last_failed_run; "
        "print(last_failed_run(Path(sys.argv[1]), 'glm5').run, 'sqlalchemy' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60
    )

    assert done.stdout.split() == ["r1", "False"], done.stderr


def test_a_run_without_a_crash_tells_the_step_that_ended_it(tmp_path: Path) -> None:
    """`failed` alone says nothing that the exit code does not."""
    ledger = Ledger.open(tmp_path)
    ledger.begin(
        "r1", server="glm5", playbook="restart", at_s=1.0, who="ops", reason=None, inputs={}
    )
    held = {"findings": [{"code": "held", "text": "foreign pid 7 holds 4096 MiB"}]}
    for position, (step, outcome, body) in enumerate(
        [("stop", "done", {}), ("gpu-memory", "failed", held), ("record", "done", {})]
    ):
        turn = ledger.begin_step("r1", position, step, "read", 2.0 + position)
        ledger.end_step(
            "r1", position, turn, at_s=3.0 + position, outcome=outcome, changed=False, body=body
        )
    ledger.finish("r1", at_s=9.0, outcome="failed", exit_code=20, signature=None, document={})
    ledger.close()

    found = last_failed_run(tmp_path, "glm5")

    assert found is not None
    assert found.why == "gpu-memory: foreign pid 7 holds 4096 MiB"
    assert "failed (exit 20): gpu-memory: foreign pid 7 holds 4096 MiB; next:" in found.describe()
