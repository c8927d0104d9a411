"""The lab's two hosts, `pve1` and `gpu1`: LXC containers with systemd, sshd and an address of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.lab import access, delay, gpus, node, software
from tests.lab.enter import must
from tests.lab.instance import CHECKOUT, Instance
from tests.lab.rootfs import Layer, User, mount_overlay

LAB_SOURCE_DIR = CHECKOUT / "tests" / "lab"
LAB_SOURCE = "/opt/lab-src"  # this folder, read only, in every host and container
GPU_DIR = "/var/lib/lab-gpu"  # the state of the GPUs that the host owns
USERS = [User("ops", 2001, "free"), User("asks", 2002, "asks")]
BRIDGE = "br0"
CONTROL_ADDRESS = "10.77.255.254/16"


@dataclass(frozen=True, slots=True)
class LabHost:
    """One host of the lab. The first address is the one that its name stands for."""

    name: str
    addresses: tuple[str, ...]
    mac: str
    device: str  # the interface that carries the addresses
    ports_of_bridge: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = field(default=())


PVE1 = LabHost(
    "pve1",
    ("10.77.1.1", "10.77.1.3"),
    "02:4c:77:01:00:01",
    "vmbr0",
    ports_of_bridge=("eth0",),
    aliases=(("pve1-ops", "ops"), ("pve1-asks", "asks")),
)
GPU1 = LabHost(
    "gpu1",
    ("10.77.1.2",),
    "02:4c:77:01:00:02",
    "eth0",
    aliases=(("gpu1-ops", "ops"), ("gpu1-asks", "asks")),
)
HOSTS = (PVE1, GPU1)


def ssh_hosts() -> list[access.SshHost]:
    """Return what the control machine knows of the hosts; NAME-far answers through tests.lab.delay."""
    near = [access.SshHost(host.name, host.addresses, aliases=host.aliases) for host in HOSTS]
    far = [
        access.SshHost(f"{host.name}-far", (delay.FAR[host.name],), key=host.name) for host in HOSTS
    ]
    return near + far


def build_host(instance: Instance, host: LabHost) -> None:
    """Fill and mount the host's root file system and write its LXC configuration."""
    folder = instance.run_dir / "hosts" / host.name
    services = ["lab-host.service", "ssh.service"]
    if host is PVE1:
        services.append("pveproxy.service")
    layer = Layer(folder / "upper", host.name, services)
    layer.put("etc/systemd/system/lab-host.service", _host_unit(host))
    if host is PVE1:
        layer.put("etc/systemd/system/pveproxy.service", node.API_UNIT)
    layer.create()
    layer.put("etc/hosts", hosts_file(host.name))
    layer.put("etc/tmpfiles.d/lab.conf", gpus.device_nodes())
    layer.add_sshd(access.host_key(instance, host.name))
    public = (instance.keys / "id_ed25519.pub").read_text().strip()
    layer.add_users(USERS, public)
    software.install_gpu_software(layer, instance)
    software.install_server(layer)
    if host is PVE1:
        node.install(layer, instance)
    mount_overlay("/", layer.upper, folder / "work", folder / "rootfs")
    config = instance.dir / "lxc" / host.name / "config"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(_lxc_config(instance, host))


def hosts_file(own: str) -> str:
    """Return /etc/hosts of a lab host."""
    lines = [f"127.0.0.1 localhost\n127.0.1.1 {own}"]
    lines += [f"{host.addresses[0]} {host.name}" for host in HOSTS if host.name != own]
    return "\n".join(lines) + "\n"


