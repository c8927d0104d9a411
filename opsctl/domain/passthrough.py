"""Is the GPU passed through to a container as it must be? Pure: facts in, findings with exact lines out.

Sources: pve-container (dev[n] since Proxmox VE 8.1, lxc.* lines), the NVIDIA driver's README (device
files and majors: nvidia and nvidiactl share one fixed major, nvidia-uvm gets one at load time, so it can
change with each boot), lxc.container.conf (cgroup2 device rules).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from opsctl.output import Finding
from opsctl.records import dataclass

SHM_PER_GPU_BYTES = 1 << 30  # below this NCCL and the schedulers' queues have been seen to run out
DEVICE = re.compile(r"/dev/nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset)$")
GPU = re.compile(r"/dev/nvidia(\d+)$")
OPTIONAL = ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")  # computing works without them


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A name below /dev. ``number`` is (major, minor); None: there is something else under the name."""

    path: str
    number: tuple[int, int] | None
    mode: int = 0o666


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the node shows: character majors by driver name, its device files, the loaded module."""

    majors: Mapping[str, int]
    devices: tuple[DeviceNode, ...]
    module_version: str | None


@dataclass(frozen=True, slots=True)
class InsideFacts:
    """What the running container shows. ``shm_bytes`` None: it has no /dev/shm of its own."""

    devices: tuple[DeviceNode, ...]
    library_version: str | None
    shm_bytes: int | None
    id_map: tuple[tuple[int, int, int], ...]

    @property
    def is_shifted(self) -> bool:
        """Say whether root in the container is another user on the node."""
        return bool(self.id_map) and self.id_map[0][:2] != (0, 0)


@dataclass(frozen=True, slots=True)
class Rule:
    """One device rule of the container's cgroup. None stands for ``*``."""

    kind: str
    major: int | None
    minor: int | None
    access: str

    def allows(self, number: tuple[int, int]) -> bool:
        fits = self.kind == "a" or (
            self.kind == "c" and self.major in (None, number[0]) and self.minor in (None, number[1])
        )
        return fits and {"r", "w"} <= set(self.access)


@dataclass(frozen=True, slots=True)
class CtConfig:
    """The parts of a container's configuration that decide about devices."""

    unprivileged: bool
    nesting: bool
    ostype: str
    devs: Mapping[str, str] = field(default_factory=dict)  # device path -> key, as in dev0
    mounts: Mapping[str, str] = field(default_factory=dict)  # source -> place, without its slash
    rules: tuple[Rule, ...] = ()
    free_dev: int = 0  # the first number without a devN line

    def source_of(self, path: str) -> str | None:
        """Return how the configuration passes a device: devN, lxc.mount.entry, or not at all."""
        if path in self.devs:
            return self.devs[path]
        return "lxc.mount.entry" if path in self.mounts or "/dev" in self.mounts else None


@dataclass(frozen=True, slots=True)
class Row:
    """One device in three views."""

    path: str
    node: str | None
    config: str | None
    inside: str | None


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict: ``broken`` keep a GPU from working, ``doubts`` do not or not always."""

    rows: tuple[Row, ...]
    broken: tuple[Finding, ...]
    doubts: tuple[Finding, ...]


def parse_config(config: Mapping[str, Any]) -> CtConfig:
    """Read the answer of the API's ``config``: settings, and ``lxc`` as pairs of key and value."""
    devs: dict[str, str] = {}
    for key, value in config.items():
        if re.fullmatch(r"dev\d+", key):
            words = dict(_property(part) for part in str(value).split(","))
            devs[words.get("path") or words.get("", "")] = key
    taken = {int(key[3:]) for key in config if re.fullmatch(r"dev\d+", key)}
    mounts: dict[str, str] = {}
    rules: list[Rule] = []
    for key, value in config.get("lxc") or []:
        words_of = str(value).split()
        if key == "lxc.mount.entry" and len(words_of) >= 2:
            mounts[words_of[0]] = words_of[1].strip("/")
        elif key == "lxc.cgroup2.devices.allow":
            rules += parse_rule(str(value))
    features = dict(_property(part) for part in str(config.get("features") or "").split(","))
    return CtConfig(
        unprivileged=str(config.get("unprivileged", 0)) == "1",
        nesting=features.get("nesting") == "1",
        ostype=str(config.get("ostype") or "unknown"),
        devs=devs,
        mounts=mounts,
        rules=tuple(rules),
        free_dev=next(number for number in range(len(taken) + 1) if number not in taken),
    )


