"""The API paths that opsctl uses, for pvesh (root) and for the API (whoever has the privilege)."""

import os
import re
import time

import ctconf
import pve
import switches
import tasks
from pve import Die

VERBS = {"start": "vzstart", "stop": "vzstop", "shutdown": "vzshutdown", "reboot": "vzreboot"}


class Refused(Exception):
    """The answer is no, with the status that the API gives; pvesh prints the text alone."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Root:
    """The caller behind pvesh: may do everything; a task runs in the foreground, its log comes first."""

    user = "root@pam"

    def has(self, _path, _privilege):
        return True

    def held(self):
        return {"/": ["Sys.Audit", "VM.Audit", "VM.Config.Options", "VM.PowerMgmt", "VM.Snapshot"]}

    def run_task(self, kind, vmid, argv):
        task = tasks.begin(kind, vmid, self.user)
        for line in tasks.work(task, argv)[:-1]:
            print(line)
        return task["upid"]


def list_tasks(caller, _match, options):
    found = []
    auditor = caller.has(f"/nodes/{pve.NODE}", "Sys.Audit")
    for task in tasks.everything():
        if options.get("source") == "active" and not tasks.is_alive(task):
            continue
        if options.get("vmid", task["id"]) != task["id"]:
            continue
        if options.get("typefilter", task["type"]) != task["type"]:
            continue
        if auditor or _owns(caller, task):
            found.append(tasks.shown(task))
    return found


def _owns(caller, task):
    """A user owns its tasks and those of its tokens; a token only its own."""
    return caller.user in (task["user"], task["user"].split("!")[0])


def _own_task(caller, match):
    task = tasks.load(match["upid"])
    if not _owns(caller, task):
        need(caller, f"/nodes/{pve.NODE}", "Sys.Audit")
    return task


def task_status(caller, match, _options):
    task = _own_task(caller, match)
    return {**tasks.shown(task), "status": "running" if tasks.is_alive(task) else "stopped"}


def task_log(caller, match, options):
    lines = _own_task(caller, match).get("log", ["no content"])
    numbered = [{"n": number, "t": line} for number, line in enumerate(lines, 1)]
    start = int(options.get("start", 0))
    nothing = [{"n": len(numbered), "t": "no content"}]
    return numbered[start : start + int(options.get("limit", 50))] or nothing


def status_current(_caller, match, _options):
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


def get_config(_caller, match, options):
    config = pve.load(match["vmid"])
    shown = dict(config.settings)
    if options.get("current") != "1":
        shown.update(config.pending)
    if config.lxc:
        shown["lxc"] = [list(item) for item in config.lxc]
    if config.description:
        shown["description"] = config.description
    shown["digest"] = ctconf.digest(match["vmid"])
    return shown


def get_pending(_caller, match, _options):
    config = pve.load(match["vmid"])
    rows = []
    for key in sorted({*config.settings, *config.pending}):
        row = {"key": key}
        if key in config.settings:
            row["value"] = config.settings[key]
        if key in config.pending:
            row["pending"] = config.pending[key]
        rows.append(row)
    return rows


def set_config(caller, match, options):
    """Set devN settings (no others are offered): at once where it is stopped, by hotplug where it runs."""
    vmid, options = match["vmid"], dict(options)
    digest = options.pop("digest", None)
    if not options:
        raise Die("no options specified")
    for key, value in options.items():
        if not re.fullmatch(r"dev\d+", key):
            text = "property is not defined in schema and the schema does not allow additional properties"
            raise Refused(400, f"Parameter verification failed.\n{key}: {text}")
        if caller.user != "root@pam":
            why = "configuring device passthrough is only allowed for root@pam"
            raise Refused(403, f"Permission check failed ({why})")
        if not os.path.exists(ctconf.device_of(value)):
            raise Die(f"Device {ctconf.device_of(value)} does not exist")
    with pve.config_lock(vmid):
        config = pve.load(vmid)
        pve.refuse_locked(config)
        if digest and digest != ctconf.digest(vmid):
            raise Die("detected modified configuration - file changed by other user? Try again.")
        for key, value in options.items():
            if pve.is_running(vmid) and key in config.settings:
                config.pending[key] = value
                continue
            if pve.is_running(vmid):
                pve.hotplug(vmid, value)
            config.settings[key] = value
        ctconf.write(vmid, config)


def list_snapshots(_caller, match, _options):
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


def get_feature(_caller, match, options):
    pve.load(match["vmid"])
    has = options.get("feature") == "snapshot" and not switches.read("no_snapshots", False)
    return {"hasFeature": 1 if has else 0}


def change_status(caller, match, options):
    vmid, verb = match["vmid"], match["verb"]
    config = pve.load(vmid)
    running = pve.is_running(vmid)
    if verb == "start" and running:
        raise Die(f"CT {vmid} already running")
    if verb != "start" and not running:
        raise Die(f"{'VM' if verb == 'reboot' else 'CT'} {vmid} not running")
    if config.settings.get("template") == "1":
        raise Die("you can't start a CT if it's a template")
    words = [word for key in sorted(options) for word in (f"--{key}", options[key])]
    return caller.run_task(VERBS[verb], vmid, [verb, vmid, *words])


def take_snapshot(caller, match, options):
    vmid = match["vmid"]
    pve.load(vmid)
    if "snapname" not in options:
        raise Die("400 not enough arguments\nsnapname: property is missing and it is not optional")
    words = ["snapshot", vmid, options["snapname"]]
    words += ["--description", options.get("description", "")]
    return caller.run_task("vzsnapshot", vmid, words)


def roll_back(caller, match, options):
    words = ["rollback", match["vmid"], match["name"], "--start", options.get("start", "0")]
    return caller.run_task("vzrollback", match["vmid"], words)


def delete_snapshot(caller, match, _options):
    words = ["delsnapshot", match["vmid"], match["name"]]
    return caller.run_task("vzdelsnapshot", match["vmid"], words)


def list_nodes(_caller, _match, _options):
    return [{"node": pve.NODE, "status": "online", "type": "node"}]


def get_version(_caller, _match, _options):
    return {"version": "8.4.1", "release": "8.4", "repoid": "lab"}


def get_permissions(caller, _match, options):
    wanted = options.get("path")
    return {
        path: dict.fromkeys(privileges, 1)
        for path, privileges in caller.held().items()
        if wanted is None or path in ("/", wanted) or wanted.startswith(path + "/")
    }


def need(caller, path, *privileges):
    """Refuse unless the caller has one of the privileges, in PVE's words."""
    if not any(caller.has(path, privilege) for privilege in privileges):
        raise Refused(403, f"Permission check failed ({path}, {'|'.join(privileges)})")


