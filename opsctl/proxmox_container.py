"""One container of one Proxmox node: its state, its lock, its tasks waited for to their end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opsctl.domain.container import find_lock
from opsctl.errors import CheckFailed, CouldNotTell, SafetyRefusal, TransportError
from opsctl.proxmox import BUSY, LOCKED, Api, PveError, advise
from opsctl.proxmox_ha import wait_for_ha
from opsctl.records import dataclass

if TYPE_CHECKING:
    from opsctl.domain.container import Lock

WARNINGS = re.compile(r"WARNINGS: (\d+)$")
BUSY_TASK = "task-busy"
LOG_PAGE, LOG_LINES = 500, 20_000
NODE_WORK_S = 120.0  # of the node itself around a container's shutdown
BUSY_TRIES = 3  # a task that got no lock has waited 10 s for it by itself


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a task ended: ``warnings`` counts what PVE warned of although the task was done."""

    upid: str
    warnings: int
    log_tail: tuple[str, ...]

    @property
    def by_ha(self) -> bool:
        """Say whether the task only asked the HA manager, which does the work by itself afterwards.

        Source: PVE::API2::LXC::Status: ``hastart`` and ``hastop`` end once ``ha-manager`` took the request.
        """
        return self.upid.split(":")[5:6] in (["hastart"], ["hastop"])