def parse_rule(text: str) -> list[Rule]:
    """Read ``c 195:* rwm`` or ``a``; what cannot be read allows nothing."""
    words = text.split()
    if words[:1] == ["a"]:
        return [Rule("a", None, None, words[2] if len(words) > 2 else "rwm")]
    found = re.fullmatch(r"([bc]) (\d+|\*):(\d+|\*) ([rwm]+)", " ".join(words))
    if found is None:
        return []
    kind, major, minor, access = found.groups()
    numbers = [None if number == "*" else int(number) for number in (major, minor)]
    return [Rule(kind, numbers[0], numbers[1], access)]


def judge_passthrough(
    vmid: int, node: NodeFacts, config: CtConfig, inside: InsideFacts | None
) -> Judged:
    """Compare node, configuration and container; ``inside`` None where the container does not run."""
    paths = [item.path for item in node.devices if DEVICE.match(item.path)]
    wanted = list(dict.fromkeys([*paths, "/dev/nvidiactl", "/dev/nvidia-uvm"]))
    on_node = {item.path: item for item in node.devices}
    in_ct = {item.path: item for item in inside.devices} if inside else {}
    rows = tuple(
        Row(path, _number(on_node.get(path)), config.source_of(path), _number(in_ct.get(path)))
        for path in wanted
    )
    broken = judge_node(node)
    doubts: list[Finding] = []
    gpus = [path for path in wanted if GPU.match(path)]
    if gpus and not any(config.source_of(path) or path in in_ct for path in gpus):
        broken.append(_none_passed(vmid, gpus, config))
    else:
        free = config.free_dev
        for path in wanted:
            device = on_node.get(path)
            if device is None or device.number is None:
                continue
            found = judge_device(vmid, device, config, inside is not None, in_ct.get(path), free)
            free += any(item.code == "device-not-passed" for item in found)
            # one GPU of several may be left out on purpose
            minor = path in OPTIONAL or GPU.match(path)
            left_out = minor and all(item.code == "device-not-passed" for item in found)
            (doubts if left_out else broken).extend(found)
    if inside is not None:
        broken += judge_driver(vmid, node, inside)
        broken += _judge_access(vmid, config, inside)
        doubts += _judge_room(vmid, inside, len([path for path in gpus if path in in_ct]))
    if not config.nesting:
        doubts.append(
            Finding(
                "no-nesting",
                str(vmid),
                "nesting is off: systemd and container tools inside may fail",
                _line(vmid, "features: nesting=1"),
            )
        )
    return Judged(rows, tuple(broken), tuple(doubts))


def judge_node(node: NodeFacts) -> list[Finding]:
    """Judge what no container can mend: the module, nvidia-uvm, and device files of another major."""
    majors = node.majors
    if "nvidia" not in majors and "nvidia-frontend" not in majors:
        text = "the node's kernel has not loaded the nvidia module (no major in /proc/devices)"
        step = "on the node: modprobe nvidia; after a kernel update build it for this kernel first"
        return [Finding("module-not-loaded", "node", text, step)]
    found = []
    if "nvidia-uvm" not in majors:
        text = "nvidia-uvm is not loaded on the node (it is loaded at the first use, not at boot)"
        step = "on the node: nvidia-modprobe -u -c=0; for each boot: echo nvidia-uvm > "
        step += "/etc/modules-load.d/nvidia-uvm.conf"
        found.append(Finding("uvm-not-loaded", "node", text, step))
    elif "/dev/nvidia-uvm" not in {item.path for item in node.devices}:
        text = "nvidia-uvm is loaded, but the node has no /dev/nvidia-uvm"
        step = "on the node: nvidia-modprobe -u -c=0"
        found.append(Finding("uvm-no-device", "/dev/nvidia-uvm", text, step))
    for item in node.devices:
        major = major_of(item.path, majors)
        if major is None or item.number is None or item.number[0] == major:
            continue
        text = (
            f"the node's file has major {item.number[0]}, its driver has {major} in /proc/devices"
        )
        step = f"on the node: rm {item.path} && nvidia-modprobe -u -c=0, then restart the container"
        found.append(Finding("node-stale-device", item.path, text, step))
    return found


def major_of(path: str, majors: Mapping[str, int]) -> int | None:
    """Return the major that a device file must have now; None where its driver is not loaded."""
    if path.startswith("/dev/nvidia-uvm"):
        return majors.get("nvidia-uvm")
    return majors.get("nvidia", majors.get("nvidia-frontend"))


