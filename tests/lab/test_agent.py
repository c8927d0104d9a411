"""The agent on the lab's hosts: over ssh, sudo, pct; its end; pids of a container; every NVML fault."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from opsctl.agent.client import RemoteAgent, connect
from opsctl.agent.read import read_details, read_gpus, read_host, read_processes
from opsctl.errors import OpsctlError
from opsctl.facts import Gpu, GpuRead, GpuReport
from opsctl.session import Hosts
from opsctl.site import load_site
from tests.lab import gpus
from tests.lab.fixture import Lab, wait_until

pytestmark = pytest.mark.lab
MIB = 1 << 20


@pytest.fixture
def hosts(lab: Lab) -> Iterator[Hosts]:
    made = Hosts(load_site(lab.site_file))
    yield made
    made.close()


@pytest.fixture
def pve1(clean_lab: Lab, hosts: Hosts) -> RemoteAgent:
    return hosts.agent("pve1")


@pytest.mark.parametrize(
    ("name", "hostname", "container"),
    [
        ("pve1", "pve1", "lxc"),
        ("gpu1", "gpu1", "lxc"),
        ("pve1-ops", "pve1", "lxc"),
        ("ct129", "ct129", "lxc"),
        ("ct129-ops", "ct129", "lxc"),
    ],
)
def test_an_agent_comes_up_as_root_on_every_host(
    hosts: Hosts, name: str, hostname: str, container: str
) -> None:
    """ssh, ssh with sudo, pct over ssh, pct over ssh with sudo."""
    host = read_host(hosts.agent(name))

    assert (host.hostname, host.container, host.uid, host.systemd) == (hostname, container, 0, True)


@pytest.mark.parametrize(
    ("name", "code", "step"),
    [
        ("pve1-asks", "sudo-refused", "asks ALL=(root) NOPASSWD: ALL"),
        ("ct130", "container-stopped", "opsctl ct start 130"),
    ],
)
def test_what_stands_in_the_way_is_one_sentence(
    lab: Lab, hosts: Hosts, name: str, code: str, step: str
) -> None:
    """sudo that asks and a stopped container: exit 30 and what to do."""
    if name == "ct130":
        lab.pct("stop", "130")
    with pytest.raises(OpsctlError) as caught:
        hosts.agent(name)

    assert (caught.value.code, caught.value.exit_code) == (code, 30)
    assert step in (caught.value.next_step or "")


CLIENT = """
import sys, time
from opsctl.session import Hosts
from opsctl.site import load_site
from pathlib import Path
agent = Hosts(load_site(Path(sys.argv[1]))).agent("ct129")
print(agent.hello["pid"], flush=True)
time.sleep(120)
"""


def test_a_killed_client_leaves_no_agent_in_the_container(lab: Lab, hosts: Hosts) -> None:
    """Killing lxc-attach would leave it running; the end of stdin ends it."""
    process = lab.popen([sys.executable, "-c", CLIENT, str(lab.site_file)])
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    agent = hosts.agent("ct129")
    assert pid in [one.pid for one in read_processes(agent)]

    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)

    wait_until(
        lambda: pid not in [one.pid for one in read_processes(agent)], 5, "the agent is gone"
    )


def test_pids_of_the_container_are_seen_from_the_node(lab: Lab, hosts: Hosts) -> None:
    """One process, two numbers: NSpid and cgroup on the node, its own pid inside."""
    (inside,) = [one for one in read_processes(hosts.agent("ct129")) if one.pid == 1]
    from_node = [
        one
        for one in read_processes(hosts.agent("pve1"))
        if one.cgroup.startswith("/lxc/129/") and one.ns_pids[-1] == 1
    ]

    assert len(from_node) == 1
    assert from_node[0].identity.start_ticks == inside.identity.start_ticks
    assert from_node[0].pid_namespace == inside.pid_namespace


def test_gpu_memory_and_its_holder_are_seen_where_they_are_owned(
    clean_lab: Lab, hosts: Hosts
) -> None:
    """The node names the holder by its own pid; the container sees memory and no process."""
    with clean_lab.holding("pve1", 2, 4096) as pid:
        on_node = read_gpus(hosts.agent("pve1")).gpus[2]
        inside = read_gpus(hosts.agent("ct129")).gpus[2]
        (detail,) = read_details(hosts.agent("pve1"), [pid])

    assert on_node.used_bytes == inside.used_bytes == 4096 * MIB
    assert on_node.processes is not None
    assert [(one.pid, one.kind, one.used_bytes) for one in on_node.processes] == [
        (pid, "C", 4096 * MIB)
    ]
    assert inside.processes == ()
    assert detail.gpu_devices is not None
    assert "/dev/nvidia2" in detail.gpu_devices


def only(report: GpuReport, index: int = 3) -> Gpu:
    """Return one GPU, after a look that the other seven are well."""
    assert report.state == "ok"
    assert all(gpu.read is GpuRead.OK for gpu in report.gpus if gpu.index != index)
    return report.gpus[index]


@pytest.mark.parametrize(
    ("fault", "value", "claim"),
    [
        ("lost", None, lambda gpu: gpu.read is GpuRead.LOST and gpu.used_bytes is None),
        ("memory-unavailable", None, lambda gpu: gpu.read is GpuRead.UNKNOWN and gpu.error),
        ("no-memory-v2", None, lambda gpu: gpu.memory_version == 1 and gpu.used_bytes > 600 * MIB),
        ("reserved", "912", lambda gpu: gpu.reserved_bytes == 912 * MIB and gpu.used_bytes == 0),
        ("leak", "1024", lambda gpu: gpu.used_bytes == 1024 * MIB and gpu.processes == ()),
        ("mig", None, lambda gpu: gpu.mig_enabled and len(gpu.mig_instances) == 2),
        ("remap-pending", None, lambda gpu: gpu.remap_pending),
        ("remap-failed", None, lambda gpu: gpu.remap_failed),
        ("ecc", "3", lambda gpu: gpu.ecc_uncorrected == 3),
        ("recovery", "drain", lambda gpu: gpu.recovery_action == "drain"),
        ("no-permission", None, lambda gpu: gpu.read is not GpuRead.OK),
        ("hot", "97", lambda gpu: gpu.temperature_c == 97 and gpu.throttle_thermal),
        ("busy", "100", lambda gpu: gpu.utilisation_percent == 100),
    ],
)
def test_a_fault_of_one_gpu_is_seen_and_hides_no_other(
    clean_lab: Lab, pve1: RemoteAgent, fault: str, value: str | None, claim: Callable[[Gpu], object]
) -> None:
    """Each fault shows on its GPU; seven others stay readable."""
    gpus.set_fault(clean_lab.gpu_dir(), fault, 3, value)

    assert claim(only(read_gpus(pve1)))


@pytest.mark.parametrize(
    ("fault", "state"), [("driver-not-loaded", "driver-not-loaded"), ("mismatch", "mismatch")]
)
def test_a_fault_of_the_driver_is_a_state(
    clean_lab: Lab, hosts: Hosts, fault: str, state: str
) -> None:
    """Told as it is, with both versions where they differ, and gone when the fault is."""
    with connect(hosts.transport("pve1")) as agent:
        gpus.set_fault(clean_lab.gpu_dir(), fault)
        broken = read_gpus(agent)
        gpus.clear_faults(clean_lab.gpu_dir())
        healed = read_gpus(agent)

    assert (broken.state, broken.gpus) == (state, ())
    assert healed.state == "ok"


def test_an_old_driver_still_tells_memory_and_processes(clean_lab: Lab, pve1: RemoteAgent) -> None:
    """No process lists of version 3 and no memory v2 (case 089): version 2 and 1 are asked."""
    gpus.set_fault(clean_lab.gpu_dir(), "function-not-found")

    gpu = read_gpus(pve1).gpus[0]

    assert (gpu.read, gpu.memory_version) == (GpuRead.OK, 1)
    assert gpu.processes == ()


def test_a_holder_without_a_number_is_no_zero(clean_lab: Lab, pve1: RemoteAgent) -> None:
    """NVML lists the process and not its memory: None, never 0."""
    gpus.set_fault(clean_lab.gpu_dir(), "process-memory-unavailable", 3)
    with clean_lab.holding("pve1", 3, 100):
        processes = read_gpus(pve1).gpus[3].processes

    assert processes is not None
    assert [one.used_bytes for one in processes] == [None]


@pytest.mark.parametrize("call", ["memory", "handle", "processes", "init"])
def test_a_hanging_call_ends_in_time_and_heals(clean_lab: Lab, hosts: Hosts, call: str) -> None:
    """nvidia-smi would hang with it; the agent's process is given up, and a new one asks later."""
    with connect(hosts.transport("gpu1")) as agent:
        gpus.set_fault(clean_lab.gpu_dir("gpu1"), "hang", 3, call)
        began = time.monotonic()
        hung = read_gpus(agent, timeout_s=0.7)
        waited_s = time.monotonic() - began
        gpus.clear_faults(clean_lab.gpu_dir("gpu1"))

        assert hung.state == "timeout"
        assert waited_s < 3
        assert read_gpus(agent).state == "ok"


