"""Snapshots of a container: a copy of its writable layer, and a section in its configuration."""

# ruff: noqa: UP031 (columns read better as %-30s)

import copy
import os
import re
import shutil
import subprocess
import time

import ctconf


class Refused(Exception):
    """The message is pct's."""


def _store(vmid, name):
    return f"/var/lib/vz/images/{vmid}/snap-{name}"


def take(vmid, config, name, description):
    """Copy the writable layer as it is now (crash consistent, as a block snapshot is)."""
    if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_-]{1,39}", name) or name == "current":
        raise Refused(f"400 Parameter verification failed.\nsnapname: invalid format - '{name}'")
    if name in config.snapshots:
        raise Refused(f"snapshot name '{name}' already used")
    upper = f"/var/lib/vz/images/{vmid}/upper"
    subprocess.run(["cp", "-a", upper, _store(vmid, name)], check=True, timeout=300)
    saved = ctconf.Config()
    saved.settings = dict(config.settings, snaptime=str(int(time.time())))
    saved.lxc = list(config.lxc)
    saved.description = description + "\n" if description else ""
    config.snapshots[name] = saved
    config.settings["parent"] = name
    ctconf.write(vmid, config)


def restore(vmid, config, name):
    """Bring back the layer and the settings of a snapshot; the container is stopped."""
    upper = f"/var/lib/vz/images/{vmid}/upper"
    shutil.rmtree(upper)
    shutil.rmtree(f"/var/lib/vz/images/{vmid}/work", ignore_errors=True)
    subprocess.run(["cp", "-a", _store(vmid, name), upper], check=True, timeout=300)
    saved = config.snapshots[name]
    config.settings = {key: value for key, value in saved.settings.items() if key != "snaptime"}
    config.settings["parent"] = name
    config.lxc = copy.copy(saved.lxc)
    ctconf.write(vmid, config)


def remove(vmid, config, name):
    """Forget a snapshot."""
    if os.path.isdir(_store(vmid, name)):
        shutil.rmtree(_store(vmid, name))
    parent = config.snapshots.pop(name).settings.get("parent")
    for other in [config, *config.snapshots.values()]:
        if other.settings.get("parent") == name:
            if parent:
                other.settings["parent"] = parent
            else:
                del other.settings["parent"]
    ctconf.write(vmid, config)


def show(config):
    """Print the tree as pct does: oldest first, the current state last."""
    names = sorted(
        config.snapshots, key=lambda name: int(config.snapshots[name].settings["snaptime"])
    )
    for depth, name in enumerate(names):
        saved = config.snapshots[name]
        stamp = time.localtime(int(saved.settings["snaptime"]))
        when = time.strftime("%Y-%m-%d %H:%M:%S", stamp)
        words = saved.description.strip() or "no-description"
        print("%s`-> %-22s %-23s %s" % (" " * depth, name, when, words))
    print("%s`-> %-46s %s" % (" " * len(names), "current", "You are here!"))