def judge_device(
    vmid: int,
    device: DeviceNode,
    config: CtConfig,
    is_running: bool,
    seen: DeviceNode | None,
    free_dev: int,
) -> list[Finding]:
    """Judge one device file of the node: passed, allowed, and the same inside."""
    number, path = device.number, device.path
    assert number is not None
    source = config.source_of(path)
    reboot = f"opsctl ct reboot {vmid}"
    if source is None and seen is None:
        text = "the container's configuration does not pass it"
        line = f"dev{free_dev}: {path},mode=0666"
        return [Finding("device-not-passed", path, text, _line(vmid, line))]
    found = []
    by_hand = source is None or source == "lxc.mount.entry"  # devN lines bring their rule along
    if by_hand and not any(rule.allows(number) for rule in config.rules):
        found.append(_not_allowed(vmid, device, config))
    if not is_running:
        return found
    if seen is None:
        text = f"{source} passes it, but the running container does not have it"
        found.append(
            Finding("device-missing-inside", path, text, f"restart the container: {reboot}")
        )
    elif seen.number is None:
        text = "in the container it is a plain file: the node's device was not there at its start"
        found.append(Finding("device-is-a-file", path, text, f"restart the container: {reboot}"))
    elif seen.number != number:
        text = f"it is {_number(seen)} in the container and {_number(device)} on the node"
        found.append(Finding("device-stale", path, text, f"restart the container: {reboot}"))
    return found


def judge_driver(vmid: int, node: NodeFacts, inside: InsideFacts) -> list[Finding]:
    """Compare the driver's library in the container with the node's module; they must be one version."""
    module, library = node.module_version, inside.library_version
    if module is None or module == library:
        return []
    install = f"in the container: ./NVIDIA-Linux-x86_64-{module}.run --no-kernel-modules"
    if library is None:
        text = f"the container has no driver library; the node's module is {module}"
        return [Finding("driver-library-missing", str(vmid), text, install)]
    text = f"the container's driver library is {library}, the node's module is {module}"
    return [Finding("driver-mismatch", str(vmid), text, install)]


def _judge_access(vmid: int, config: CtConfig, inside: InsideFacts) -> list[Finding]:
    """In an unprivileged container the node's root owns the files, so everyone must be let in."""
    if not (config.unprivileged or inside.is_shifted):
        return []
    shut = [item for item in inside.devices if item.number and item.mode & 0o006 != 0o006]
    found = []
    for item in shut:
        if not DEVICE.match(item.path):
            continue
        key = config.devs.get(item.path)
        text = f"mode {item.mode:04o} shuts out users of the unprivileged container"
        if key is not None:
            step = _line(vmid, f"{key}: {item.path},mode=0666", "change")
        else:
            step = (
                f"on the node: chmod 0666 {item.path}, and NVreg_DeviceFileMode=0666 for the module"
            )
        found.append(Finding("device-no-access", item.path, text, step))
    return found


def _judge_room(vmid: int, inside: InsideFacts, gpus: int) -> list[Finding]:
    least = SHM_PER_GPU_BYTES * max(1, gpus)
    if inside.shm_bytes is not None and inside.shm_bytes >= least:
        return []
    has = "no" if inside.shm_bytes is None else f"{inside.shm_bytes >> 20} MiB of"
    text = (
        f"the container has {has} /dev/shm; {least >> 20} MiB are the least for {max(1, gpus)} GPUs"
    )
    size = f"{max(8, (least >> 30) * 4)}G"
    line = f"lxc.mount.entry: tmpfs dev/shm tmpfs rw,nosuid,nodev,create=dir,size={size} 0 0"
    return [Finding("shm-small", "/dev/shm", text, _line(vmid, line))]


def _none_passed(vmid: int, gpus: Sequence[str], config: CtConfig) -> Finding:
    paths = [*gpus, "/dev/nvidiactl", "/dev/nvidia-uvm"]
    numbers = range(config.free_dev, config.free_dev + len(paths))
    lines = [f"dev{number}: {path},mode=0666" for number, path in zip(numbers, paths, strict=True)]
    text = f"the container's configuration passes none of the node's {len(gpus)} GPUs"
    return Finding("no-gpu-passed", str(vmid), text, _line(vmid, "\n    ".join(["", *lines])))


def _not_allowed(vmid: int, device: DeviceNode, config: CtConfig) -> Finding:
    assert device.number is not None
    major = device.number[0]
    others = sorted({rule.major for rule in config.rules if rule.major is not None})
    has = f" (it allows {', '.join(str(number) for number in others)})" if others else ""
    text = f"no cgroup rule allows its major {major}{has}"
    line = f"lxc.cgroup2.devices.allow: c {major}:* rwm"
    return Finding("device-not-allowed", device.path, text, _line(vmid, line))


def _line(vmid: int, line: str, verb: str = "add") -> str:
    return f"{verb} in /etc/pve/lxc/{vmid}.conf, then restart the container: {line}"


def _number(device: DeviceNode | None) -> str | None:
    if device is None:
        return None
    return "file" if device.number is None else f"{device.number[0]}:{device.number[1]}"


def _property(part: str) -> tuple[str, str]:
    key, equals, value = part.strip().partition("=")
    return (key, value) if equals else ("", key)
