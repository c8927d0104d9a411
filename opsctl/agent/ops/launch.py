"""Far side of the launch: start a server that outlives us, and find it again by the run's id.

Each launch has a folder STATE/runs/RUN with launch.json (what was asked, before it was done), run.json
(who it became) and exit.json (how it ended, where there is no systemd to ask).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time

from opsctl.agent.ops import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}$")
UNIT_KEYS = (
    "LoadState,ActiveState,SubState,Result,MainPID,ExecMainPID,ExecMainCode,ExecMainStatus,"
    "ExecMainStartTimestampMonotonic,ControlGroup"
)


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


def start(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Start the server once; when this run has started it before, say so and start nothing."""
    folder = run_dir(request, request["run"], context)
    found = find(request, context)
    if found["state"] != "absent":
        return dict(found, changed=False)
    os.makedirs(folder, mode=0o711, exist_ok=True)
    request = with_files(request, folder)
    make_log(request, context)
    record = {
        key: request.get(key) for key in ("run", "server", "argv", "log", "unit", "cwd", "user")
    }
    record.update(request.get("record") or {})
    record.update(via=request["via"], boot_id=procfs.boot_id(), asked_s=time.time())
    write_whole(os.path.join(folder, "launch.json"), record)
    begun = time.monotonic()
    if request["via"] == "systemd":
        start_unit(request, folder, context)
    else:
        start_supervisor(request, folder, context)
    found = find(request, context)
    return dict(found, changed=True, took_s=round(time.monotonic() - begun, 4))


def with_files(request: dict[str, Any], folder: str) -> dict[str, Any]:
    """Place the launch's own files and return the request with @RUN_DIR@ filled in."""
    for name, content in (request.get("files") or {}).items():
        path = os.path.join(folder, os.path.basename(name))
        with open(path, "w") as out:
            out.write(content)
        os.chmod(path, 0o644)  # the server may run as another user
    filled = {
        key: [item.replace("@RUN_DIR@", folder) for item in request.get(key) or []]
        for key in ("argv", "systemd_argv")
    }
    return dict(request, **filled)


def make_log(request: dict[str, Any], context: Context) -> None:
    """Make the log before anything is started: a full disk or a wrong right shows here."""
    try:
        os.makedirs(os.path.dirname(request["log"]), mode=0o755, exist_ok=True)
        with open(request["log"], "a") as log:
            log.write("opsctl: run %s starts %s\n" % (request["run"], request["server"]))
            log.flush()
            os.fsync(log.fileno())
        if request.get("user") and os.geteuid() == 0:
            shutil.chown(request["log"], request["user"])
    except (OSError, LookupError) as error:
        raise context.Error("log", "%s: %s" % (request["log"], error)) from error


def start_unit(request: dict[str, Any], folder: str, context: Context) -> None:
    """Ask systemd for the transient unit; its environment goes through a file that only root reads."""
    path = os.path.join(folder, "env")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        for name, value in sorted(request["env"].items()):
            out.write('%s="%s"\n' % (name, quote(value)))
    argv = [item.replace("@ENV_FILE@", path) for item in request["systemd_argv"]]
    done = command(argv, request.get("exec_timeout_s", 30.0), context)
    os.unlink(path)  # systemd read it when it executed the server
    if done.returncode != 0:
        text = done.stderr.decode(errors="replace").strip()
        write_whole(os.path.join(folder, "exit.json"), {"error": text, "at_s": time.time()})
        return
    shown = show_unit(request["unit"], context)
    pid = int(shown.get("ExecMainPID") or 0)
    identity = {"run": request["run"], "pid": pid, "boot_id": procfs.boot_id()}
    identity["at_s"] = started_s(shown)
    identity["start_ticks"] = procfs.start_ticks(pid)
    write_whole(os.path.join(folder, "run.json"), identity)


def started_s(shown: dict[str, str]) -> float:
    """Return when systemd executed the server, in seconds since the epoch."""
    since_boot_us = int(shown.get("ExecMainStartTimestampMonotonic") or 0)
    if not since_boot_us:
        return time.time()
    return time.time() - (time.clock_gettime(time.CLOCK_MONOTONIC) - since_boot_us / 1e6)


def quote(value: str) -> str:
    """Escape a value for systemd's EnvironmentFile, inside double quotes."""
    return re.sub(r'([\\"$`])', r"\\\1", value)


def start_supervisor(request: dict[str, Any], folder: str, context: Context) -> None:
    """Execute our supervisor; it detaches, and says in run.json or exit.json how the exec went."""
    source = os.path.join(folder, "supervise.py")
    with open(source, "wb") as program:
        program.write(context.resource("opsctl.agent.supervisor"))
    spec = {key: request.get(key) for key in ("run", "argv", "env", "cwd", "user", "log", "nofile")}
    descriptor = os.open(
        os.path.join(folder, "spec.json"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
    )
    with os.fdopen(descriptor, "w") as out:
        json.dump(spec, out)
    with open(os.path.join(folder, "supervisor.log"), "ab") as talk:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", source, folder],
            stdin=subprocess.DEVNULL,
            stdout=talk,
            stderr=talk,
            cwd="/",
            env={"PATH": os.environ.get("PATH", os.defpath), "OPSCTL_RUN": request["run"]},
            start_new_session=True,
            close_fds=True,
        )
    child.wait(timeout=10)
    deadline = time.monotonic() + request.get("exec_timeout_s", 30.0)
    names = ("run.json", "exit.json")
    while not any(os.path.exists(os.path.join(folder, name)) for name in names):
        if time.monotonic() > deadline:
            raise context.Error("launch", "the supervisor said nothing: %s" % tail(talk.name))
        time.sleep(0.005)


