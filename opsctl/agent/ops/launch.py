"""Far side of the launch: start a server that outlives us, once for each run id."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time

from opsctl.agent.ops import launch_find, procfs

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context


def start(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Start the server once; when this run has started it before, say so and start nothing.

    One that went away because the machine was started anew is started again: nothing of it can be left.
    """
    folder = launch_find.run_dir(request, request["run"], context)
    found = launch_find.find(request, context)
    if found.get("rebooted"):
        set_aside(folder, found)
    elif found["state"] != "absent":
        return dict(found, changed=False)
    os.makedirs(folder, mode=0o711, exist_ok=True)
    request = with_files(request, folder)
    make_log(request, context)
    record = {
        key: request.get(key) for key in ("run", "server", "argv", "log", "unit", "cwd", "user")
    }
    record.update(request.get("record") or {})
    record.update(via=request["via"], boot_id=procfs.boot_id(), asked_s=time.time())
    launch_find.write_whole(os.path.join(folder, "launch.json"), record)
    begun = time.monotonic()
    if request["via"] == "systemd":
        start_unit(request, folder, context)
    else:
        start_supervisor(request, folder, context)
    found = launch_find.find(request, context)
    return dict(found, changed=True, took_s=round(time.monotonic() - begun, 4))


def set_aside(folder: str, found: dict[str, Any]) -> None:
    """Forget who the launch had become, and keep its log beside the new one: a reader begins anew."""
    for name in ("run.json", "exit.json", "members.json", launch_find.FORGOTTEN):
        drop(os.path.join(folder, name))
    try:
        os.replace(found["log"], found["log"] + ".before-reboot")
    except FileNotFoundError:
        pass


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
    try:
        done = launch_find.command(argv, request.get("exec_timeout_s", 30.0), context)
    finally:
        drop(path)  # systemd read it when it executed the server
    if done.returncode != 0:
        text = done.stderr.decode(errors="replace").strip()
        launch_find.write_whole(
            os.path.join(folder, "exit.json"), {"error": text, "at_s": time.time()}
        )
        return
    shown = launch_find.show_unit(request["unit"], context)
    pid = int(shown.get("ExecMainPID") or 0)
    if not pid:
        return  # who it became is written once systemd says so (see find_unit)
    identity = {"run": request["run"], "pid": pid, "boot_id": procfs.boot_id()}
    identity["at_s"] = started_s(shown)
    identity["start_ticks"] = procfs.start_ticks(pid)
    launch_find.write_whole(os.path.join(folder, "run.json"), identity)


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
    try:
        with os.fdopen(descriptor, "w") as out:
            json.dump(spec, out)
        run_supervisor(request, folder, source, context)
    finally:
        # the supervisor has read it: it holds secrets, and one that is late must not start anything
        drop(os.path.join(folder, "spec.json"))


def run_supervisor(request: dict[str, Any], folder: str, source: str, context: Context) -> None:
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


def remember(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Keep the identities of a launched server's processes beside its record."""
    folder = launch_find.run_dir(request, request["run"], context)
    launch_find.write_whole(os.path.join(folder, "members.json"), {"members": request["members"]})
    return {}


def drop(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def tail(path: str) -> str:
    with open(path, errors="replace") as source:
        return source.read()[-2000:].strip() or "nothing"


OPERATIONS = {"start": start, "remember": remember}
