"""The ledger: runs, steps, attempts. The intent is on disk before the act, the outcome after it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DBAPIError

from opsctl import ledger_tables as tables
from opsctl import stop_record
from opsctl.domain.fingerprint import Attempt
from opsctl.domain.runs import NoteRow, RunDetail, RunRow, StepRow, why_of
from opsctl.errors import ConfigError, OpsctlError, SafetyRefusal, UsageError
from opsctl.output import well_formed

FREE_BYTES_WANTED = (
    16 << 20
)  # a run writes well under 1 MiB; the rest is for the WAL and for others


class LedgerError(SafetyRefusal):
    """The ledger cannot be written: nothing is changed that could not be recorded."""

    code = "ledger-not-writable"


class Ledger:
    """Runs and attempts in one database. Every write is on disk when the call returns."""

    def __init__(
        self,
        engine: sa.Engine,
        where: str,
        migrations: Sequence[tables.Migration] = tables.MIGRATIONS,
    ) -> None:
        self._engine = engine
        self._where = where
        with self._guard():
            self._migrate(migrations)

    @classmethod
    def open(cls, state: Path) -> Ledger:
        """Open the ledger in the state folder, making it on first use.

        Raises:
            LedgerError: exit 50, if the folder or the disk cannot take it.
            ConfigError: exit 10, if a newer opsctl wrote it.
        """
        path = state / "ledger.sqlite"
        engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": 10.0})
        sa.event.listen(engine, "connect", tables.make_durable)
        ledger = cls(engine, str(path))
        ledger.take_over(state)
        return ledger

    def take_over(self, state: Path) -> None:
        """Take over what stops wrote down (see ``stop_record``); what cannot be taken stays for the next."""
        try:
            for path, run, body in stop_record.kept(state):
                if body:
                    self._take(run, body)
                path.unlink(missing_ok=True)
        except (LedgerError, OSError):
            pass  # a disk that is full or read-only: what the ledger holds can still be read

    def _take(self, run: str, body: Mapping[str, Any]) -> None:
        """Insert the run of a stop if it is new, and its outcome if it has one; both may be done twice."""
        order = {"command": body["verb"], "playbook": "stop", "given": {}, "deadline_s": None}
        begun = {
            "id": run,
            "server": body["server"],
            "playbook": "stop",
            "started_s": body["at_s"],
            "who": body["who"],
            "reason": f"opsctl {body['verb']}",
            "inputs": _dump(order),
        }
        self._write(insert(tables.runs).values(**begun).on_conflict_do_nothing())
        if "outcome" in body:
            self.finish(
                run,
                at_s=body["ended_s"],
                outcome=body["outcome"],
                exit_code=body["exit_code"],
                signature=None,
                document=body["document"],
            )

    def close(self) -> None:
        self._engine.dispose()

    def ensure_room(self, wanted_bytes: int = FREE_BYTES_WANTED) -> None:
        """Check before anything is changed that there is room to write it down. Raises LedgerError."""
        place = Path(self._where)
        if not place.exists():
            return  # not a file: the database server minds its own disk
        stat = os.statvfs(place.parent)
        free = stat.f_bavail * stat.f_frsize
        if free < wanted_bytes:
            raise LedgerError(
                f"only {free >> 20} MiB are free where the ledger is; a run wants {wanted_bytes >> 20}",
                subject=self._where,
                next_step="make room there, or name another folder with --state",
            )

    def begin(
        self,
        run: str,
        *,
        server: str,
        playbook: str,
        at_s: float,
        who: str,
        reason: str | None,
        inputs: Mapping[str, Any],
    ) -> None:
        """Write down that a run begins."""
        self._write(
            tables.runs.insert().values(
                id=run,
                server=server,
                playbook=playbook,
                started_s=at_s,
                who=who,
                reason=reason,
                inputs=_dump(inputs),
            )
        )

    def begin_step(self, run: str, position: int, name: str, effect: str, at_s: float) -> int:
        """Write down that a step is about to be done; return its turn."""
        key = (tables.steps.c.run == run) & (tables.steps.c.position == position)
        with self._guard(), self._engine.begin() as connection:
            last = connection.execute(
                sa.select(sa.func.max(tables.steps.c.turn)).where(key)
            ).scalar()
            turn = 0 if last is None else int(last) + 1
            connection.execute(
                tables.steps.insert().values(
                    run=run, position=position, turn=turn, name=name, effect=effect, started_s=at_s
                )
            )
        return turn

    def end_step(
        self,
        run: str,
        position: int,
        turn: int,
        *,
        at_s: float,
        outcome: str,
        changed: bool,
        body: Mapping[str, Any],
    ) -> None:
        """Write down how a step ended."""
        key = (
            (tables.steps.c.run == run)
            & (tables.steps.c.position == position)
            & (tables.steps.c.turn == turn)
        )
        values = {"ended_s": at_s, "outcome": outcome, "changed": changed, "body": _dump(body)}
        self._write(tables.steps.update().where(key).values(**values))

    def note(self, run: str, at_s: float, code: str, body: Mapping[str, Any]) -> None:
        """Write down one fact inside a step."""
        self._write(tables.notes.insert().values(run=run, at_s=at_s, code=code, body=_dump(body)))

    def set_facts(self, run: str, facts: Mapping[str, Any], fingerprint: str | None) -> None:
        """Keep what the run found out: versions, patches, GPU model, content, facts before and after."""
        values = {"facts": _dump(facts), "fingerprint": fingerprint}
        self._write(tables.runs.update().where(tables.runs.c.id == run).values(**values))

    def finish(
        self,
        run: str,
        *,
        at_s: float,
        outcome: str,
        exit_code: int,
        signature: str | None,
        document: Mapping[str, Any],
    ) -> None:
        """Write down how the run ended."""
        values = {
            "ended_s": at_s,
            "outcome": outcome,
            "exit_code": exit_code,
            "signature": signature,
            "document": _dump(document),
        }
        self._write(tables.runs.update().where(tables.runs.c.id == run).values(**values))

    def add_attempt(self, attempt: Attempt) -> None:
        """Keep an attempt; a second record of the same run replaces the first."""
        with self._guard(), self._engine.begin() as connection:
            connection.execute(tables.attempts.delete().where(tables.attempts.c.run == attempt.run))
            connection.execute(
                tables.attempts.insert().values(
                    run=attempt.run,
                    server=attempt.server,
                    fingerprint=attempt.fingerprint,
                    at_s=attempt.at_s,
                    body=_dump(attempt.to_json()),
                )
            )

    def attempts(self) -> list[Attempt]:
        """Return every attempt known here, oldest first."""
        query = sa.select(tables.attempts.c.body).order_by(tables.attempts.c.at_s)
        with self._guard(), self._engine.connect() as connection:
            return [Attempt.from_json(json.loads(row.body)) for row in connection.execute(query)]

    def runs(
        self,
        *,
        server: str | None = None,
        failed: bool = False,
        signature: str | None = None,
        open_only: bool = False,
        limit: int | None = None,
    ) -> list[RunRow]:
        """Return runs, newest first; ``signature`` matches from its beginning."""
        query = self._query(server=server, failed=failed, signature=signature, open_only=open_only)
        query = query.order_by(tables.runs.c.started_s.desc(), tables.runs.c.id.desc()).limit(limit)
        with self._guard(), self._engine.connect() as connection:
            return [RunRow(*row) for row in connection.execute(query)]

    @staticmethod
    def _query(
        *,
        server: str | None = None,
        failed: bool = False,
        signature: str | None = None,
        open_only: bool = False,
    ) -> sa.Select[Any]:
        query = sa.select(*(tables.runs.c[name] for name in RunRow.__slots__))
        if server is not None:
            query = query.where(tables.runs.c.server == server)
        if failed:
            query = query.where(
                (tables.runs.c.exit_code.is_not(None)) & (tables.runs.c.exit_code != 0)
            )
        if signature is not None:
            query = query.where(tables.runs.c.signature.startswith(signature, autoescape=True))
        if open_only:
            query = query.where(tables.runs.c.outcome.is_(None))
        return query

    def whys(self, rows: Sequence[RunRow]) -> dict[str, str]:
        """Return for each run of these that did not end well what stopped it: the step, and its words."""
        found: dict[str, str] = {}
        steps, runs, notes = tables.steps.c, tables.runs.c, tables.notes.c
        with self._guard(), self._engine.connect() as connection:
            for row in (row for row in rows if row.exit_code):
                resumed = sa.select(sa.func.max(notes.at_s)).where(
                    (notes.run == row.id) & (notes.code == "resumed")
                )
                done = connection.execute(
                    sa.select(steps.name, steps.outcome, steps.body)
                    .where(steps.run == row.id)
                    .where(steps.started_s >= (connection.execute(resumed).scalar() or 0.0))
                    .order_by(steps.started_s, steps.position)
                ).all()
                document = connection.execute(
                    sa.select(runs.document).where(runs.id == row.id)
                ).scalar()
                why = why_of(
                    row.exit_code,
                    [(step.name, step.outcome, _load(step.body)) for step in done],
                    json.loads(document) if document else {},
                )
                if why:
                    found[row.id] = why
        return found

    def count(self, **wanted: Any) -> int:
        """Return how many runs there are; the arguments are those of `runs`."""
        query = sa.select(sa.func.count()).select_from(self._query(**wanted).subquery())
        with self._guard(), self._engine.connect() as connection:
            return int(connection.execute(query).scalar_one())

    def find(self, run: str) -> RunDetail:
        """Return one run by its id, by a part of it that fits one run only, or ``last``.

        Raises:
            UsageError: there is no such run, or more than one.
        """
        return self.detail(self._find_row(run))

    def detail(self, row: RunRow) -> RunDetail:
        """Return everything about the run of a row."""
        with self._guard(), self._engine.connect() as connection:
            rest = connection.execute(
                sa.select(tables.runs.c.inputs, tables.runs.c.facts, tables.runs.c.document).where(
                    tables.runs.c.id == row.id
                )
            ).one()
            steps = connection.execute(
                sa.select(*(tables.steps.c[name] for name in StepRow.__slots__))
                .where(tables.steps.c.run == row.id)
                .order_by(tables.steps.c.started_s, tables.steps.c.position, tables.steps.c.turn)
            ).all()
            notes = connection.execute(
                sa.select(*(tables.notes.c[name] for name in NoteRow.__slots__))
                .where(tables.notes.c.run == row.id)
                .order_by(tables.notes.c.number)
            ).all()
        return RunDetail(
            row,
            _load(rest.inputs),
            _load(rest.facts),
            json.loads(rest.document) if rest.document else None,
            tuple(_step_row(step) for step in steps),
            tuple(NoteRow(note.at_s, note.code, _load(note.body)) for note in notes),
        )

    def _find_row(self, run: str) -> RunRow:
        rows = self.runs()
        if run == "last" and rows:
            return rows[0]
        found = [row for row in rows if row.id == run] or [row for row in rows if run in row.id]
        if len(found) == 1:
            return found[0]
        if found:
            some = ", ".join(row.id for row in found[:4])
            more = f" and {len(found) - 4} more" if len(found) > 4 else ""
            step = "give more of its id; `opsctl history --all` lists them, `last` is the newest"
            text = f"'{run}' fits {len(found)} runs: {some}{more}"
            raise UsageError(text, subject=run, next_step=step)
        raise UsageError(
            f"there is no run '{run}'", subject=run, next_step="list them with `opsctl history`"
        )

    def _migrate(self, migrations: Sequence[tables.Migration]) -> None:
        with self._engine.connect() as connection:
            if self._schema(connection) == len(migrations):
                return
        with self._engine.begin() as connection:
            if self._engine.dialect.name == "sqlite":
                # alone from here, also before the first table: several begin in a new folder at once
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            tables.version.create(connection, checkfirst=True)
            have = connection.execute(sa.select(tables.version.c.version)).scalar()
            done = int(have or 0)
            if done > len(migrations):
                raise ConfigError(
                    f"the ledger has schema {done}, this opsctl knows up to {len(migrations)}",
                    subject=self._where,
                    next_step="use the newer opsctl that wrote it, or another folder with --state",
                    code="ledger-newer",
                )
            if done == len(migrations):
                return
            for migration in migrations[done:]:
                migration(connection)
            connection.execute(tables.version.delete())
            connection.execute(tables.version.insert().values(version=len(migrations)))

    @staticmethod
    def _schema(connection: sa.Connection) -> int | None:
        """Return the version of the schema that stands there; None in a new database."""
        if not sa.inspect(connection).has_table(tables.version.name):
            return None
        return connection.execute(sa.select(tables.version.c.version)).scalar()

    def _write(self, statement: sa.Executable) -> None:
        with self._guard(), self._engine.begin() as connection:
            connection.execute(statement)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Turn what the database says into one sentence."""
        try:
            yield
        except OpsctlError:
            raise
        except DBAPIError as error:
            raise LedgerError(
                f"the ledger {self._where} cannot be used: {error.orig}",
                subject=self._where,
                next_step=_mend(str(error.orig), self._where),
            ) from error


def _mend(said: str, where: str) -> str:
    """Return what helps against what the database said."""
    if "not a database" in said or "malformed" in said:
        return (
            f"it is damaged: mv {where} {where}.damaged; a new one is made, and what failed stays known "
            "from the hosts' own records"
        )
    if "locked" in said:
        return f"another program holds it, see who: fuser {where}; then run this again"
    return "make room there or mend its rights, or name another folder with --state"


def _dump(body: Mapping[str, Any]) -> str:
    return well_formed(json.dumps(body, ensure_ascii=False, separators=(",", ":"), default=str))


def _load(text: str | None) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(text) if text else {}
    return loaded


def _step_row(row: Sequence[Any]) -> StepRow:
    return StepRow(*row[:-1], _load(row[-1]))  # type: ignore[call-arg, unused-ignore]