def find(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Say what became of this run's launch: absent, running, exited or failed-to-start."""
    folder = run_dir(request, request["run"], context)
    record = read_json(os.path.join(folder, "launch.json"))
    if record is None:
        return {"state": "absent"}
    known = read_json(os.path.join(folder, "run.json"))
    ended = read_json(os.path.join(folder, "exit.json"))
    members = (read_json(os.path.join(folder, "members.json")) or {}).get("members") or []
    base = dict(record, state="running", pid=None, start_ticks=None, exit=ended, members=members)
    if ended and ended.get("error"):
        return dict(base, state="failed-to-start")
    if record["boot_id"] != procfs.boot_id():
        return dict(base, state="exited", exit=ended or {"reason": "the machine was rebooted"})
    if record["via"] == "systemd":
        return find_unit(record, base, known, folder, context)
    if known is None:
        known, ended = wait_for_identity(folder)
    if known is None:
        if ended is None:
            return {"state": "absent", "note": "asked for, and never started"}
        return dict(base, state="failed-to-start", exit=ended)
    base.update(identity(known))
    base["supervisor_pid"] = known.get("supervisor_pid")
    if ended is None and is_alive(known["pid"], known["start_ticks"]):
        return base
    ended = ended or wait_for_exit(folder)
    return dict(base, state="exited", exit=ended or {"reason": "its supervisor is gone as well"})


def wait_for_identity(folder: str) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Wait for a supervisor that is about to start the server: between asking and run.json."""
    paths = [os.path.join(folder, name) for name in ("run.json", "exit.json")]
    for _ in range(200):
        if any(os.path.exists(path) for path in paths) or not supervisor_lives(folder):
            break
        time.sleep(0.01)
    known, ended = (read_json(path) for path in paths)
    return known, ended


def wait_for_exit(folder: str) -> dict[str, Any] | None:
    """Give a supervisor that lives the time to write down the end that it has just seen."""
    for _ in range(300):
        ended = read_json(os.path.join(folder, "exit.json"))
        if ended or not supervisor_lives(folder):
            return ended or read_json(os.path.join(folder, "exit.json"))
        time.sleep(0.01)
    return None


def supervisor_lives(folder: str) -> bool:
    """Say whether a process runs this folder's supervise.py."""
    source = os.path.join(folder, "supervise.py").encode()
    lines = (procfs.read("/proc/%d/cmdline" % pid) or b"" for pid in procfs.pids())
    return any(source in line.split(b"\0") for line in lines)


def find_unit(
    record: dict[str, Any],
    base: dict[str, Any],
    known: dict[str, Any] | None,
    folder: str,
    context: Context,
) -> dict[str, Any]:
    """Read the unit by its name, which carries the run's id."""
    shown = show_unit(record["unit"], context)
    if shown.get("LoadState") != "loaded":
        if known is None:
            return {"state": "absent", "note": "asked for, and never started"}
        return dict(base, state="exited", exit={"reason": "the unit is gone"}, **identity(known))
    pid = int(shown.get("MainPID") or 0)
    base["unit_state"] = "%s/%s" % (shown.get("ActiveState"), shown.get("SubState"))
    base["cgroup"] = shown.get("ControlGroup")
    if pid and shown.get("ActiveState") in ("active", "activating", "reloading"):
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


def records(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return every launch that this host remembers, newest first, each with its state of now."""
    folder = os.path.join(state_dir(request), "runs")
    try:
        names = sorted(os.listdir(folder), reverse=True)
    except FileNotFoundError:
        names = []
    found = []
    for name in names[: request.get("limit", 50)]:
        if not RUN_ID.match(name):
            continue
        one = find(dict(request, run=name), context)
        if one["state"] != "absent" and request.get("port") in (None, one.get("port")):
            found.append(one)
    return {"records": found}


def remember(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Keep the identities of a launched server's processes beside its record."""
    folder = run_dir(request, request["run"], context)
    write_whole(os.path.join(folder, "members.json"), {"members": request["members"]})
    return {}


def tidy(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Forget what is over on one port: dead units of ours, and the oldest folders above ``keep``."""
    ended = [one for one in records(request, context)["records"] if one["state"] != "running"]
    cleared, removed = [], []
    for index, one in enumerate(ended):
        if one["run"] == request["run"]:
            continue
        if one.get("via") == "systemd" and one.get("unit_state"):
            verb = "reset-failed" if one["unit_state"].startswith("failed") else "stop"
            command(["systemctl", verb, one["unit"]], 15.0, context)
            cleared.append(one["unit"])
        if index >= request.get("keep", 20):
            shutil.rmtree(run_dir(request, one["run"], context), ignore_errors=True)
            removed.append(one["run"])
    return {"units": cleared, "removed": removed}


def show_unit(unit: str, context: Context) -> dict[str, str]:
    """Return systemctl show's answer as a dict; empty values included."""
    done = command(["systemctl", "show", "-p", UNIT_KEYS, "--", unit], 10.0, context)
    lines = done.stdout.decode(errors="replace").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


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


def read_json(path: str) -> dict[str, Any] | None:
    """Return the file's object, or None when there is none yet."""
    try:
        with open(path) as source:
            body: dict[str, Any] = json.load(source)
            return body
    except (FileNotFoundError, ValueError):
        return None


def write_whole(path: str, body: dict[str, Any]) -> None:
    """Write a JSON file that a reader sees whole or not at all, also after a power cut."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "w") as out:
        json.dump(body, out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, path)


def tail(path: str) -> str:
    with open(path, errors="replace") as source:
        return source.read()[-2000:].strip() or "nothing"


OPERATIONS = {
    "start": start,
    "find": find,
    "records": records,
    "remember": remember,
    "tidy": tidy,
}
