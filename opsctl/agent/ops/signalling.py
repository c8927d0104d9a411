"""Signals by identity, and waiting for exits: through pidfds, which cannot come to mean another process.

Below Python 3.9 there is no pidfd: a signal is then kill(2) after one last look, and the reply says so.
"""

from __future__ import annotations

import errno
import os
import select
import signal as signals
import time

from opsctl.agent.ops import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

HAS_PIDFD = hasattr(os, "pidfd_open") and hasattr(signals, "pidfd_send_signal")
WATCH_SLICE_S = 0.2  # how soon a withdrawn watch ends
POLL_S = 0.02  # without pidfds


def signal(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Send one signal to one process, only while it is still the one that was planned.

    Request: ``pid``, ``start_ticks``, ``boot_id``, ``signal`` ("TERM", "KILL", ...).

    Returns:
        ``outcome``: sent, gone, recycled (the pid belongs to another process now), denied, or zombie
        (exited, its parent has not collected it); ``via``: pidfd or kill.
    """
    return send(request, request["boot_id"], signal_number(request["signal"], context), context)


def signal_all(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Send one signal to several processes, in the order given, each as ``signal`` does.

    Request: ``processes`` (each ``pid`` and ``start_ticks``), ``boot_id``, ``signal``.

    Returns:
        ``outcomes``: one object per process, with its ``pid``.
    """
    number = signal_number(request["signal"], context)
    outcomes = []
    for target in request["processes"]:
        outcome = send(target, request["boot_id"], number, context)
        outcomes.append(dict(outcome, pid=target["pid"]))
    return {"outcomes": outcomes}


def signal_number(name: str, context: Context) -> int:
    """Return the number of "TERM" or "SIGTERM"."""
    try:
        return int(signals.Signals["SIG" + name.upper().replace("SIG", "", 1)])
    except KeyError:
        raise context.Error("bad-request", "there is no signal named %r" % name) from None


def send(target: dict[str, Any], boot_id: str, number: int, context: Context) -> dict[str, Any]:
    """Verify the identity with the process held, then signal what is held."""
    pid = target["pid"]
    if not isinstance(pid, int) or pid <= 1 or pid == os.getpid():
        raise context.Error("bad-request", "pid %r is never signalled" % (pid,))
    via = "pidfd" if HAS_PIDFD else "kill"
    if boot_id != procfs.boot_id():
        return {"outcome": "gone", "via": via, "detail": "the host was booted again since"}
    held, problem = hold(pid)
    try:
        outcome = problem or check(pid, target["start_ticks"])
        if outcome is None:
            if context.cancelled.is_set():
                raise context.Error(
                    "cancelled", "the client is gone; pid %d was not signalled" % pid
                )
            outcome = deliver(held, pid, number)
        return {"outcome": outcome, "via": via}
    finally:
        if held is not None:
            os.close(held)


def hold(pid: int) -> tuple[int | None, str | None]:
    """Return a pidfd (None without pidfds), and "gone" when there is no such process."""
    if not HAS_PIDFD:
        return None, None
    try:
        return os.pidfd_open(pid), None
    except ProcessLookupError:
        return None, "gone"
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):  # the pid of a thread: no process has it
            return None, "gone"
        raise


def check(pid: int, start_ticks: int) -> str | None:
    """Return None when the pid is the planned, living process, else what it is instead."""
    stat = procfs.read_stat(pid)
    if stat is None:
        return "gone"
    if stat.start_ticks != start_ticks:
        return "recycled"
    return "zombie" if procfs.living_face(pid, stat)[1] in "ZX" else None