class Container:
    """One container of one node."""

    def __init__(self, api: Api, node: str, vmid: int) -> None:
        self.api = api
        self.node = node
        self.vmid = vmid

    @property
    def _path(self) -> str:
        return f"/nodes/{self.node}/lxc/{self.vmid}"

    def status(self) -> dict[str, Any]:
        """Return status/current: ``status`` (running, stopped), ``lock``, ``uptime``, ``name``."""
        answer: dict[str, Any] = self.api.call("GET", f"{self._path}/status/current")
        return answer

    def config(self) -> dict[str, Any]:
        """Return the container's configuration, without pending changes."""
        answer: dict[str, Any] = self.api.call("GET", f"{self._path}/config", {"current": 1})
        return answer

    def pending(self) -> list[str]:
        """Return the settings that a running container takes only at its next start."""
        rows = self.api.call("GET", f"{self._path}/pending") or []
        return [str(row["key"]) for row in rows if "pending" in row or row.get("delete")]

    def configure(self, settings: dict[str, str], digest: str | None) -> None:
        """Set settings of the configuration that has this digest.

        Raises:
            SafetyRefusal: locked, or changed meanwhile; PveError: another no.
        """
        wanted = {**settings, **({"digest": digest} if digest else {})}
        try:
            self._order("PUT", f"{self._path}/config", wanted)
        except PveError as error:
            if "modified configuration" not in error.text:
                raise
            raise SafetyRefusal(
                f"container {self.vmid} on {self.node}: its configuration was changed meanwhile",
                next_step="look at what changes it, then run this again",
                code="changed-meanwhile",
                subject=str(self.vmid),
            ) from error

    def act(
        self,
        verb: str,
        *,
        params: dict[str, Any] | None = None,
        timeout_s: float = 180.0,
        on_progress: Callable[[str], None] | None = None,
    ) -> TaskResult:
        """Start, stop or shutdown, and wait until the task has ended, and the HA manager where that does it.

        Raises:
            PveError: refused at once; SafetyRefusal: locked by another task; CheckFailed: the task
            failed; CouldNotTell: no end in time.
        """
        path, tries = f"{self._path}/status/{verb}", BUSY_TRIES
        end_s = time.monotonic() + timeout_s
        while True:
            try:
                upid = self._order("POST", path, params)
                result = self.wait(upid, timeout_s=timeout_s, on_progress=on_progress)
                break
            except CheckFailed as error:
                # these tasks take the configuration's lock first; without it they did nothing
                tries -= 1
                if error.code != BUSY_TASK or tries == 0:
                    raise
            if on_progress is not None:
                on_progress(f"container {self.vmid} is busy with another task; {verb} again")
        if result.by_ha:
            wait_for_ha(self, verb, end_s, on_progress)
        return result

    def shut_down(
        self,
        timeout_s: int,
        *,
        force: bool = False,
        limit_s: float | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> tuple[TaskResult, bool]:
        """Let the container's own init end it; returns the task, and whether it had to be stopped.

        Args:
            timeout_s: what the container may take; the node waits up to twice as long for its end.
            force: stop it at once when it has not ended by then. Without it nothing is killed.
            limit_s: how long the whole is waited for.

        Raises:
            CheckFailed: it did not end in time, and runs on.
        """
        left_s = 2 * timeout_s + NODE_WORK_S if limit_s is None else limit_s
        given = {"timeout": timeout_s, "forceStop": 0}
        try:
            done = self.act("shutdown", params=given, timeout_s=left_s, on_progress=on_progress)
        except CheckFailed as error:
            ended = error.code not in ("task-failed", "ha-not-done")
            if ended or self.status().get("status") != "running":
                raise
            if not force:
                raise self._did_not_end(timeout_s, error) from error
            return self.act("stop", timeout_s=left_s, on_progress=on_progress), True
        return done, False

    def _did_not_end(self, timeout_s: int, error: CheckFailed) -> CheckFailed:
        if "did not stop" not in error.message:
            return error
        vmid = self.vmid
        return CheckFailed(
            f"container {vmid} on {self.node} did not shut down within {timeout_s} s; it still runs, and "
            "nothing was killed",
            next_step=f"its init ignores the request, or waits for a process: opsctl ct exec {vmid} -- "
            f"ps -ef; then give it longer (--timeout), or pull its plug: opsctl ct stop {vmid}",
            code="did-not-shut-down",
            subject=str(vmid),
        )

    def _order(self, method: str, path: str, params: dict[str, Any] | None = None) -> Any:
        """Send an order, which starts a task; through pvesh its end can come as the answer.

        Raises:
            SafetyRefusal: exit 50, the container is locked by another task; PveError: another no.
        """
        try:
            return self.api.call(method, path, params)
        except PveError as error:
            if LOCKED.search(error.text):
                raise self._locked(error.text) from error
            raise
        except TransportError as error:
            if error.code not in ("pve-cut", "pve-timeout"):
                raise
            raise TransportError(
                f"{error.message}; whether the order arrived is not known",
                next_step=f"look before it is given again: opsctl ct status {self.vmid}",
                code=error.code,
                subject=error.subject,
            ) from error

    def _locked(self, text: str) -> SafetyRefusal:
        return SafetyRefusal(
            f"container {self.vmid} on {self.node}: {text}",
            next_step=advise(500, text),
            code="container-locked",
            subject=str(self.vmid),
        )

    def has_feature(self, feature: str) -> bool:
        """Ask whether the storage of every volume can do it: ``snapshot``, ``clone``, ``copy``."""
        answer = self.api.call("GET", f"{self._path}/feature", {"feature": feature}) or {}
        return str(answer.get("hasFeature", "")) in ("1", "True")

    def snapshots(self) -> list[dict[str, Any]]:
        """Return the snapshots, without the entry ``current`` that PVE adds."""
        answer = self.api.call("GET", f"{self._path}/snapshot") or []
        return [item for item in answer if item.get("name") != "current"]

    def snapshot(self, name: str, description: str, **waiting: Any) -> TaskResult:
        """Take a snapshot. PVE answers 'snapshot feature is not available' where the storage cannot."""
        wanted = {"snapname": name, "description": description}
        return self.wait(self._order("POST", f"{self._path}/snapshot", wanted), **waiting)

    def rollback(self, name: str, **waiting: Any) -> TaskResult:
        """Go back to a snapshot; the container is stopped by it."""
        return self.wait(self._order("POST", f"{self._path}/snapshot/{name}/rollback"), **waiting)

    def delete_snapshot(self, name: str, **waiting: Any) -> TaskResult:
        """Delete one snapshot."""
        return self.wait(self._order("DELETE", f"{self._path}/snapshot/{name}"), **waiting)

    def lock(self, status: dict[str, Any]) -> Lock | None:
        """Return the lock that a status shows, with the running task that accounts for it."""
        why = status.get("lock")
        if not why:
            return None
        tasks = self.running_tasks()
        if why == "backup":
            tasks = [*tasks, *self.running_backups()]
        found = find_lock(str(why), tasks)
        if found is not None and found.holder is None and not self._sees_all_tasks():
            return replace(found, unseen=f"Sys.Audit on /nodes/{self.node}")
        return found

    def _sees_all_tasks(self) -> bool:
        """Say whether the login sees other people's tasks: without Sys.Audit only its own are listed."""
        path = f"/nodes/{self.node}"
        try:
            held = self.api.call("GET", "/access/permissions", {"path": path}) or {}
        except PveError:
            return False
        # what is granted on a path above holds below, too, unless it is set not to propagate (0)
        levels = ("/", "/nodes", path)
        return any((held.get(level) or {}).get("Sys.Audit") for level in levels)

    def running_tasks(self) -> list[dict[str, Any]]:
        """Return the node's unfinished tasks of this container: who holds a lock, and since when."""
        tasks = self.api.call(
            "GET", f"/nodes/{self.node}/tasks", {"vmid": self.vmid, "source": "active"}
        )
        return [task for task in tasks or [] if not task.get("endtime")]

    def running_backups(self) -> list[dict[str, Any]]:
        """Return the node's unfinished backups of several guests: these name no container."""
        tasks = self.api.call(
            "GET", f"/nodes/{self.node}/tasks", {"typefilter": "vzdump", "source": "active"}
        )
        return [task for task in tasks or [] if not task.get("endtime") and not task.get("id")]

    def wait(
        self,
        upid: Any,
        *,
        timeout_s: float = 180.0,
        on_progress: Callable[[str], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> TaskResult:
        """Wait for a task. Only OK and WARNINGS count as done; a time-out is not success."""
        if not isinstance(upid, str) or not upid.startswith("UPID:"):
            raise CouldNotTell(
                f"container {self.vmid}: the node answered without a task id", code="no-upid"
            )
        deadline = clock() + timeout_s
        while True:
            state = self.api.call("GET", f"/nodes/{self.node}/tasks/{upid}/status")
            if state.get("status") == "stopped":
                return self._ended(upid, str(state.get("exitstatus") or ""))
            if clock() >= deadline:
                raise CouldNotTell(
                    f"container {self.vmid}: the task did not end within {timeout_s:.0f} s",
                    next_step=f"watch it on the node: pvesh get /nodes/{self.node}/tasks/{upid}/log",
                    code="task-timeout",
                    subject=upid,
                )
            if on_progress is not None:
                on_progress(f"{state.get('type', 'task')} of container {self.vmid} is running")
            sleep(0.3)

    def _log_tail(self, upid: str) -> tuple[str, ...]:
        """Return the last lines of a task's log; the API gives a log from its beginning."""
        path = f"/nodes/{self.node}/tasks/{upid}/log"
        tail: list[str] = []
        for start in range(0, LOG_LINES, LOG_PAGE):
            rows = self.api.call("GET", path, {"start": start, "limit": LOG_PAGE}) or []
            lines = [str(row.get("t", "")) for row in rows]
            if start and lines == ["no content"]:
                break  # the API's words for nothing behind the last page
            tail = [*tail, *lines][-10:]
            if len(lines) < LOG_PAGE:
                break
        return tuple(tail)

    def _ended(self, upid: str, exitstatus: str) -> TaskResult:
        tail = self._log_tail(upid)
        if exitstatus == "OK":
            return TaskResult(upid, 0, tail)
        warned = WARNINGS.match(exitstatus)
        if warned:
            return TaskResult(upid, int(warned[1]), tail)
        if LOCKED.search(exitstatus):
            raise self._locked(exitstatus)
        told = (exitstatus, f"TASK ERROR: {exitstatus}")
        lines = ["its log ends with:", *(line for line in tail if line and line not in told)]
        text = "\n    ".join(lines) if len(lines) > 1 else "its log says no more"
        raise CheckFailed(
            f"container {self.vmid}: the task failed: {exitstatus or 'no exit status'}\n    {text}",
            next_step=advise(500, exitstatus) or f"on the node: pvenode task log {upid}",
            code=BUSY_TASK if BUSY.search(exitstatus) else "task-failed",
            subject=upid,
        )
