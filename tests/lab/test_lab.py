"""The lab is what it says: hosts, container, GPU memory held by processes, faults."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys

import pytest

from tests.lab import gpus, interpreter
from tests.lab.fixture import Lab, outside_network, wait_until
from tests.lab.instance import CHECKOUT

pytestmark = pytest.mark.lab


def used_mib(lab: Lab, host: str, gpu: int) -> int:
    """Ask the host's NVML, through nvidia-smi, for the memory in use."""
    query = ["/usr/bin/nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(lab.on(host, query).stdout.split()[gpu])


def holders(lab: Lab, host: str) -> list[str]:
    """Return the pids that the host's NVML names."""
    query = ["/usr/bin/nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    return lab.on(host, query).stdout.split()


def test_gpu_memory_is_freed_by_sigkill(clean_lab: Lab) -> None:
    """The kernel gives the memory back; nothing has to be told."""
    with clean_lab.holding("pve1", 3, 4096, "--ignore-term") as pid:
        assert used_mib(clean_lab, "pve1", 3) == 4096
        assert holders(clean_lab, "pve1") == [str(pid)]

        clean_lab.on("pve1", ["/usr/bin/kill", "-9", str(pid)])

        wait_until(lambda: used_mib(clean_lab, "pve1", 3) == 0, 10, "memory is free")
        assert holders(clean_lab, "pve1") == []


def test_a_container_sees_the_nodes_memory_but_not_its_holders(clean_lab: Lab) -> None:
    """The node names the container's process by the node's pid; the container names nobody."""
    with clean_lab.holding("ct129", 0, 512) as inner_pid:
        on_node = holders(clean_lab, "pve1")

        assert used_mib(clean_lab, "ct129", 0) == used_mib(clean_lab, "pve1", 0) == 512
        assert holders(clean_lab, "ct129") == []
        status = clean_lab.on("pve1", ["/usr/bin/grep", "NSpid", f"/proc/{on_node[0]}/status"])
        assert status.stdout.split() == ["NSpid:", on_node[0], str(inner_pid)]


def test_the_node_sees_the_cgroup_of_proxmox(clean_lab: Lab) -> None:
    """A process of container 129 is below lxc/129/ns, attached or started by its init."""
    with clean_lab.holding("ct129", 0, 1):
        attached = holders(clean_lab, "pve1")[0]
        init = clean_lab.on("pve1", ["/usr/bin/lxc-info", "-n", "129", "-pH"]).stdout.strip()

        for pid in (attached, init):
            lines = clean_lab.on("pve1", ["/usr/bin/cat", f"/proc/{pid}/cgroup"]).stdout
            unified = next(line for line in lines.splitlines() if line.startswith("0::"))
            assert unified.startswith("0::/lxc/129/ns")


def test_the_operator_can_place_a_display_server_and_clear_it(clean_lab: Lab) -> None:
    """`gpu hold --display` is a real process of type G named Xorg; `gpu release` ends it."""
    gpu = [sys.executable, "-m", "tests.lab", "gpu"]
    env = {**os.environ, "OPSCTL_LAB": clean_lab.instance.name}
    held = subprocess.run(
        [*gpu, "hold", "--display", "--gpu", "1", "--mib", "40"],
        env=env, cwd=CHECKOUT, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip

    table = clean_lab.on("pve1", ["/usr/bin/nvidia-smi"]).stdout

    assert held.returncode == 0, held.stderr
    pid = held.stdout.split()[-1]
    row = next(line.split() for line in table.splitlines() if "Xorg" in line)
    assert row[1:6] == ["1", pid, "G", "/usr/lib/xorg/Xorg", "40MiB"]
    assert clean_lab.on("pve1", ["/usr/bin/cat", f"/proc/{pid}/comm"]).stdout == "Xorg\n"
    done = subprocess.run(
        [*gpu, "release"], env=env, cwd=CHECKOUT, capture_output=True, timeout=30, check=False
    )
    assert done.stdout == b"ended 1 process(es)\n"
    wait_until(lambda: used_mib(clean_lab, "pve1", 1) == 0, 10, "memory is free")


def test_a_fault_is_seen_by_the_node_and_its_container(clean_lab: Lab) -> None:
    """One folder is behind both; gpu1 is not touched."""
    gpus.set_fault(clean_lab.gpu_dir("pve1"), "mismatch")

    for host, code in (("pve1", 18), ("ct129", 18), ("gpu1", 0)):
        done = clean_lab.on(host, ["/usr/bin/nvidia-smi"])
        assert done.exit_code == code
        assert ("Driver/library version mismatch" in done.stdout) == (code != 0)
        module = clean_lab.on(host, ["/usr/bin/cat", "/proc/driver/nvidia/version"]).stdout
        assert (" 580.65.06 " in module) == (code != 0)


def test_the_incidents_one_liner_counts_as_it_did(clean_lab: Lab) -> None:
    """`grep 0MiB` finds idle GPUs, and also one that holds 86450 MiB."""
    with clean_lab.holding("pve1", 0, 86450), clean_lab.holding("pve1", 1, 86451):
        counted = clean_lab.ssh("pve1", "nvidia-smi | grep 0MiB | wc -l").stdout.strip()

    assert counted == "8"  # six idle ones, and 86450MiB twice: in the table and as a process


def test_the_kernel_modules_version_shows_in_node_and_container(lab: Lab) -> None:
    """As /proc/driver/nvidia/version does; /proc/devices knows the majors of the nodes."""
    for host in ("pve1", "gpu1", "ct129"):
        version = lab.on(host, ["/usr/bin/head", "-1", "/proc/driver/nvidia/version"]).stdout
        devices = lab.on(host, ["/usr/bin/grep", "nvidia", "/proc/devices"]).stdout.split()
        major = lab.on(host, ["/usr/bin/stat", "-c", "%t", "/dev/nvidia-uvm"]).stdout.strip()

        assert f"  {gpus.DRIVER}  " in version
        assert devices[devices.index("nvidia-uvm") - 1] == str(int(major, 16))


READ_KMSG = """
import os
fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
try:
    while True:
        print(os.read(fd, 8192).decode(), end="")
except BlockingIOError:
    print("end")
"""


def test_the_kernel_log_shows_xids_to_every_reader(clean_lab: Lab) -> None:
    """One record per read and EAGAIN at the end, as /dev/kmsg; gpu1 has a log of its own."""
    line = gpus.add_xid(clean_lab.gpu_dir("pve1"), 79, gpu=3)
    read = ["/usr/bin/python3", "-IS", "-c", READ_KMSG]
    wait_until(lambda: line in clean_lab.on("pve1", read).stdout, 5, "the Xid is in the log")

    for _ in range(3):
        records = clean_lab.on("pve1", read).stdout.splitlines()
        assert records[-2].endswith(f";{line}")
        assert records[-2].startswith("3,1300,")
        assert len(records) == 5
    assert "Xid" not in clean_lab.on("gpu1", read).stdout
    assert "Xid (PCI:0000:61:00): 79" in line


def test_gpu1_is_another_machine(lab: Lab) -> None:
    """Other boot id, other GPUs; the node's second address is the node."""
    boot = {
        host: lab.ssh(host, "cat /proc/sys/kernel/random/boot_id").stdout
        for host in ("pve1", "gpu1", "10.77.1.3")
    }

    assert boot["pve1"] == boot["10.77.1.3"] != boot["gpu1"]
    assert not set(gpus.uuids(lab.gpu_dir("pve1"))) & set(gpus.uuids(lab.gpu_dir("gpu1")))


def test_programs_in_the_lab_have_no_route_outside(lab: Lab) -> None:
    """Neither the control machine nor a host can leave the lab's network."""
    for routes in (
        lab.run(["ip", "route"]).stdout,
        lab.on("pve1", ["/usr/sbin/ip", "route"]).stdout,
        lab.on("ct129", ["/usr/sbin/ip", "route"]).stdout,
    ):
        assert routes.startswith("10.77.0.0/16")
        assert "default" not in routes
        assert len(routes.splitlines()) == 1


def test_a_test_can_leave_the_labs_network_for_a_moment(lab: Lab) -> None:
    """Installing needs the machine's own network; afterwards the hosts answer again."""
    inside = os.readlink("/proc/thread-self/ns/net")

    with outside_network():
        assert os.readlink("/proc/thread-self/ns/net") != inside

    assert os.readlink("/proc/thread-self/ns/net") == inside


def test_nothing_private_shows_on_the_hosts(lab: Lab) -> None:
    """Home folders and the checkout are empty there."""
    private = [str(CHECKOUT / "pyproject.toml"), "/root/.bashrc", "/home/ops/.bashrc"]
    for path in ("/root/.ssh/id_ed25519", *private):
        assert lab.on("pve1", ["/usr/bin/test", "-e", path]).exit_code == 1


def test_sudo_comes_in_both_kinds(lab: Lab) -> None:
    """ops becomes root with sudo -n, asks does not."""
    assert lab.ssh("pve1-ops", "sudo", "-n", "id", "-u").stdout == "0\n"

    refused = lab.ssh("pve1-asks", "sudo", "-n", "id", "-u")

    assert refused.exit_code == 1
    assert "a password is required" in refused.stderr
    assert lab.ssh("pve1-asks", "sudo -S id -u", stdin=b"lab\n").stdout == "0\n"


def test_systemd_runs_in_the_container_and_units_can_be_started(lab: Lab) -> None:
    """A transient unit in container 129 reports its exit."""
    start = ["/usr/bin/systemd-run", "--wait", "--quiet", "--collect", "/bin/sh", "-c", "exit 3"]

    assert lab.on("ct129", start).exit_code == 3
    assert lab.on("pve1", start).exit_code == 3


def test_a_bare_interpreter_runs_the_checkouts_opsctl_on_a_tidy_site(lab: Lab) -> None:
    """As the README says it: no activation, nothing installed; one screen without a complaint, exit 0."""
    bare = "/usr/bin/python3"
    if not os.path.exists(bare):
        pytest.skip("the system has no Python of its own")
    needed = f"import {', '.join(interpreter.NEEDED)}"
    checked = subprocess.run([bare, "-c", needed], capture_output=True)
    if checked.returncode != 0 and not (CHECKOUT / ".venv" / "bin" / "python").exists():
        pytest.skip("no .venv here (make demo makes it), and the system's Python lacks packages")
    names = {f"OPSCTL_LAB{end}" for end in ("", "_DIR", "_CACHE")}
    env = {"PATH": "/usr/bin:/bin", **{n: v for n, v in os.environ.items() if n in names}}

    done = subprocess.run(
        [bare, "-m", "tests.lab", "run", "--", "opsctl", "status"],
        cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert "glm5: stopped" in done.stdout
    assert "standin: stopped" in done.stdout


@pytest.mark.parametrize("name", ["opsctl.yaml", "corners.yaml"])
def test_the_site_files_are_good(lab: Lab, name: str) -> None:
    """opsctl reads both, and every server has eight GPUs to expect."""
    done = lab.opsctl(["config", "check", "--site", str(lab.instance.dir / name)])

    assert done.exit_code == 0, done.stderr
    assert "all right" in done.stdout


def test_the_stand_in_serves_from_container_129(clean_lab: Lab) -> None:
    """Started as the site file says, it holds all eight GPUs and answers on the lab's network."""
    unit = ["/usr/bin/systemd-run", "--quiet", "--collect", "--unit=lab-test-server"]
    server = ["/opt/sglang/bin/python", "-m", "sglang.launch_server", "--host", "0.0.0.0"]
    flags = ["--model-path", "/models/GLM-5-NVFP4", "--port", "30555", "--tp", "8"]
    try:
        assert clean_lab.on("ct129", [*unit, *server, *flags]).exit_code == 0

        wait_until(lambda: answers("10.77.1.129", 30555), 30, "the server is healthy")

        assert len(set(holders(clean_lab, "pve1"))) == 8
        assert all(used_mib(clean_lab, "pve1", index) > 1000 for index in range(8))
    finally:
        clean_lab.on("ct129", ["/usr/bin/systemctl", "stop", "lab-test-server"])
    wait_until(lambda: holders(clean_lab, "pve1") == [], 10, "nobody holds memory")


def answers(address: str, port: int) -> bool:
    """Say whether the server's health is 200."""
    connection = http.client.HTTPConnection(address, port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
