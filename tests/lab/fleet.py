"""A fleet: N plain sshd hosts, each with its own network, processes, files, boot id and GPUs.

They are made of the same namespaces as containers, without LXC and systemd: process 1 is sshd. A
hundred of them are up in a few seconds.
"""

from __future__ import annotations

import os
import select
import time
import uuid
from pathlib import Path

from tests.lab import access, gpus, hosts, kernel, software
from tests.lab.enter import must
from tests.lab.errors import LabError
from tests.lab.instance import BOOT_ID, Instance
from tests.lab.rootfs import Layer, mount_overlay

MAX_HOSTS = 500
PER_NET = 250
START_S = 60
DEVICES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}  # minors of major 1


def addresses(count: int) -> list[str]:
    """Return the addresses of h1 to hN."""
    if not 1 <= count <= MAX_HOSTS:
        raise LabError(f"a fleet has 1 to {MAX_HOSTS} hosts")
    return [f"10.77.{2 + index // PER_NET}.{1 + index % PER_NET}" for index in range(count)]


def ssh_hosts(count: int) -> list[access.SshHost]:
    """Return what the control machine knows of the fleet."""
    return [
        access.SshHost(f"h{number}", (address,))
        for number, address in enumerate(addresses(count), 1)
    ]


def prepare(instance: Instance, count: int) -> None:
    """Make the GPU sets and host keys; outside of the lab's namespaces."""
    for number in range(1, count + 1):
        gpus.create(instance.gpu_dirs / f"h{number}", f"h{number}", slots=False)


def build(instance: Instance, count: int) -> None:
    """Start the hosts and wait until each sshd answers; runs inside the lab."""
    base = _base_layer(instance)
    names = [f"h{number}" for number in range(1, count + 1)]
    waiting = []
    failures, report = os.pipe()  # closed by each exec; its end is the word that all hosts run
    for name in names:
        read_end, go = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(go)
            _run_host(instance, name, base, read_end, report)
        os.close(read_end)
        waiting.append((name, pid, go))
    _wire(waiting, addresses(count))
    for _, _, go in waiting:
        os.write(go, b"y")
        os.close(go)
    os.close(report)
    deadline = time.monotonic() + START_S
    ready, _, _ = select.select([failures], [], [], START_S)
    words = os.read(failures, 4000).decode() if ready else "time out"
    if words:
        raise LabError(f"the fleet did not start: {words.splitlines()[0]}")
    from tests.lab.build import wait_for_ssh

    for address in addresses(count):
        wait_for_ssh(address, timeout_s=max(0.1, deadline - time.monotonic()))


def _base_layer(instance: Instance) -> Path:
    """Fill the layer that all hosts share, below a writable one of their own."""
    layer = Layer(instance.run_dir / "fleet" / "base", "fleet")
    layer.create()
    layer.put("etc/hosts", "127.0.0.1 localhost\n")
    software.install_gpu_software(layer, instance)
    software.install_server(layer)
    layer.put("etc/ssh/sshd_config", SSHD_CONFIG)
    layer.add_users(hosts.USERS, (instance.keys / "id_ed25519.pub").read_text().strip())
    for folder in ("run/sshd", "opt/lab-src", "var/lib/lab-gpu", *map(_inner, _shared(instance))):
        (layer.upper / folder).mkdir(parents=True, exist_ok=True)
    return layer.upper


SSHD_CONFIG = """\
HostKey /etc/ssh/ssh_host_ed25519_key
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PrintMotd no
Subsystem sftp /usr/lib/openssh/sftp-server
"""


def _shared(instance: Instance) -> list[Path]:
    from tests.lab import node

    return node.shared_folders(instance)


def _inner(path: Path) -> str:
    return str(path)[1:]


