#!/usr/bin/python3 -IS
"""The lab node's `pct`: the real one's command line, messages and order of acts, on real LXC."""

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import ctconf
import pve
import snapshots
import switches
from pve import Die


def cmd_list(_vmid, _options, _rest):
    numbers = sorted(
        int(name[:-5]) for name in os.listdir(ctconf.CONFIG_DIR) if re.fullmatch(r"\d+\.conf", name)
    )
    form = "%-10s %-10s %-12s %-20s"
    if numbers:
        print(form % ("VMID", "Status", "Lock", "Name"))
    for number in numbers:
        settings = pve.load(number).settings
        state = "running" if pve.is_running(number) else "stopped"
        print(form % (number, state, settings.get("lock", ""), settings.get("hostname", "")))


def cmd_status(vmid, options, _rest):
    config = pve.load(vmid)
    state = "running" if pve.is_running(vmid) else "stopped"
    if "verbose" not in options:
        print(f"status: {state}")
        return
    facts = {"name": config.settings.get("hostname", ""), "status": state, "type": "lxc"}
    facts["vmid"] = vmid
    if "lock" in config.settings:
        facts["lock"] = config.settings["lock"]
    if state == "running":
        facts["pid"] = pve.init_pid(vmid)
    for key in sorted(facts):
        print(f"{key}: {facts[key]}")


def cmd_config(vmid, _options, _rest):
    config = pve.load(vmid)
    settings = dict(config.settings)
    if config.description:
        settings["description"] = config.description.rstrip("\n").replace("\n", "%0A")
    for key in sorted(settings):
        print(f"{key}: {settings[key]}")
    for item in config.lxc:
        print("{}: {}".format(*item))


def attach(vmid, options, argv):
    """Become lxc-attach: no shell, no quoting, no time limit."""
    pve.load(vmid)
    if not pve.is_running(vmid):
        raise Die(f"container '{vmid}' not running!")
    keep = options.get("keep-env", "1") != "0"
    command = ["lxc-attach", "-n", vmid, "--keep-env" if keep else "--clear-env"]
    sys.stdout.flush()
    os.execvp(command[0], command + argv)


def cmd_exec(vmid, options, rest):
    pve.load(vmid)
    if pve.is_running(vmid) and not rest:
        raise Die("missing command at /usr/share/perl5/PVE/CLI/pct.pm line 189.")
    attach(vmid, options, ["--", *rest])


def cmd_enter(vmid, options, _rest):
    attach(vmid, options, [])


def cmd_start(vmid, options, _rest):
    pve.load(vmid)
    if pve.is_running(vmid):
        raise Die(f"CT {vmid} already running")
    with pve.config_lock(vmid):
        config = pve.load(vmid)
        if "skiplock" not in options:
            pve.refuse_locked(config)
        if config.settings.get("template") == "1":
            raise Die("you can't start a CT if it's a template")
        pve.start(vmid, config)


def cmd_stop(vmid, options, _rest):
    stop(vmid, options, ["--kill"])


def cmd_shutdown(vmid, options, _rest):
    timeout = options.get("timeout", "60")
    force = options.get("forceStop", "0") == "1"
    stop(vmid, options, [*([] if force else ["--nokill"]), "--timeout", timeout])


def stop(vmid, options, how):
    """Stop the container and wait until its command socket is gone."""
    pve.load(vmid)
    if not pve.is_running(vmid):
        raise Die(f"CT {vmid} not running")
    with pve.config_lock(vmid):
        if "skiplock" not in options:
            pve.refuse_locked(pve.load(vmid))
        pve.stop_now(vmid, how)


def cmd_reboot(vmid, options, _rest):
    pve.load(vmid)
    if not pve.is_running(vmid):
        raise Die(f"VM {vmid} not running")
    with pve.config_lock(vmid):
        pve.refuse_locked(pve.load(vmid))
        pve.stop_now(vmid, ["--timeout", options.get("timeout", "60")])
        pve.start(vmid, pve.load(vmid))


def cmd_unlock(vmid, _options, _rest):
    with pve.config_lock(vmid):
        config = pve.load(vmid)
        if "lock" not in config.settings:
            raise Die("no lock found")
        del config.settings["lock"]
        ctconf.write(vmid, config)


def cmd_push(vmid, options, rest):
    copy(vmid, rest, options, into=True)


def cmd_pull(vmid, options, rest):
    copy(vmid, rest, options, into=False)


def copy(vmid, paths, options, into):
    """Copy one file into or out of a running container."""
    pve.load(vmid)
    if not pve.is_running(vmid):
        raise Die(f"container '{vmid}' not running!")
    inside, outside = (paths[1], paths[0]) if into else (paths[0], paths[1])
    inner = f"/proc/{pve.init_pid(vmid)}/root{os.path.abspath(inside)}"
    source, target = (outside, inner) if into else (inner, outside)
    try:
        with open(source, "rb") as read, open(target, "wb") as written:
            while True:
                block = read.read(1 << 20)
                if not block:
                    break
                written.write(block)
    except OSError as error:
        raise Die(f"failed to open {error.filename}: {error.strerror}") from error
    if "perms" in options:
        os.chmod(target, int(options["perms"], 8))