def deliver(held: int | None, pid: int, number: int) -> str:
    """Send the signal to what is held, or to the pid where nothing can be held."""
    try:
        if held is not None:
            signals.pidfd_send_signal(held, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        return "denied"
    return "sent"


def watch(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Tell of each process when it exits, until all have or time is up.

    Request: ``processes`` (each ``pid`` and ``start_ticks``), ``timeout_s``.

    Events:
        ``{"watching": [pids]}`` once they are held; then per exit ``{"exit": pid, "start_ticks", "clock_s",
        "monotonic_s", "exit_code"}``. The times are None for one that was gone before, and the exit code
        (negative: signal) is known only for children of the agent.

    Returns:
        ``gone`` and ``left``: pids; a zombie counts as gone. Withdrawn before that it is an error, and no
        shorter answer: the client may be as late as the agent, and take it for the whole.
    """
    return wait(request, context, context.emit)


def wait_gone(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Wait as ``watch`` does, without events; ``left`` then says in which state each one is.

    Request: ``processes`` (each ``pid`` and ``start_ticks``), ``timeout_s``.

    Returns:
        ``gone``: pids; ``left``: objects with ``pid`` and ``state`` ("D" cannot be killed).
    """
    facts = wait(request, context, None)
    left = [{"pid": pid, "state": state_of(pid)} for pid in facts["left"]]
    return {"gone": facts["gone"], "left": left}


def wait(request: dict[str, Any], context: Context, emit: Any) -> dict[str, Any]:
    """Hold every process that is still the planned one, and wait until none is left."""
    deadline = time.monotonic() + request["timeout_s"]
    left: dict[int, tuple[int, int | None]] = {}
    gone: list[int] = []
    try:
        for target in request["processes"]:
            pid, start = target["pid"], target["start_ticks"]
            held, problem = hold(pid)
            if problem or check(pid, start) is not None:
                if held is not None:
                    os.close(held)
                gone.append(pid)
                tell_exit(emit, pid, start, None)
            else:
                left[pid] = (start, held)
        if emit is not None:
            emit({"watching": sorted(left)})
        while left and not context.cancelled.is_set():
            slice_s = min(WATCH_SLICE_S, deadline - time.monotonic())
            for pid in exited(left, max(0.0, slice_s)):
                start, held = left.pop(pid)
                tell_exit(emit, pid, start, time.time())
                if held is not None:
                    os.close(held)
                gone.append(pid)
            if slice_s <= 0:
                return {"gone": gone, "left": sorted(left)}
        if left:  # what is left now is not what was left when the time was up
            text = "withdrawn while %d processes were still there" % len(left)
            raise context.Error("operation-timeout", text)
        return {"gone": gone, "left": []}
    finally:
        for _, held in left.values():
            if held is not None:
                os.close(held)


def exited(left: dict[int, tuple[int, int | None]], slice_s: float) -> list[int]:
    """Return the pids that have exited, waiting at most ``slice_s`` for the first."""
    if not HAS_PIDFD:
        time.sleep(min(slice_s, POLL_S))
        return [pid for pid, (start, _) in left.items() if check(pid, start) is not None]
    by_fd = {held: pid for pid, (_, held) in left.items()}
    poll = select.poll()
    for held in by_fd:
        poll.register(held, select.POLLIN)  # type: ignore[arg-type]
    return [by_fd[fd] for fd, _ in poll.poll(slice_s * 1000)]


def tell_exit(emit: Any, pid: int, start_ticks: int, clock_s: float | None) -> None:
    """Emit the event of one exit; ``clock_s`` None: it was gone before the watch began."""
    if emit is None:
        return
    emit(
        {
            "exit": pid,
            "start_ticks": start_ticks,
            "clock_s": clock_s,
            "monotonic_s": None if clock_s is None else time.monotonic(),
            "exit_code": exit_code(pid, start_ticks),
        }
    )


def exit_code(pid: int, start_ticks: int) -> int | None:
    """Return the exit code of a process that has just ended (negative: the signal), None if it is not told.

    A child's is asked for without collecting it; a stranger's stands in /proc until its parent has collected
    it, for those who may trace it (proc(5), field 52; others read 0).
    """
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return zombie_code(pid, start_ticks)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def zombie_code(pid: int, start_ticks: int) -> int | None:
    """Return the exit code of a process whose parent has not collected it yet."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stat:
            fields = stat.read().rpartition(b") ")[2].split()
        owner = os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return None
    if len(fields) < 50 or fields[0] not in (b"Z", b"X") or int(fields[19]) != start_ticks:
        return None
    if os.geteuid() not in (0, owner):
        return None
    status = int(fields[49])
    return -(status & 0x7F) if status & 0x7F else status >> 8


def state_of(pid: int) -> str | None:
    """Return the state letter of proc(5), None when there is no such process."""
    stat = procfs.read_stat(pid)
    return procfs.living_face(pid, stat)[1] if stat else None


OPERATIONS = {
    "signal": signal,
    "signal_all": signal_all,
    "watch": watch,
    "wait_gone": wait_gone,
}
