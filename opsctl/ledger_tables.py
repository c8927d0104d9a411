"""The tables of the ledger, and how one version of them becomes the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

meta = sa.MetaData()
version = sa.Table("schema_version", meta, sa.Column("version", sa.Integer, nullable=False))
runs = sa.Table(
    "runs",
    meta,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("server", sa.Text, nullable=False),
    sa.Column("playbook", sa.Text, nullable=False),
    sa.Column("started_s", sa.Float, nullable=False),
    sa.Column("ended_s", sa.Float),
    sa.Column("outcome", sa.Text),  # NULL while the run is open
    sa.Column("exit_code", sa.Integer),
    sa.Column("reason", sa.Text),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("fingerprint", sa.Text),
    sa.Column("signature", sa.Text),
    sa.Column(
        "inputs", sa.Text, nullable=False
    ),  # JSON: playbook inputs and options, to go on with
    sa.Column("facts", sa.Text),  # JSON: content of the attempt, facts before and after
    sa.Column("document", sa.Text),  # JSON: what the command printed at its end
    sa.Index("runs_by_start", "started_s"),
    sa.Index("runs_by_server", "server", "started_s"),
    sa.Index("runs_by_signature", "signature"),
)
steps = sa.Table(
    "steps",
    meta,
    sa.Column("run", sa.Text, sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column(
        "turn", sa.Integer, primary_key=True
    ),  # 0 the first time, +1 for each resume or retry
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("effect", sa.Text, nullable=False),
    sa.Column("started_s", sa.Float, nullable=False),
    sa.Column("ended_s", sa.Float),
    sa.Column("outcome", sa.Text),  # NULL: begun, and its end was never seen
    sa.Column("changed", sa.Boolean),
    sa.Column("body", sa.Text),  # JSON: findings and data
)
notes = sa.Table(
    "notes",
    meta,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("run", sa.Text, sa.ForeignKey("runs.id"), nullable=False, index=True),
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Column("code", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)
attempts = sa.Table(
    "attempts",
    meta,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("server", sa.Text, nullable=False, index=True),
    sa.Column("fingerprint", sa.Text, nullable=False, index=True),
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)

Migration = Callable[[sa.Connection], None]
# One function for each version of the schema, in order; never change one that was released, add the next.
MIGRATIONS: tuple[Migration, ...] = (meta.create_all,)


def make_durable(connection: Any, _record: Any) -> None:
    """Make SQLite keep what it acknowledged, also through a power cut: WAL with an fsync at each commit."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
