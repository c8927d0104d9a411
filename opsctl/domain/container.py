"""Containers, purely: who holds a lock, which snapshots may go, how both are said."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opsctl.output import Finding
from opsctl.records import dataclass

OWN_PREFIX = "opsctl-"
DAY_S = 86400.0
# the lock that Proxmox writes into a configuration -> the type of the task that sets it
TASK_OF_LOCK = {
    "backup": "vzdump",
    "create": "vzcreate",
    "destroyed": "vzdestroy",
    "disk": "move_volume",
    "migrate": "vzmigrate",
    "mounted": "vzmount",
    "rollback": "vzrollback",
    "snapshot": "vzsnapshot",
    "snapshot-delete": "vzdelsnapshot",
}


@dataclass(frozen=True, slots=True)
class Holder:
    """The task that most likely holds a lock."""

    upid: str
    type: str
    user: str
    started_s: float


@dataclass(frozen=True, slots=True)
class Lock:
    """The lock in a container's configuration. ``holder`` None: no running task accounts for it.

    ``unseen`` names the privilege that our login lacks to see other people's tasks: nothing is known of
    the holder then.
    """

    why: str
    holder: Holder | None
    unseen: str | None = None

    def describe(self, now_s: float) -> str:
        """Say what holds it, since when and for whom."""
        if self.unseen is not None:
            return f"locked ({self.why}); by which task is not known: the login lacks {self.unseen}"
        if self.holder is None:
            return f"locked ({self.why}), and no running task of the node accounts for it"
        age = max(0.0, now_s - self.holder.started_s)
        clock = time.strftime("%H:%M:%S UTC", time.gmtime(self.holder.started_s))
        return (
            f"locked ({self.why}) by task {self.holder.type} of {self.holder.user}, "
            f"running since {clock} ({_age(age)})"
        )

    def advice(self, vmid: int) -> str:
        """Say what to do about it; never to let opsctl clear it."""
        if self.unseen is not None:
            return f"look at the node's task list, or give the login {self.unseen}"
        if self.holder is None:
            return (
                "look at the node's task list and for a task that was killed; only when nothing works "
                f"on the container, on the node: pct unlock {vmid} (opsctl never clears a lock)"
            )
        return (
            f"wait for that task: pvenode task log {self.holder.upid}; opsctl never clears a lock"
        )


def find_lock(why: str | None, tasks: Iterable[Mapping[str, Any]]) -> Lock | None:
    """Return the lock with the task that fits it: of the lock's own type, the oldest one."""
    if not why:
        return None
    fitting = [task for task in tasks if task.get("type") == TASK_OF_LOCK.get(why)]
    if not fitting:
        return Lock(why, None)
    task = min(fitting, key=lambda item: float(item.get("starttime") or 0))
    user = str(task.get("user") or "unknown")
    if task.get("tokenid"):
        user += f"!{task['tokenid']}"
    holder = Holder(
        str(task.get("upid")), str(task.get("type")), user, float(task.get("starttime") or 0)
    )
    return Lock(why, holder)


def forced_finding(vmid: int, timeout_s: int) -> Finding:
    """Say that a container did not go by itself."""
    text = f"it did not shut down within {timeout_s} s, and was stopped at once, as asked"
    return Finding("container-forced", str(vmid), text)


def ha_state(status: Mapping[str, Any]) -> str | None:
    """Return the HA manager's state of a container (started, stopped, error, ...); None: not managed."""
    known = status.get("ha") or {}
    return str(known.get("state") or "not told") if known.get("managed") else None


def is_own(snapshot: Mapping[str, Any]) -> bool:
    """Say whether opsctl made the snapshot: by its name, which nothing else uses."""
    return str(snapshot.get("name", "")).startswith(OWN_PREFIX)


def snapshot_name(now_s: float) -> str:
    """Return the name of a snapshot taken now: opsctl's prefix, sortable by time."""
    return time.strftime(f"{OWN_PREFIX}%Y%m%d-%H%M%S", time.gmtime(now_s))


def prunable(
    snapshots: Sequence[Mapping[str, Any]],
    *,
    keep: int | None,
    older_than_s: float | None,
    now_s: float,
    never: str | None = None,
) -> list[str]:
    """Return the names of opsctl's own snapshots that may be deleted, oldest first.

    Args:
        keep: the newest ``keep`` of them stay.
        older_than_s: only those older than this go; with ``keep`` both must agree. Without either: none.
        never: the name of the snapshot just taken, which stays in any case.
    """
    if keep is None and older_than_s is None:
        return []
    own = [item for item in snapshots if is_own(item) and item.get("snaptime") is not None]
    own.sort(key=lambda item: (float(item["snaptime"]), str(item["name"])))
    gone = own[: max(0, len(own) - keep)] if keep is not None else own
    if older_than_s is not None:
        gone = [item for item in gone if now_s - float(item["snaptime"]) > older_than_s]
    return [str(item["name"]) for item in gone if item["name"] != never]


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