CT = rf"/nodes/(?:{pve.NODE}|localhost)/lxc/(?P<vmid>\d+)"
NODE = rf"/nodes/(?:{pve.NODE}|localhost)"
TASK = NODE + r"/tasks/(?P<upid>UPID:[^/]+)"
EDIT = tuple(f"VM.Config.{what}" for what in ("Disk", "CPU", "Memory", "Network", "Options"))
AUDIT, POWER, SNAPSHOT = ("VM.Audit",), ("VM.PowerMgmt",), ("VM.Snapshot",)
BACK = ("VM.Snapshot", "VM.Snapshot.Rollback")
# verb of pvesh, path, function, what it takes on /vms/VMID
ROUTES = [
    ("get", r"/nodes", list_nodes, None),
    ("get", r"/version", get_version, None),
    ("get", r"/access/permissions", get_permissions, None),
    ("get", NODE + r"/tasks", list_tasks, None),
    ("get", TASK + r"/status", task_status, None),
    ("get", TASK + r"/log", task_log, None),
    ("get", CT + r"/status/current", status_current, AUDIT),
    ("get", CT + r"/config", get_config, AUDIT),
    ("get", CT + r"/pending", get_pending, AUDIT),
    ("set", CT + r"/config", set_config, EDIT),
    ("get", CT + r"/feature", get_feature, AUDIT),
    ("get", CT + r"/snapshot", list_snapshots, AUDIT),
    ("create", CT + r"/status/(?P<verb>start|stop|shutdown|reboot)", change_status, POWER),
    ("create", CT + r"/snapshot", take_snapshot, SNAPSHOT),
    ("create", CT + r"/snapshot/(?P<name>[^/]+)/rollback", roll_back, BACK),
    ("delete", CT + r"/snapshot/(?P<name>[^/]+)", delete_snapshot, SNAPSHOT),
]


def answer(caller, verb, path, options):
    """Answer one call.

    Raises:
        Refused: no such path, or not allowed; Die: the node's own no.
    """
    for wanted, pattern, function, privileges in ROUTES:
        match = re.fullmatch(pattern, path)
        if match and verb == wanted:
            if privileges is not None:
                need(caller, f"/vms/{match['vmid']}", *privileges)
            return function(caller, match.groupdict(), options)
    raise Refused(501, f"No '{verb}' handler defined for '{path}'")
