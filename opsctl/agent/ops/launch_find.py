"""Far side of the launch records: what became of a launch, found by the run's id.

Each launch has a folder STATE/runs/RUN with launch.json (what was asked, before it was done), run.json
(who it became), members.json (its processes when it was ready) and exit.json (how it ended, where there is
no systemd to ask). A file ``forgotten`` says in which boot systemd knew nothing of the unit any more or,
where there is no systemd, that a stop or a later launch has seen its end.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time

from opsctl.agent.ops import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}$")
UNIT_KEYS = (
    "Id,LoadState,ActiveState,SubState,Result,MainPID,ExecMainPID,ExecMainCode,ExecMainStatus,"
    "ExecMainStartTimestampMonotonic,ControlGroup,Restart"
)
LAUNCH_KEYS = ("run", "via", "unit", "boot_id")
RUN_KEYS = ("pid", "start_ticks")
EXIT_KEYS = ("at_s",)
FORGOTTEN = "forgotten"
GONE = {"LoadState": "not-found", "ActiveState": "inactive"}  # shown of a unit that is not known
LIVING = ("active", "activating", "reloading")


def state_dir(request: dict[str, Any]) -> str:
    """Return the host's state folder: the named one, root's, or the user's own."""
    named: str | None = request.get("state_dir")
    if named:
        return named
    if os.geteuid() == 0:
        return "/var/lib/opsctl"
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(base, "opsctl")


def run_dir(request: dict[str, Any], run: str | None, context: Context) -> str:
    """Return the folder of one run; its id becomes a file name and a unit's name, so it is checked."""
    if run is None or not RUN_ID.match(run):
        raise context.Error("usage", "not a run id: %r" % (run,))
    return os.path.join(state_dir(request), "runs", run)


