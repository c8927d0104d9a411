"""The node's tasks: a record per UPID, as pvesh and the API make and show them."""

import json
import os
import subprocess
import time

import pve
import switches
from pve import Die

TASKS = "/var/log/pve/tasks"
PCT = "/usr/sbin/pct"


def begin(kind, vmid, user):
    """Write down that a task runs; returns its record."""
    started = int(time.time())
    pid = os.getpid()
    number = time.monotonic_ns() // 1_000_000 & 0xFFFFFFFF
    upid = f"UPID:{pve.NODE}:{pid:08X}:{number:08X}:{started:08X}:{kind}:{vmid}:{user}:"
    task = {"upid": upid, "type": kind, "id": vmid, "user": user, "starttime": started}
    task |= {"node": pve.NODE, "pid": pid}
    _save(task)
    return task


def work(task, argv):
    """Run pct as the task's work; write down what it said and how it ended."""
    kind = task["type"]
    time.sleep(float(switches.read("delay_s", {}).get(kind, 0)))
    fault = switches.read("fail", {}).get(kind)
    warnings = int(switches.read("warnings", {}).get(kind, 0))
    if fault:
        lines, code = [fault], 255
    else:
        done = subprocess.run(
            [PCT, *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        lines, code = done.stdout.decode(errors="replace").splitlines(), done.returncode
    if code != 0:
        ended = lines[-1] if lines else f"exit code {code}"
        lines = [*lines[:-1], f"TASK ERROR: {ended}"]
    elif warnings:
        ended = f"WARNINGS: {warnings}"
        told = [f"WARN: lab warning {number}" for number in range(1, warnings + 1)]
        lines = [*lines, *told, f"TASK {ended}"]
    else:
        lines, ended = [*lines, "TASK OK"], "OK"
    _save({**task, "log": lines, "endtime": int(time.time()), "exitstatus": ended})
    return lines


def load(upid):
    """Return one task's record."""
    for task in everything():
        if task["upid"] == upid:
            return task
    raise Die(f"no such task '{upid}'")


def everything():
    """Yield the record of each task, the oldest first."""
    names = os.listdir(TASKS) if os.path.isdir(TASKS) else []
    for name in sorted(names):
        if name.startswith("UPID:") and not name.endswith(".new"):
            with open(f"{TASKS}/{name}") as file:
                yield json.load(file)


def is_alive(task):
    """Say whether a task has not ended; one whose worker was killed has."""
    return "endtime" not in task and os.path.exists(f"/proc/{task['pid']}")


def shown(task):
    """Return a task as the API shows it, without its log; a token's task names user and token apart."""
    result = {key: value for key, value in task.items() if key != "log"}
    if "!" in task["user"]:
        result["user"], result["tokenid"] = task["user"].split("!", 1)
    return result


def _save(task):
    os.makedirs(TASKS, exist_ok=True)
    path = f"{TASKS}/{task['upid']}"
    with open(path + ".new", "w") as file:
        json.dump(task, file)
    os.replace(path + ".new", path)