def _host_unit(host: LabHost) -> str:
    ip = "ExecStart=/usr/sbin/ip"
    lines = ["ExecStart=/usr/bin/systemd-tmpfiles --create /etc/tmpfiles.d/lab.conf"]
    if host.ports_of_bridge:
        lines += [
            f"{ip} link add {host.device} address {host.mac} type bridge",
            *(f"{ip} link set {port} master {host.device} up" for port in host.ports_of_bridge),
        ]
    lines += [f"{ip} address add {address}/16 dev {host.device}" for address in host.addresses]
    lines.append(f"{ip} link set {host.device} up")
    return (
        "[Unit]\nDescription=Addresses and device nodes of this lab host\nDefaultDependencies=no\n"
        "Before=ssh.service network.target\n[Service]\nType=oneshot\nRemainAfterExit=yes\n"
        + "\n".join(lines)
        + "\n"
    )


def _lxc_config(instance: Instance, host: LabHost) -> str:
    run = instance.run_dir / "hosts" / host.name
    entries = [
        "tmpfs tmp tmpfs nosuid,nodev,mode=1777 0 0",
        f"{LAB_SOURCE_DIR} {LAB_SOURCE[1:]} none bind,ro,create=dir 0 0",
        *(
            f"{path} {str(path)[1:]} none bind,ro,create=dir 0 0"
            for path in node.shared_folders(instance)
        ),
        f"{instance.gpu_dirs / host.name} {GPU_DIR[1:]} none bind,create=dir 0 0",
        f"{instance.gpu_dirs / host.name / gpus.PROC_DRIVER} proc/driver none bind 0 0",
        f"{run / 'proc-devices'} proc/devices none bind 0 0",
    ]
    (run / "proc-devices").write_text(gpus.proc_devices(Path("/proc/devices").read_text()))
    if host is PVE1:
        (run / "images").mkdir()
        entries += [
            "/ var/lib/vz/base none bind,ro,create=dir 0 0",
            f"{run / 'images'} var/lib/vz/images none bind,create=dir 0 0",
        ]
    cgroup = instance.cgroup
    return "\n".join(
        [
            f"lxc.uts.name = {host.name}",
            f"lxc.rootfs.path = dir:{run / 'rootfs'}",
            "lxc.init.cmd = /usr/lib/systemd/systemd",
            "lxc.signal.halt = SIGRTMIN+3",
            "lxc.apparmor.profile = unconfined",
            "lxc.cap.drop =",
            "lxc.mount.auto = proc:rw sys:rw cgroup:rw:force",
            "lxc.autodev = 1",
            "lxc.tty.max = 0",
            "lxc.pty.max = 256",
            "lxc.console.path = none",
            "lxc.cgroup.relative = 0",
            f"lxc.cgroup.dir.monitor = {cgroup}/monitor-{host.name}",
            f"lxc.cgroup.dir.container = {cgroup}/{host.name}",
            "lxc.net.0.type = veth",
            f"lxc.net.0.link = {BRIDGE}",
            "lxc.net.0.name = eth0",
            "lxc.net.0.flags = up",
            *([] if host.ports_of_bridge else [f"lxc.net.0.hwaddr = {host.mac}"]),
            *(f"lxc.mount.entry = {entry}" for entry in entries),
            "",
        ]
    )


def start_host(instance: Instance, host: LabHost) -> None:
    """Start the host and return when LXC calls it running."""
    log = instance.log_dir / f"lxc-{host.name}.log"
    argv = ["lxc-start", "-P", str(instance.dir / "lxc"), "-n", host.name, "-d"]
    must([*argv, "-l", "INFO", "-o", str(log)], timeout_s=60)


def attach_argv(instance: Instance, host: str, argv: list[str]) -> list[str]:
    """Return the argv that runs ``argv`` in a host, without ssh, from inside the lab."""
    lxc = ["lxc-attach", "-P", str(instance.dir / "lxc"), "-n", host, "--clear-env", "--"]
    return [*lxc, *argv]


def make_network() -> None:
    """Make the lab's bridge, with the control machine's address on it. There is no route outside."""
    lines = "\n".join(
        [
            "link set lo up",
            f"link add {BRIDGE} type bridge",
            f"address add {CONTROL_ADDRESS} dev {BRIDGE}",
            f"link set {BRIDGE} up",
        ]
    )
    must(["ip", "-batch", "-"], stdin=lines + "\n")