def find(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Say what became of this run's launch: absent, running, exited or failed-to-start.

    ``rebooted`` is there and true when the machine (or the container, which has a boot id of its own) was
    started anew since: whatever the launch had become is gone with that, by no fault of its own.
    """
    folder = run_dir(request, request["run"], context)
    path = os.path.join(folder, "launch.json")
    record = read_json(path, LAUNCH_KEYS)
    if record is None and os.path.lexists(path):
        text = "%s is damaged or not ours to read: what became of the launch is not known" % path
        raise context.Error("record-damaged", text)
    if record is None:
        return {"state": "absent"}
    asked = record["via"] == "systemd" and record["boot_id"] == procfs.boot_id()
    shown = {record["unit"]: show_unit(record["unit"], context)} if asked else {}
    found = find_recorded(record, folder, shown)
    if found["state"] == "unknown":
        raise context.Error("record-damaged", "%s: %s" % (folder, found["note"]))
    return found


def find_recorded(
    record: dict[str, Any], folder: str, shown: dict[str, dict[str, str]]
) -> dict[str, Any]:
    """Say what became of a recorded launch; ``shown``: what systemd said of units, where it answered."""
    known = read_json(os.path.join(folder, "run.json"), RUN_KEYS)
    ended = read_json(os.path.join(folder, "exit.json"), EXIT_KEYS)
    members = (read_json(os.path.join(folder, "members.json")) or {}).get("members") or []
    base = dict(record, state="running", pid=None, start_ticks=None, exit=ended, members=members)
    base["forgotten"] = os.path.exists(os.path.join(folder, FORGOTTEN))
    if record["boot_id"] != procfs.boot_id():
        reason = ended or {"reason": "the machine was rebooted"}
        return dict(base, state="exited", exit=reason, rebooted=True)
    if ended and ended.get("error"):
        return dict(base, state="failed-to-start")
    if record["via"] == "systemd":
        return find_unit(record, base, known, folder, shown.get(record["unit"], {}))
    if known is None:
        known, ended = wait_for_identity(folder)
    if known is None and ended is None:
        if supervisor_lives(folder):
            return {"state": "unknown", "note": "it was started, and who it became is not written"}
        return {"state": "absent", "note": "asked for, and never started"}
    if known is None:
        return dict(base, state="failed-to-start", exit=ended)
    base.update(identity(known))
    base["supervisor_pid"] = known.get("supervisor_pid")
    if ended is None and is_alive(known["pid"], known["start_ticks"]):
        return base
    ended = ended or wait_for_exit(folder)
    return dict(base, state="exited", exit=ended or {"reason": "its supervisor is gone as well"})


def find_unit(
    record: dict[str, Any],
    base: dict[str, Any],
    known: dict[str, Any] | None,
    folder: str,
    shown: dict[str, str],
) -> dict[str, Any]:
    """Read what systemd shows of the unit, whose name carries the run's id."""
    told = bool(shown)  # else systemctl failed, which says nothing of the unit
    gone = told and all(shown.get(key) == value for key, value in GONE.items())
    if gone or not told:
        if known is None and told:
            return {"state": "absent", "note": "asked for, and never started"}
        if known is None:
            return {"state": "unknown", "note": "systemd did not say what became of the unit"}
        if is_alive(known["pid"], known["start_ticks"]):
            return dict(base, **identity(known))
        ended = base["exit"] or {"reason": "the unit is gone" if told else "its process is gone"}
        return dict(base, state="exited", exit=ended, unit_gone=told, **identity(known))
    pid = int(shown.get("MainPID") or 0)
    base["unit_state"] = "%s/%s" % (shown.get("ActiveState"), shown.get("SubState"))
    base["cgroup"] = shown.get("ControlGroup")
    base["restart"] = shown.get("Restart")
    if pid and shown.get("ActiveState") in LIVING:
        if known is None:  # the reply of the start was lost before the identity was written
            known = {
                "run": record["run"],
                "pid": pid,
                "boot_id": record["boot_id"],
                "at_s": time.time(),
            }
            known["start_ticks"] = procfs.start_ticks(pid)
            write_whole(os.path.join(folder, "run.json"), known)
        return dict(base, **identity(known))
    return dict(base, state="exited", exit=unit_exit(shown), **identity(known))


def unit_exit(shown: dict[str, str]) -> dict[str, Any]:
    """Translate systemd's words: ExecMainCode is CLD_EXITED (1), CLD_KILLED (2) or CLD_DUMPED (3)."""
    code = shown.get("ExecMainCode")
    status = int(shown.get("ExecMainStatus") or 0)
    return {
        "code": status if code in ("1", "exited") else None,
        "signal": status if code in ("2", "3", "killed", "dumped") else None,
        "core_dumped": code in ("3", "dumped"),
        "result": shown.get("Result"),
    }


def identity(known: dict[str, Any] | None) -> dict[str, Any]:
    """Return who the server became, and when; ``age_s`` lets a caller with another clock place it."""
    known = known or {}
    found = {"pid": known.get("pid"), "start_ticks": known.get("start_ticks")}
    if known.get("at_s"):
        found.update(exec_s=known["at_s"], age_s=time.time() - known["at_s"])
    return found


def wait_for_identity(folder: str) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Wait for a supervisor that is about to start the server: between asking and run.json."""
    paths = [os.path.join(folder, name) for name in ("run.json", "exit.json")]
    for _ in range(200):
        if any(os.path.isfile(path) for path in paths) or not supervisor_lives(folder):
            break
        time.sleep(0.01)
    known, ended = read_json(paths[0], RUN_KEYS), read_json(paths[1], EXIT_KEYS)
    return known, ended


def wait_for_exit(folder: str) -> dict[str, Any] | None:
    """Give a supervisor that lives the time to write down the end that it has just seen."""
    for _ in range(300):
        ended = read_json(os.path.join(folder, "exit.json"), EXIT_KEYS)
        if ended or not supervisor_lives(folder):
            return ended or read_json(os.path.join(folder, "exit.json"), EXIT_KEYS)
        time.sleep(0.01)
    return None


def supervisor_lives(folder: str) -> bool:
    """Say whether a process runs this folder's supervise.py."""
    source = os.path.join(folder, "supervise.py").encode()
    lines = (procfs.read("/proc/%d/cmdline" % pid) or b"" for pid in procfs.pids())
    return any(source in line.split(b"\0") for line in lines)


def records(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return every launch that this host remembers, newest first, each with its state of now.

    A damaged record is left out: it proves nothing to anybody, and the others still do.
    """
    folder = os.path.join(state_dir(request), "runs")
    try:
        names = sorted(os.listdir(folder), reverse=True)
    except FileNotFoundError:
        names = []
    recorded = []
    for name in names[: request.get("limit", 50)]:
        one = os.path.join(folder, name)
        record = (
            read_json(os.path.join(one, "launch.json"), LAUNCH_KEYS) if RUN_ID.match(name) else None
        )
        if record is not None and request.get("port") in (None, record.get("port")):
            recorded.append((record, one))
    here = procfs.boot_id()
    shown, units = {}, []
    for record, one in recorded:
        if record["via"] == "systemd" and record["boot_id"] == here:
            if procfs.read(os.path.join(one, FORGOTTEN)) == here.encode():
                shown[record["unit"]] = GONE  # each that is asked for costs systemd 2 ms
            else:
                units.append(record["unit"])
    try:
        shown.update(show_units(units, context) if units else {})
    except context.Error:
        pass  # systemd hangs: who runs is known by its identity all the same
    found = [find_recorded(record, one, shown) for record, one in recorded]
    return {"records": [one for one in found if one["state"] not in ("absent", "unknown")]}


def show_unit(unit: str, context: Context) -> dict[str, str]:
    """Return systemctl show's answer as a dict; empty values included."""
    return show_units([unit], context).get(unit, {})


def show_units(units: list[str], context: Context) -> dict[str, dict[str, str]]:
    """Return systemctl show's answer for each unit, by its name; one process, however many they are."""
    done = command(["systemctl", "show", "-p", UNIT_KEYS, "--", *units], 10.0, context)
    found = {}
    for block in done.stdout.decode(errors="replace").split("\n\n"):
        shown = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" in shown:
            found[shown["Id"]] = shown
    return found


def command(
    argv: list[str], timeout_s: float, context: Context
) -> subprocess.CompletedProcess[bytes]:
    """Run a program of this host; its absence and its hanging have names."""
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=timeout_s,
        )
    except FileNotFoundError as error:
        raise context.Error("missing-program", argv[0]) from error
    except subprocess.TimeoutExpired as error:
        text = "%s did not end within %.0f s" % (argv[0], timeout_s)
        raise context.Error("timeout", text) from error


def is_alive(pid: int, start_ticks: int | None) -> bool:
    """Say whether this very process runs; a zombie has ended."""
    stat = procfs.read_stat(pid)
    if stat is None or stat.start_ticks != start_ticks:
        return False
    return procfs.living_face(pid, stat)[1] not in "ZX"


def read_json(path: str, keys: tuple[str, ...] = ()) -> dict[str, Any] | None:
    """Return the file's object; None when there is none yet, it is damaged, or lacks one of ``keys``."""
    try:
        with open(path) as source:
            body = json.load(source)
    except (OSError, ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) and all(key in body for key in keys) else None


def write_whole(path: str, body: dict[str, Any]) -> None:
    """Write a JSON file that a reader sees whole or not at all, also after a power cut."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "w") as out:
        json.dump(body, out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, path)


OPERATIONS = {"find": find, "records": records}
