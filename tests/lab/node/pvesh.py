#!/usr/bin/python3 -IS
"""The lab node's `pvesh`: the paths that opsctl uses, with real tasks on real LXC.

As the real one on a command line: a task runs in the foreground, its log is printed first and its UPID
last; what a task said and how it ended stays readable under its UPID.
"""

import json
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import pve
from pve import Die

TASKS = "/var/log/pve/tasks"
PCT = "/usr/sbin/pct"
VERBS = {"start": "vzstart", "stop": "vzstop", "shutdown": "vzshutdown", "reboot": "vzreboot"}


def run_task(kind, vmid, argv):
    """Run pct as the task's work; print its log, then its UPID as the last line."""
    started = int(time.time())
    upid = f"UPID:{pve.NODE}:{os.getpid():08X}:{started:08X}:{started:08X}:{kind}:{vmid}:root@pam:"
    task = {"upid": upid, "type": kind, "id": vmid, "user": "root@pam", "starttime": started}
    task |= {"node": pve.NODE, "pid": os.getpid()}
    save(task)
    done = subprocess.run(
        [PCT, *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    lines = done.stdout.decode(errors="replace").splitlines()
    if done.returncode == 0:
        lines, ended = [*lines, "TASK OK"], "OK"
    else:
        ended = lines[-1] if lines else f"exit code {done.returncode}"
        lines = [*lines[:-1], f"TASK ERROR: {ended}"]
    save({**task, "log": lines, "endtime": int(time.time()), "exitstatus": ended})
    for line in lines[:-1]:
        print(line)
    return upid


def save(task):
    os.makedirs(TASKS, exist_ok=True)
    path = f"{TASKS}/{task['upid']}"
    with open(path + ".new", "w") as file:
        json.dump(task, file)
    os.replace(path + ".new", path)


def all_tasks():
    names = os.listdir(TASKS) if os.path.isdir(TASKS) else []
    for name in sorted(names):
        if name.startswith("UPID:") and not name.endswith(".new"):
            with open(f"{TASKS}/{name}") as file:
                yield json.load(file)


def is_alive(task):
    return "endtime" not in task and os.path.exists(f"/proc/{task['pid']}")


def list_tasks(_match, options):
    found = []
    for task in all_tasks():
        if options.get("source") == "active" and not is_alive(task):
            continue
        if options.get("vmid", task["id"]) != task["id"]:
            continue
        if options.get("typefilter", task["type"]) != task["type"]:
            continue
        found.append({key: value for key, value in task.items() if key != "log"})
    return found


def load_task(upid):
    for task in all_tasks():
        if task["upid"] == upid:
            return task
    raise Die(f"no such task '{upid}'")


def task_status(match, _options):
    task = load_task(match["upid"])
    shown = {key: value for key, value in task.items() if key != "log"}
    return {**shown, "status": "running" if is_alive(task) else "stopped"}


def task_log(match, _options):
    lines = load_task(match["upid"]).get("log", ["no content"])
    return [{"n": number, "t": line} for number, line in enumerate(lines, 1)]


def status_current(match, _options):
    vmid = match["vmid"]
    settings = pve.load(vmid).settings
    running = pve.is_running(vmid)
    shown = {"vmid": int(vmid), "type": "lxc", "name": settings.get("hostname", f"CT{vmid}")}
    shown |= {"status": "running" if running else "stopped", "uptime": 0}
    if running:
        shown["pid"] = int(pve.init_pid(vmid))
        shown["uptime"] = int(time.time() - os.stat(f"/proc/{shown['pid']}").st_ctime)
    if "lock" in settings:
        shown["lock"] = settings["lock"]
    return shown


def get_config(match, _options):
    config = pve.load(match["vmid"])
    shown = dict(config.settings)
    if config.lxc:
        shown["lxc"] = [list(item) for item in config.lxc]
    if config.description:
        shown["description"] = config.description
    return shown


def list_snapshots(match, _options):
    config = pve.load(match["vmid"])
    found = [
        {
            "name": name,
            "snaptime": int(saved.settings["snaptime"]),
            "description": saved.description,
            "parent": saved.settings.get("parent"),
        }
        for name, saved in config.snapshots.items()
    ]
    return [*found, {"name": "current", "description": "You are here!"}]


def change_status(match, options):
    vmid, verb = match["vmid"], match["verb"]
    config = pve.load(vmid)
    running = pve.is_running(vmid)
    if verb == "start" and running:
        raise Die(f"CT {vmid} already running")
    if verb != "start" and not running:
        raise Die(f"CT {vmid} not running")
    if config.settings.get("template") == "1":
        raise Die("you can't start a CT if it's a template")
    words = [word for key in sorted(options) for word in (f"--{key}", options[key])]
    return run_task(VERBS[verb], vmid, [verb, vmid, *words])


def take_snapshot(match, options):
    vmid = match["vmid"]
    pve.load(vmid)
    if "snapname" not in options:
        raise Die("400 not enough arguments\nsnapname: property is missing and it is not optional")
    words = ["snapshot", vmid, options["snapname"]]
    words += ["--description", options.get("description", "")]
    return run_task("vzsnapshot", vmid, words)


def roll_back(match, options):
    words = ["rollback", match["vmid"], match["name"], "--start", options.get("start", "0")]
    return run_task("vzrollback", match["vmid"], words)


def delete_snapshot(match, _options):
    words = ["delsnapshot", match["vmid"], match["name"]]
    return run_task("vzdelsnapshot", match["vmid"], words)


def list_nodes(_match, _options):
    return [{"node": pve.NODE, "status": "online", "type": "node"}]


CT = rf"/nodes/(?:{pve.NODE}|localhost)/lxc/(?P<vmid>\d+)"
NODE = rf"/nodes/(?:{pve.NODE}|localhost)"
ROUTES = [
    ("get", r"/nodes", list_nodes),
    ("get", NODE + r"/tasks", list_tasks),
    ("get", NODE + r"/tasks/(?P<upid>UPID:[^/]+)/status", task_status),
    ("get", NODE + r"/tasks/(?P<upid>UPID:[^/]+)/log", task_log),
    ("get", CT + r"/status/current", status_current),
    ("get", CT + r"/config", get_config),
    ("get", CT + r"/snapshot", list_snapshots),
    ("create", CT + r"/status/(?P<verb>start|stop|shutdown|reboot)", change_status),
    ("create", CT + r"/snapshot", take_snapshot),
    ("create", CT + r"/snapshot/(?P<name>[^/]+)/rollback", roll_back),
    ("delete", CT + r"/snapshot/(?P<name>[^/]+)", delete_snapshot),
]


def main(argv):
    """Answer one call. Options are --name value, as the real pvesh takes them."""
    if os.geteuid() != 0:
        raise Die("please run as root")
    if len(argv) < 2:
        raise Die("400 not enough arguments\npvesh get <api_path> [OPTIONS] [FORMAT_OPTIONS]")
    words, options = argv[2:], {}
    while words:
        key = words.pop(0)
        if not key.startswith("--") or not words:
            raise Die(f"400 unable to parse option\nUnknown option: {key.lstrip('-')}")
        options[key[2:]] = words.pop(0)
    as_json = options.pop("output-format", "text") == "json"
    for verb, pattern, function in ROUTES:
        match = re.fullmatch(pattern, argv[1])
        if match and verb == argv[0]:
            answer = function(match.groupdict(), options)
            print(json.dumps(answer) if as_json else answer)
            return
    raise Die(f"No '{argv[0]}' handler defined for '{argv[1]}'")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Die as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(255)