def _wire(waiting: list[tuple[str, int, int]], addresses: list[str]) -> None:
    """Give each host an interface on the bridge; the addresses are set in the host itself."""
    lines = []
    for index, (name, pid, _) in enumerate(waiting):
        _wait_for_own_network(pid)
        mac = f"02:4c:77:02:{index // 256:02x}:{index % 256:02x}"
        lines += [
            f"link add v-{name} type veth peer name eth0 address {mac} netns {pid}",
            f"link set v-{name} master {hosts.BRIDGE} up",
        ]
    must(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n")


def _wait_for_own_network(pid: int) -> None:
    own = os.readlink("/proc/self/ns/net")
    deadline = time.monotonic() + 10
    while os.readlink(f"/proc/{pid}/ns/net") == own:
        if time.monotonic() > deadline:
            raise LabError("a host of the fleet did not get its network namespace")
        time.sleep(0.001)


def _run_host(instance: Instance, name: str, base: Path, go: int, report: int) -> None:
    """Become the host: namespaces, network, files, then sshd as its process 1. Never returns."""
    try:
        kernel.unshare(kernel.NEWNS | kernel.NEWUTS | kernel.NEWPID | kernel.NEWNET)
        parent_waits, gone_on = os.pipe()
        if os.fork():  # the first child of a process namespace is its process 1
            os.close(gone_on)
            os.read(parent_waits, 1)  # the network namespace is found by this pid until then
            os._exit(0)
        if os.read(go, 1) != b"y":
            os._exit(0)
        os.close(gone_on)
        os.setsid()
        number = int(name[1:])
        address = addresses(number)[-1]
        setup = f"link set lo up\naddress add {address}/16 dev eth0\nlink set eth0 up\n"
        must(["ip", "-batch", "-"], stdin=setup)
        kernel.set_hostname(name)
        root = _mount_root(instance, name, base)
        null = os.open(os.devnull, os.O_RDWR)
        log = os.open(instance.log_dir / f"sshd-{name}.log", os.O_WRONLY | os.O_CREAT, 0o600)
        os.chroot(root)
        os.chdir("/")
        for descriptor, target in ((null, 0), (null, 1), (log, 2)):
            os.dup2(descriptor, target)
        os.execv("/usr/sbin/sshd", ["/usr/sbin/sshd", "-D", "-e"])
    except (OSError, LabError) as error:
        os.write(report, f"{name}: {error}\n".encode())
    os._exit(1)


def _mount_root(instance: Instance, name: str, base: Path) -> Path:
    """Mount the host's files; inside its own mount and process namespaces."""
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    folder = instance.run_dir / "fleet" / name
    upper = folder / "upper"
    key = access.host_key(instance, name)
    layer = Layer(upper, name)
    layer.copy(key, "etc/ssh/ssh_host_ed25519_key", 0o600)
    layer.put("etc/hostname", name + "\n")
    (upper / "etc").chmod(0o755)
    root = folder / "rootfs"
    mount_overlay(f"{base}:/", upper, folder / "work", root)
    kernel.mount("proc", root / "proc", "proc")
    for path, mode in (("dev", "755"), ("run", "755"), ("tmp", "1777")):
        kernel.mount("tmpfs", root / path, "tmpfs", kernel.MS_NOSUID, f"mode={mode}")
    (root / "run/sshd").mkdir()
    (root / "run/boot_id").write_text(f"{uuid.uuid4()}\n")
    kernel.bind(root / "run/boot_id", root / str(BOOT_ID)[1:])
    _make_devices(root / "dev")
    kernel.bind(hosts.LAB_SOURCE_DIR, root / "opt/lab-src", read_only=True)
    gpu_dir = instance.gpu_dirs / name
    kernel.bind(gpu_dir, root / "var/lib/lab-gpu")
    kernel.bind(gpu_dir / gpus.PROC_DRIVER, root / "proc/driver", read_only=True)
    for path in _shared(instance):
        kernel.bind(path, root / _inner(path), read_only=True)
    return root


def _make_devices(dev: Path) -> None:
    nodes = {dev / name: (1, minor) for name, minor in DEVICES.items()} | {dev / "tty": (5, 0)}
    for path in gpus.NODES:
        nodes[dev / Path(path).name] = gpus.UVM_NODE if "uvm" in path else gpus.CONTROL_NODE
    for path, (major, minor) in nodes.items():
        os.mknod(path, 0o20666, os.makedev(major, minor))
        path.chmod(0o666)
    (dev / "pts").mkdir()
    (dev / "shm").mkdir()
    kernel.mount("devpts", dev / "pts", "devpts", kernel.MS_NOSUID, "newinstance,ptmxmode=0666")
    kernel.mount("tmpfs", dev / "shm", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=1777")
    (dev / "ptmx").symlink_to("pts/ptmx")
    (dev / "fd").symlink_to("/proc/self/fd")
