"""What the ledger keeps, and what it says when it cannot."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from opsctl import ledger_tables as tables
from opsctl.domain.fingerprint import Attempt, AttemptOutcome, Content
from opsctl.errors import ConfigError, UsageError
from opsctl.ledger import Ledger, LedgerError, _mend


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(tmp_path)
    yield opened
    opened.close()


def begin(ledger: Ledger, run: str, at_s: float = 10.0, server: str = "glm5") -> None:
    ledger.begin(
        run,
        server=server,
        playbook="restart",
        at_s=at_s,
        who="me@here",
        reason="why",
        inputs={"a": 1},
    )


def test_a_step_that_never_ended_is_seen_as_begun(ledger: Ledger) -> None:
    """The intent is written before the act: after a kill -9 the ledger shows what may be half done."""
    begin(ledger, "r1")

    ledger.begin_step("r1", 3, "stop", "destroy", 11.0)

    found = ledger.find("r1")
    assert found.run.outcome is None
    assert [(s.name, s.outcome, s.turn) for s in found.steps] == [("stop", None, 0)]


def test_a_step_done_again_keeps_the_first_turn(ledger: Ledger) -> None:
    """A resume adds a turn; what the cut run wrote stays."""
    begin(ledger, "r1")
    ledger.begin_step("r1", 3, "stop", "destroy", 11.0)

    turn = ledger.begin_step("r1", 3, "stop", "destroy", 20.0)
    ledger.end_step("r1", 3, turn, at_s=21.0, outcome="done", changed=True, body={"data": {"x": 1}})

    steps = ledger.find("r1").steps
    assert [(s.turn, s.outcome) for s in steps] == [(0, None), (1, "done")]
    assert steps[1].body == {"data": {"x": 1}}


def test_what_was_written_is_on_disk_for_another_process(ledger: Ledger, tmp_path: Path) -> None:
    """A write is committed when the call returns."""
    begin(ledger, "r1")

    with sqlite3.connect(tmp_path / "ledger.sqlite") as other:
        rows = other.execute("select id, reason from runs").fetchall()
    other.close()

    assert rows == [("r1", "why")]


def test_every_commit_is_synced(ledger: Ledger) -> None:
    """WAL with synchronous FULL (2): a power cut loses nothing that was acknowledged."""
    with ledger._engine.connect() as connection:
        assert connection.execute(sa.text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(sa.text("PRAGMA synchronous")).scalar() == 2


def test_history_filters(ledger: Ledger) -> None:
    """By server, by failure, by the beginning of a signature; newest first; open runs apart."""
    for number, (server, code, signature) in enumerate(
        [("a", 0, None), ("a", 60, "3f2a99"), ("b", 60, "77aa00")]
    ):
        begin(ledger, f"r{number}", at_s=float(number), server=server)
        ledger.finish(
            f"r{number}", at_s=9.0, outcome="x", exit_code=code, signature=signature, document={}
        )
    begin(ledger, "r9", at_s=9.0)

    assert [r.id for r in ledger.runs()] == ["r9", "r2", "r1", "r0"]
    assert [r.id for r in ledger.runs(server="a")] == ["r1", "r0"]
    assert [r.id for r in ledger.runs(failed=True)] == ["r2", "r1"]
    assert [r.id for r in ledger.runs(signature="3f2a")] == ["r1"]
    assert [r.id for r in ledger.runs(open_only=True)] == ["r9"]


def test_find_takes_a_part_of_the_id_that_fits_once(ledger: Ledger) -> None:
    """Nobody types a whole run id; a part that fits two runs is refused with both named."""
    begin(ledger, "20261129-1900-aaaa", at_s=1.0)
    begin(ledger, "20261129-1901-bbbb", at_s=2.0)

    assert ledger.find("bbbb").run.id == "20261129-1901-bbbb"
    assert ledger.find("last").run.id == "20261129-1901-bbbb"
    with pytest.raises(UsageError, match="fits 2 runs"):
        ledger.find("20261129")
    with pytest.raises(UsageError, match="no run 'zzz'"):
        ledger.find("zzz")


def test_an_attempt_is_kept_once_per_run(ledger: Ledger) -> None:
    """A resume records the attempt of its run again; it stays one attempt."""
    content = Content("sglang", "0.5.12", ("--tp", "8"), "H200")
    ledger.add_attempt(Attempt("r1", "a", 1.0, AttemptOutcome.INCONCLUSIVE, content))
    ledger.add_attempt(Attempt("r1", "a", 2.0, AttemptOutcome.CRASHED, content, "3f2a"))

    assert [(a.run, a.outcome) for a in ledger.attempts()] == [("r1", AttemptOutcome.CRASHED)]


def test_a_full_disk_is_one_clear_refusal(tmp_path: Path) -> None:
    """SQLite's 'database or disk is full' becomes exit 50, before anything is changed."""
    ledger = Ledger.open(tmp_path)
    ledger.close()
    sa.event.listen(
        ledger._engine, "connect", lambda raw, _: raw.execute("PRAGMA max_page_count = 1")
    )

    with pytest.raises(LedgerError, match="full") as caught:
        begin(ledger, "r1", server="a" * 100_000)

    ledger.close()
    assert caught.value.exit_code == 50


