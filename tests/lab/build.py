"""Build the hosts of a lab; runs inside the namespaces that the keeper holds."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.lab import hosts, node
from tests.lab.enter import must
from tests.lab.errors import LabError
from tests.lab.instance import Instance, find_instance

ANSWER_S = 60


def main() -> None:
    """Usage: python -m tests.lab.build hosts|fleet N; called by `up`."""
    instance = find_instance()
    try:
        hosts.make_network()
        if sys.argv[1] == "fleet":
            from tests.lab import fleet

            fleet.build(instance, int(sys.argv[2]))
        else:
            build_hosts(instance)
    except LabError as error:
        sys.exit(f"lab: {error}")


def build_hosts(instance: Instance) -> None:
    """Build and start both hosts, then the node's container 129."""
    compile_node()
    for host in hosts.HOSTS:
        hosts.build_host(instance, host)
    for vmid in (node.SYSTEMD_CT, node.PLAIN_CT):
        node.build_container(instance, vmid)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda host: bring_up(instance, host), hosts.HOSTS))


def compile_node() -> None:
    """Compile the node's programs: they are read only there, and each `pct` would compile them again."""
    folder = str(hosts.LAB_SOURCE_DIR / "node")
    must(["/usr/bin/python3", "-m", "compileall", "-q", folder])


def bring_up(instance: Instance, host: hosts.LabHost) -> None:
    """Start one host and wait until its sshd answers; on the node, start container 129 as well."""
    hosts.start_host(instance, host)
    start_kernel_log(instance, host)
    wait_for_ssh(host.addresses[0])
    if host is hosts.PVE1:
        argv = hosts.attach_argv(instance, host.name, ["/usr/sbin/pct", "start", "129"])
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL, check=False
        )
        if done.returncode != 0:
            raise LabError(f"container 129 does not start: {done.stderr.strip()}")
        wait_for_container(instance)


def start_kernel_log(instance: Instance, host: hosts.LabHost) -> None:
    """Give the host its /dev/kmsg; the process that fills it belongs to the keeper."""
    info = ["lxc-info", "-P", str(instance.dir / "lxc"), "-n", host.name, "-pH"]
    xids = instance.gpu_dirs / host.name / "xids"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.lab.kmsg", must(info).strip(), str(xids)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise LabError(f"/dev/kmsg of {host.name} could not be made")
        process.returncode = 0  # it stays; the keeper inherits it


def wait_for_ssh(address: str, port: int = 22, timeout_s: float = ANSWER_S) -> None:
    """Wait until an sshd says its name.

    Raises:
        LabError: nothing answered in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with socket.create_connection((address, port), 1) as connection:
                connection.settimeout(5)
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise LabError(f"no sshd answered on {address}:{port} within {timeout_s:.0f} s")
        time.sleep(0.02)


def wait_for_container(instance: Instance) -> None:
    """Wait until systemd in container 129 has finished its start."""
    state = ["/usr/bin/systemctl", "is-system-running", "--wait"]
    inner = ["/usr/sbin/pct", "exec", "129", "--", *state]
    argv = hosts.attach_argv(instance, "pve1", inner)
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False
        )
        if done.stdout.strip() in ("running", "degraded"):
            return
        time.sleep(0.05)
    raise LabError("systemd in container 129 did not come up")


if __name__ == "__main__":
    main()
