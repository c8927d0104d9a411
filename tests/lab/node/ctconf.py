"""Read and write Proxmox container configurations, and turn one into LXC's. Runs on the node."""

import hashlib
import os
import re
import stat

CONFIG_DIR = "/etc/pve/lxc"


class Config:
    """One VMID.conf: settings, raw lxc.* lines in order, snapshots by name."""

    def __init__(self):
        self.settings = {}
        self.lxc = []  # (key, value)
        self.description = ""
        self.snapshots = {}  # name -> Config
        self.pending = {}  # what a running container takes at its next start


def parse(text):
    """Return (Config, complaints); lines that make no sense are complained about and skipped."""
    root = config = Config()
    complaints = []
    for line in text.splitlines():
        section = re.match(r"\[([a-z][a-z0-9_\-:]+)\]\s*$", line, re.I)
        raw = re.match(r"(lxc\.[a-z0-9_\-.]+)(?::|\s*=)\s*(.*?)\s*$", line)
        setting = re.match(r"([a-z][a-z_]*\d*):\s*(.+?)\s*$", line)
        if not line.strip():
            continue
        if section and section.group(1) == "pve:pending":
            config = Config()
            root.pending = config.settings
        elif section:
            config = root.snapshots.setdefault(section.group(1), Config())
        elif line.startswith("#"):
            config.description += line[1:] + "\n"
        elif raw:
            config.lxc.append((raw.group(1), raw.group(2)))
        elif setting:
            config.settings[setting.group(1)] = setting.group(2)
        else:
            complaints.append(line)
    return root, complaints


def dump(config):
    """Return the text of a configuration, snapshots after the settings."""
    lines = ["#" + line for line in config.description.splitlines()]
    lines += ["{}: {}".format(*item) for item in sorted(config.settings.items())]
    lines += ["{}: {}".format(*item) for item in config.lxc]
    if config.pending:
        lines += ["", "[pve:pending]"]
        lines += ["{}: {}".format(*item) for item in sorted(config.pending.items())]
    for name in sorted(config.snapshots):
        lines += ["", f"[{name}]", dump(config.snapshots[name]).rstrip("\n")]
    return "\n".join(lines) + "\n"


def path_of(vmid):
    """Return the path of the configuration of ``vmid``."""
    return f"{CONFIG_DIR}/{vmid}.conf"


def digest(vmid):
    """Return the hash that the API gives and takes, so that nobody writes over somebody else's change."""
    with open(path_of(vmid), "rb") as file:
        return hashlib.sha1(file.read()).hexdigest()


def write(vmid, config):
    """Replace the configuration in one piece."""
    path = path_of(vmid)
    with open(path + ".tmp", "w") as file:
        file.write(dump(config))
    os.chmod(path + ".tmp", 0o640)  # as /etc/pve shows each file: others cannot read it
    os.replace(path + ".tmp", path)


def properties(value):
    """Split ``a,b=c`` as Proxmox does; the part without a key gets the key ``""``."""
    result = {}
    for part in value.split(","):
        key, equals, rest = part.partition("=")
        if equals:
            result[key] = rest
        else:
            result[""] = key
    return result


def lxc_config(vmid, config):
    """Return LXC's configuration for a container, with the cgroup layout of Proxmox VE."""
    settings = config.settings
    base = f"/var/lib/lxc/{vmid}"
    lines = [
        "lxc.cgroup.relative = 0",
        f"lxc.cgroup.dir.monitor = lxc.monitor/{vmid}",
        f"lxc.cgroup.dir.container = lxc/{vmid}",
        "lxc.cgroup.dir.container.inner = ns",
        "lxc.arch = {}".format(settings.get("arch", "amd64")),
        "lxc.include = /usr/share/lxc/config/common.conf",
        "lxc.apparmor.profile = unconfined",
        "lxc.mount.auto =",
        "lxc.mount.auto = proc:rw sys:rw cgroup:rw:force",
        "lxc.console.path = none",
        "lxc.tty.max = 0",
        "lxc.pty.max = 128",
        "lxc.environment = TERM=linux",
        "lxc.uts.name = {}".format(settings.get("hostname", f"CT{vmid}")),
        f"lxc.rootfs.path = dir:{base}/rootfs",
        "lxc.signal.halt = %s" % ("SIGTERM" if "entrypoint" in settings else "SIGRTMIN+3"),
        "lxc.mount.entry = tmpfs tmp tmpfs nosuid,nodev,mode=1777 0 0",
        # what a real container sees of its node's kernel
        "lxc.mount.entry = /proc/driver proc/driver none bind,ro,optional 0 0",
        "lxc.mount.entry = /proc/devices proc/devices none bind,ro,optional 0 0",
    ]
    if "entrypoint" in settings:
        lines.append("lxc.init.cmd = {}".format(settings["entrypoint"]))
        lines.append("lxc.mount.entry = shm dev/shm tmpfs rw,nosuid,nodev,mode=1777,create=dir 0 0")
    else:
        lines.append("lxc.init.cmd = /usr/lib/systemd/systemd")
    for key in sorted(settings):
        lines += _lines_of(vmid, key, properties(settings[key]))
    lines += ["{} = {}".format(*item) for item in config.lxc]
    return "\n".join(lines) + "\n"


def _lines_of(vmid, key, value):
    kind, number = re.match(r"([a-z_]+?)(\d*)$", key).groups()
    if kind == "net":
        return _network_lines(vmid, number, value)
    if kind == "mp":
        access = "ro" if value.get("ro") == "1" else "rw"
        entry = "{} {} none bind,{},create=dir 0 0".format(
            value[""], value["mp"].lstrip("/"), access
        )
        return ["lxc.mount.entry = " + entry]
    if kind == "dev":
        return _device_lines(value)
    return []


def _network_lines(vmid, number, value):
    prefix = f"lxc.net.{number}."
    lines = [
        prefix + "type = veth",
        prefix + "flags = up",
        prefix + f"veth.pair = veth{vmid}i{number}",
        prefix + "link = {}".format(value.get("bridge", "vmbr0")),
        prefix + "name = {}".format(value.get("name", "eth0")),
    ]
    if "hwaddr" in value:
        lines.append(prefix + "hwaddr = {}".format(value["hwaddr"]))
    if "ip" in value and value["ip"] not in ("dhcp", "manual"):
        lines.append(prefix + "ipv4.address = {}".format(value["ip"]))
    return lines


def device_of(value):
    """Return the path that a devN value names."""
    words = properties(value)
    return words.get("") or words["path"]


def _device_lines(value):
    path = value.get("") or value["path"]
    try:
        info = os.stat(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"Device {path} does not exist") from None
    letter = "b" if stat.S_ISBLK(info.st_mode) else "c"
    rule = f"{letter} {os.major(info.st_rdev)}:{os.minor(info.st_rdev)} rw"
    return [
        "lxc.cgroup.devices.allow = " + rule,
        "lxc.cgroup2.devices.allow = " + rule,
        "lxc.mount.entry = {} {} none bind,create=file 0 0".format(path, path.lstrip("/")),
    ]