def test_too_little_room_is_refused_beforehand(ledger: Ledger) -> None:
    """The room is checked when the run begins, not when it is needed."""
    with pytest.raises(LedgerError, match="MiB are free"):
        ledger.ensure_room(wanted_bytes=1 << 62)


def test_an_older_schema_is_migrated_and_keeps_its_rows(tmp_path: Path) -> None:
    """A new version runs only the migrations that are missing."""
    old = Ledger.open(tmp_path)
    begin(old, "r1")
    old.close()

    def add_column(connection: sa.Connection) -> None:
        connection.execute(sa.text("ALTER TABLE runs ADD COLUMN colour TEXT"))

    engine = sa.create_engine(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    new = Ledger(engine, "here", (*tables.MIGRATIONS, add_column))

    with engine.connect() as connection:
        assert connection.execute(sa.text("select id, colour from runs")).all() == [("r1", None)]
        assert connection.execute(sa.text("select version from schema_version")).all() == [(2,)]
    new.close()


def test_a_newer_schema_is_left_alone(tmp_path: Path) -> None:
    """An old opsctl must not write into what a newer one made."""
    ledger = Ledger.open(tmp_path)
    with ledger._engine.begin() as connection:
        connection.execute(sa.text("update schema_version set version = 99"))
    ledger.close()

    with pytest.raises(ConfigError, match="schema 99"):
        Ledger.open(tmp_path)


def test_several_that_begin_in_a_new_folder_at_once_share_one_ledger(tmp_path: Path) -> None:
    """The first jobs of a CI matrix make it together: no table is made twice, and no run is lost."""
    script = (
        "import sys; from pathlib import Path; from opsctl.ledger import Ledger; "
        "sys.stdin.readline(); ledger = Ledger.open(Path(sys.argv[1])); "
        "ledger.begin(sys.argv[2], server='s', playbook='p', at_s=1.0, who='w', reason=None, inputs={})"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), f"r{number}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(6)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
    said = [child.communicate(timeout=60)[1] for child in children]

    assert said == [b""] * 6
    ledger = Ledger.open(tmp_path)
    assert sorted(row.id for row in ledger.runs()) == [f"r{number}" for number in range(6)]
    ledger.close()


def test_a_damaged_ledger_is_told_with_the_way_out(tmp_path: Path) -> None:
    """Not `make room`: the file is moved aside, and the hosts' own records know what failed."""
    (tmp_path / "ledger.sqlite").write_bytes(b"\xff" * 4096)
    with pytest.raises(LedgerError, match="not a database") as caught:
        Ledger.open(tmp_path)
    assert f"mv {tmp_path}/ledger.sqlite" in (caught.value.next_step or "")
    assert str(tmp_path) in caught.value.message


def test_a_ledger_that_another_program_holds_is_told_as_that() -> None:
    """Waiting for it is bounded; then the next step says how to see who it is."""
    assert "fuser /s/ledger.sqlite" in _mend("database is locked", "/s/ledger.sqlite")
