"""Locks with their holders, and which snapshots may be deleted."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.domain.container import DAY_S, find_lock, prunable, snapshot_name

NOW = 1_800_000_000.0


def snap(name: str, age_days: float) -> dict[str, Any]:
    return {"name": name, "snaptime": int(NOW - age_days * DAY_S)}


SNAPSHOTS = [
    snap("opsctl-a", 30),
    snap("before-upgrade", 20),
    snap("opsctl-b", 10),
    snap("opsctl-c", 5),
    snap("opsctl-new", 0),
]


@pytest.mark.parametrize(
    ("keep", "days", "gone"),
    [
        (None, None, []),
        (2, None, ["opsctl-a", "opsctl-b"]),
        (9, None, []),
        (None, 7, ["opsctl-a", "opsctl-b"]),
        (2, 20, ["opsctl-a"]),
        (3, 1, ["opsctl-a"]),
        (1, 0, ["opsctl-a", "opsctl-b", "opsctl-c"]),
    ],
)
def test_only_own_snapshots_go_by_count_and_age(
    keep: int | None, days: float | None, gone: list[str]
) -> None:
    """Somebody else's snapshot never goes, nor the one just taken; both rules must agree."""
    older = None if days is None else days * DAY_S

    found = prunable(SNAPSHOTS, keep=keep, older_than_s=older, now_s=NOW, never="opsctl-new")

    assert found == gone


def test_the_new_snapshot_stays_although_the_nodes_clock_is_ahead() -> None:
    """An older one that carries a later time must not push out the one just taken."""
    ahead = [*SNAPSHOTS, snap("opsctl-ahead", -1)]

    found = prunable(ahead, keep=1, older_than_s=None, now_s=NOW, never="opsctl-new")

    assert "opsctl-new" not in found


def test_a_snapshot_without_a_time_is_left_alone() -> None:
    """What is unknown is not old."""
    assert prunable([{"name": "opsctl-x"}], keep=None, older_than_s=0, now_s=NOW) == []


def test_names_sort_by_time_and_fit_proxmox() -> None:
    """At most 40 characters, with the prefix that pruning goes by."""
    name = snapshot_name(NOW)

    assert name == "opsctl-20270115-080000"
    assert len(name) <= 40


def test_a_lock_names_the_task_of_its_type() -> None:
    """A backup's lock is vzdump's, whatever else runs."""
    tasks = [
        {"type": "vzstart", "upid": "UPID:1", "user": "a@pam", "starttime": NOW - 5},
        {"type": "vzdump", "upid": "UPID:2", "user": "root@pam", "starttime": NOW - 720},
    ]

    lock = find_lock("backup", tasks)

    assert lock is not None
    said = lock.describe(NOW)
    assert "vzdump of root@pam" in said
    assert "12 min" in said
    assert "never clears a lock" in lock.advice(129)


def test_a_lock_without_a_task_is_said_to_be_without() -> None:
    """A killed task leaves its lock; clearing it is the operator's, by hand."""
    lock = find_lock("backup", [])

    assert lock is not None
    assert "no running task" in lock.describe(NOW)
    assert "pct unlock 129" in lock.advice(129)
    assert find_lock(None, []) is None