def cmd_snapshot(vmid, options, rest):
    with pve.config_lock(vmid):
        config = pve.load(vmid)
        pve.refuse_locked(config)
        if switches.read("no_snapshots", False):
            raise Die("snapshot feature is not available")
        snapshots.take(vmid, config, rest[0], options.get("description", ""))


def cmd_listsnapshot(vmid, _options, _rest):
    snapshots.show(pve.load(vmid))


def cmd_rollback(vmid, options, rest):
    with pve.config_lock(vmid):
        config = pve.load(vmid)
        pve.refuse_locked(config)
        if rest[0] not in config.snapshots:
            raise Die(f"snapshot '{rest[0]}' does not exist")
        if pve.is_running(vmid):
            pve.stop_now(vmid, ["--kill"])
        snapshots.restore(vmid, config, rest[0])
        if options.get("start", "0") == "1":
            pve.start(vmid, pve.load(vmid))


def cmd_delsnapshot(vmid, _options, rest):
    with pve.config_lock(vmid):
        config = pve.load(vmid)
        pve.refuse_locked(config)
        if rest[0] not in config.snapshots:
            raise Die(f"snapshot '{rest[0]}' does not exist")
        snapshots.remove(vmid, config, rest[0])


# verb -> (function, words after the vmid, usage)
VERBS = {
    "list": (cmd_list, 0, "list"),
    "status": (cmd_status, 0, "status <vmid> [OPTIONS]"),
    "config": (cmd_config, 0, "config <vmid> [OPTIONS]"),
    "exec": (cmd_exec, None, "exec <vmid> [<extra-args>] [OPTIONS]"),
    "enter": (cmd_enter, 0, "enter <vmid> [OPTIONS]"),
    "start": (cmd_start, 0, "start <vmid> [OPTIONS]"),
    "stop": (cmd_stop, 0, "stop <vmid> [OPTIONS]"),
    "shutdown": (cmd_shutdown, 0, "shutdown <vmid> [OPTIONS]"),
    "reboot": (cmd_reboot, 0, "reboot <vmid> [OPTIONS]"),
    "unlock": (cmd_unlock, 0, "unlock <vmid>"),
    "push": (cmd_push, 2, "push <vmid> <file> <destination> [OPTIONS]"),
    "pull": (cmd_pull, 2, "pull <vmid> <path> <destination> [OPTIONS]"),
    "snapshot": (cmd_snapshot, 1, "snapshot <vmid> <snapname> [OPTIONS]"),
    "listsnapshot": (cmd_listsnapshot, 0, "listsnapshot <vmid>"),
    "rollback": (cmd_rollback, 1, "rollback <vmid> <snapname> [OPTIONS]"),
    "delsnapshot": (cmd_delsnapshot, 1, "delsnapshot <vmid> <snapname> [OPTIONS]"),
    "lab-mount": (lambda vmid, _options, _rest: pve.mount(vmid), 0, "lab-mount <vmid>"),
}
FLAGS = {"verbose", "skiplock", "current", "debug"}


def split(words, takes_command):
    """Return (options, plain words); for exec everything after `--` is the command."""
    options, plain = {}, []
    words = list(words)
    while words:
        word = words.pop(0)
        match = re.fullmatch(r"--?([A-Za-z][A-Za-z-]*)(?:=(.*))?", word)
        if word == "--":
            plain += words
            break
        if match is None:
            plain.append(word)
            if takes_command and len(plain) == 2:
                plain += words
                break
            continue
        name, value = match.groups()
        if value is None and name not in FLAGS and words and re.fullmatch(r"[^-].*", words[0]):
            value = words.pop(0) if name != "keep-env" or words[0] in ("0", "1") else "1"
        options[name] = "1" if value is None else value
    return options, plain


def check_vmid(text, usage):
    """Refuse what is no vmid, as Proxmox' parameter check does."""
    head = "400 Parameter verification failed.\nvmid: "
    if not re.fullmatch(r"\d+", text):
        raise Die(f"{head}type check ('integer') failed - got '{text}'\npct {usage}")
    if int(text) < 100:
        raise Die(f"{head}value must have a minimum value of 100\npct {usage}")
    return str(int(text))


def main(argv):
    if os.geteuid() != 0:
        raise Die("please run as root")
    if not argv:
        raise Die("ERROR: no command specified\nUSAGE: pct <COMMAND> [ARGS] [OPTIONS]")
    if argv[0] not in VERBS:
        raise Die(f"ERROR: unknown command 'pct {argv[0]}'")
    function, extra, usage = VERBS[argv[0]]
    options, plain = split(argv[1:], extra is None)
    if argv[0] == "list":
        return function(None, options, plain)
    wanted = 1 + (extra or 0)
    if len(plain) < wanted:
        raise Die(f"400 not enough arguments\npct {usage}")
    vmid = check_vmid(plain[0], usage)
    if extra is not None and len(plain) > wanted:
        raise Die(f"400 too many arguments\npct {usage}")
    return function(vmid, options, plain[1:])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (Die, snapshots.Refused) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(255)