def test_a_poll_sees_memory_go_within_its_interval(clean_lab: Lab, pve1: RemoteAgent) -> None:
    """From the holder's death to `free`: one poll of 20 ms and the way back."""
    uuids = gpus.uuids(clean_lab.gpu_dir())[:2]
    died_s: list[float] = []
    with clean_lab.holding("pve1", 1, 8192) as pid:

        def on_event(event: dict[str, object]) -> None:
            if event["uuid"] == uuids[1] and not event["free"] and not died_s:
                clean_lab.on("pve1", ["/usr/bin/kill", "-9", str(pid)])
                died_s.append(time.time())

        request = {"limits": dict.fromkeys(uuids, 0), "timeout_s": 20}
        result = pve1.call("gpu.poll", request, timeout_s=25, on_event=on_event)

    assert result["outcome"] == "free"
    freed = {gpu["uuid"]: gpu for gpu in result["gpus"]}[uuids[1]]
    assert freed["clock_s"] - died_s[0] < 0.5


def test_a_poll_is_never_free_on_what_cannot_be_read(clean_lab: Lab, pve1: RemoteAgent) -> None:
    """A lost GPU and unavailable memory end at the deadline."""
    uuids = gpus.uuids(clean_lab.gpu_dir())
    gpus.set_fault(clean_lab.gpu_dir(), "lost", 3)
    gpus.set_fault(clean_lab.gpu_dir(), "memory-unavailable", 4)
    limits = dict.fromkeys(uuids, 1 << 40)

    result = pve1.call("gpu.poll", {"limits": limits, "timeout_s": 0.3})

    assert result["outcome"] == "deadline"
    assert {gpu["uuid"] for gpu in result["gpus"] if not gpu["free"]} == {uuids[3], uuids[4]}
