"""What `pct` does on the node, for its command line and for an API: configurations, locks, LXC."""

import contextlib
import fcntl
import os
import subprocess
import sys
import time

import ctconf
import switches

NODE = os.uname().nodename
LOCK_DIR = "/run/lock/lxc"
LOCK_WAIT_S = 10


class Die(Exception):
    """Printed to stderr as it is; pct exits with 255."""


def is_running(vmid):
    """A container runs while its command socket exists; so does the real check."""
    end = f"@/var/lib/lxc/{vmid}/command"
    with open("/proc/net/unix") as table:
        return any(line.rstrip().endswith(end) for line in table)


def load(vmid):
    """Return the configuration of a container of this node."""
    try:
        with open(ctconf.path_of(vmid)) as file:
            config, complaints = ctconf.parse(file.read())
    except FileNotFoundError:
        raise Die(f"Configuration file 'nodes/{NODE}/lxc/{vmid}.conf' does not exist") from None
    for line in complaints:
        sys.stderr.write(f"vm {vmid} - unable to parse config: {line}\n")
    return config


def refuse_locked(config):
    """Refuse while another task holds the container's lock."""
    if "lock" in config.settings:
        raise Die("CT is locked ({})".format(config.settings["lock"]))


@contextlib.contextmanager
def config_lock(vmid):
    """Hold the file lock under which configurations change."""
    os.makedirs(LOCK_DIR, exist_ok=True)
    path = f"{LOCK_DIR}/pve-config-{vmid}.lock"
    with open(path, "a") as file:
        deadline = time.monotonic() + float(switches.read("lock_wait_s", LOCK_WAIT_S))
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    sys.stderr.write("trying to acquire lock...\n")
                    told = True
                if time.monotonic() > deadline:
                    raise Die(f"can't lock file '{path}' - got timeout") from None
                time.sleep(0.1)
        yield


def init_pid(vmid):
    """Return the pid, on the node, of the container's init."""
    done = subprocess.run(
        ["lxc-info", "-n", vmid, "-p", "-H"], stdout=subprocess.PIPE, timeout=10, check=False
    )
    return done.stdout.decode().strip()


def start(vmid, config):
    """Write LXC's configuration and start the container's unit."""
    folder = f"/var/lib/lxc/{vmid}"
    os.makedirs(folder, exist_ok=True)
    os.makedirs("/run/pve", exist_ok=True)
    if config.pending:
        config.settings.update(config.pending)
        config.pending = {}
        ctconf.write(vmid, config)
    try:
        text = ctconf.lxc_config(vmid, config)
    except FileNotFoundError as error:
        raise Die(str(error)) from error
    with open(folder + "/config", "w") as file:
        file.write(text)
    unit = f"pve-container@{vmid}"
    subprocess.run(["systemctl", "reset-failed", unit], stderr=subprocess.DEVNULL, check=False)
    subprocess.run(["systemctl", "start", unit], timeout=60, check=False)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if is_running(vmid) and init_pid(vmid) not in ("", "-1"):
            return
        if subprocess.run(["systemctl", "is-failed", "-q", unit], check=False).returncode == 0:
            break
        time.sleep(0.05)
    raise Die(f"startup for container '{vmid}' failed")


def hotplug(vmid, value):
    """Give a running container a device, as Proxmox VE does since 9.0."""
    path = ctconf.device_of(value)
    info = os.stat(path)
    inside = f"/proc/{init_pid(vmid)}/root{path}"
    if not os.path.exists(inside):
        os.mknod(inside, info.st_mode, info.st_rdev)
    os.chmod(inside, int(ctconf.properties(value).get("mode", "0660"), 8))
    rule = f"c {os.major(info.st_rdev)}:{os.minor(info.st_rdev)} rw"
    # a node that is itself a container can pass on only what it was given
    allow = ["lxc-cgroup", "-n", vmid, "devices.allow", rule]
    subprocess.run(allow, stderr=subprocess.DEVNULL, timeout=20, check=False)


def mount(vmid):
    """Mount the root file system; the container's unit calls it before each start."""
    root = f"/var/lib/lxc/{vmid}/rootfs"
    disk = f"/var/lib/vz/images/{vmid}"
    if os.path.ismount(root):
        return
    for folder in (root, disk + "/upper", disk + "/work"):
        os.makedirs(folder, exist_ok=True)
    layers = f"lowerdir=/var/lib/vz/base,upperdir={disk}/upper,workdir={disk}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, root], check=True)


def stop_now(vmid, how):
    command = ["lxc-stop", "-n", vmid, *how]
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        sys.stderr.write(f"command '{' '.join(command)}' failed: exit code {code}\n")
    deadline = time.monotonic() + 10
    while code == 0 and is_running(vmid) and time.monotonic() < deadline:
        time.sleep(0.05)
    if is_running(vmid):
        raise Die("container did not stop")
    wait = time.monotonic() + 10
    root = f"/var/lib/lxc/{vmid}/rootfs"
    while os.path.ismount(root) and time.monotonic() < wait:
        time.sleep(0.05)
