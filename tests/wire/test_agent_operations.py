"""The agent's operations on real processes, files, sockets and locks of this machine."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import opsctl.agent
from opsctl.agent import shipping
from opsctl.agent.client import RemoteAgent, connect
from opsctl.agent.ops import nvml_child
from opsctl.agent.read import (
    gpus_of,
    read_details,
    read_device_holders,
    read_gpus,
    read_host,
    read_leftovers,
    read_package,
    read_processes,
)
from opsctl.errors import AgentError
from opsctl.transport.local import LocalTransport

pytestmark = pytest.mark.wire


@pytest.fixture
def agent() -> Iterator[RemoteAgent]:
    with connect(LocalTransport()) as made:
        yield made


def test_host_says_what_it_is(agent: RemoteAgent) -> None:
    """The facts agree with what this process sees of its own host."""
    host = read_host(agent)

    assert host.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert (host.hostname, host.uid) == (os.uname().nodename, os.geteuid())
    assert host.pid_namespace == os.readlink("/proc/self/ns/pid")
    assert abs(host.clock_s - time.time()) < 60


def test_scan_sees_this_process_as_it_is(agent: RemoteAgent) -> None:
    """argv, parent, owner, executable and age of a process that we know best: ourselves."""
    (me,) = [process for process in read_processes(agent) if process.pid == os.getpid()]

    assert me.ppid == os.getppid()
    assert me.exe == os.path.realpath(sys.executable)
    assert me.uid == os.geteuid()
    assert me.session == os.getsid(0)
    assert me.state in "RS"
    assert 0 <= me.age_s < 3600
    assert not me.is_kernel_thread


def test_details_show_ports_markers_and_nothing_else(agent: RemoteAgent) -> None:
    """Only OPSCTL_* leaves the host; a listening port is found by its socket."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as unbound:
        unbound.bind(("127.0.0.1", 0))
        environment = {"OPSCTL_RUN": "17", "HF_TOKEN": "secret", "XOPSCTL_Y": "no"}
        child = subprocess.Popen(["sleep", "30"], env=environment)
        mine, theirs = (read_details(agent, [pid])[0] for pid in (os.getpid(), child.pid))
        child.kill()
        child.wait()
        port = server.getsockname()[1]

    assert mine.listening_ports is not None
    assert port in mine.listening_ports
    assert theirs.listening_ports == ()
    assert theirs.environment_markers == {"OPSCTL_RUN": "17"}
    assert read_details(agent, [child.pid]) == []


def test_an_ipv6_listener_is_found(agent: RemoteAgent) -> None:
    """Servers often bind to :: only."""
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with server:
        (mine,) = read_details(agent, [os.getpid()])
        assert mine.listening_ports is not None
        assert server.getsockname()[1] in mine.listening_ports


def test_device_holders_are_found_open_and_mapped(agent: RemoteAgent) -> None:
    """The prefix is the client's: here a device that every machine has."""
    with open("/dev/full", "rb"):
        held, _ = read_device_holders_of(agent, "/dev/full")
    assert held[os.getpid()] == ("/dev/full",)
    held, _ = read_device_holders_of(agent, "/dev/full")
    assert os.getpid() not in held
    assert os.getpid() not in read_device_holders(agent)[0]


def read_device_holders_of(
    agent: RemoteAgent, prefix: str
) -> tuple[dict[int, tuple[str, ...]], list[int]]:
    facts = agent.call("process.device_holders", {"devices": prefix})
    return {one["pid"]: tuple(one["devices"]) for one in facts["holders"]}, facts["unreadable"]


def lock(folder: Path, *names: str, who: str = "a") -> dict[str, object]:
    return {"names": list(names), "owner": {"who": who, "reason": "r"}, "directory": str(folder)}


def test_a_second_operator_is_told_who_holds_the_lock(agent: RemoteAgent, tmp_path: Path) -> None:
    """All or none: a conflict on the second name gives the first one back."""
    with connect(LocalTransport()) as other:
        assert agent.call("lock.acquire", lock(tmp_path, "gpu-2", who="ann"))["acquired"]
        refused = other.call("lock.acquire", lock(tmp_path, "gpu-1", "gpu-2", who="bob"))
        assert refused["acquired"] is False
        assert refused["name"] == "gpu-2"
        assert refused["holder"]["who"] == "ann"
        assert abs(refused["holder"]["since_s"] - time.time()) < 60
        assert agent.call("lock.acquire", lock(tmp_path, "gpu-1"))["acquired"]

        agent.call("lock.release")
        assert other.call("lock.acquire", lock(tmp_path, "gpu-1", "gpu-2"))["acquired"]


def test_taking_a_lock_twice_is_one_lock(agent: RemoteAgent, tmp_path: Path) -> None:
    """A resumed step asks again; the answer is yes."""
    assert agent.call("lock.acquire", lock(tmp_path, "a"))["acquired"]
    assert agent.call("lock.acquire", lock(tmp_path, "a", "b"))["acquired"]
    assert sorted(agent.call("lock.release")["released"]) == ["a", "b"]
    assert list(tmp_path.iterdir()) == []


def test_a_killed_agents_lock_is_free_and_seen_as_stale(tmp_path: Path) -> None:
    """The kernel frees the lock; the file that is left blocks nobody."""
    with connect(LocalTransport()) as victim, connect(LocalTransport()) as other:
        assert victim.call("lock.acquire", lock(tmp_path, "a"))["acquired"]
        os.kill(victim.hello["pid"], 9)
        deadline = time.monotonic() + 5
        request = {"directory": str(tmp_path)}
        while other.call("lock.read", request)["locks"][0]["held"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert other.call("lock.acquire", lock(tmp_path, "a"))["acquired"]


def test_an_agent_that_leaves_takes_its_lock_files_with_it(tmp_path: Path) -> None:
    """A run's end leaves no file behind that looks like a lock, though nobody holds it."""
    with connect(LocalTransport()) as agent:
        assert agent.call("lock.acquire", lock(tmp_path, "a", "b"))["acquired"]
        assert len(list(tmp_path.iterdir())) == 2

    deadline = time.monotonic() + 5
    while list(tmp_path.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_the_agent_starts_holds_no_lock(tmp_path: Path) -> None:
    """A child that outlives the agent (a launched server) must not keep the machine locked."""
    script = "sleep 5 & exit 1"
    with connect(LocalTransport()) as agent:
        assert agent.call("lock.acquire", lock(tmp_path, "a"))["acquired"]
        agent.call(
            "package.read",
            {"interpreter": ["/bin/sh", "-c", f"({script}) >/dev/null 2>&1"], "name": "x"},
        )
    with connect(LocalTransport()) as other:
        assert other.call("lock.acquire", lock(tmp_path, "a"))["acquired"]


@pytest.mark.parametrize("name", ["", "../etc", ".x", "a/b"])
def test_a_lock_name_is_one_file_name(agent: RemoteAgent, tmp_path: Path, name: str) -> None:
    """No name can leave the folder."""
    with pytest.raises(AgentError) as caught:
        agent.call("lock.acquire", lock(tmp_path, name))
    assert caught.value.code == "bad-request"


def test_a_lock_folder_that_cannot_be_made_is_named(agent: RemoteAgent, tmp_path: Path) -> None:
    """A file is in the way: one sentence with the path."""
    (tmp_path / "file").touch()
    with pytest.raises(AgentError, match="file/locks") as caught:
        agent.call("lock.acquire", lock(tmp_path / "file" / "locks", "a"))
    assert caught.value.code == "lock-directory"


@pytest.fixture
def segments() -> Iterator[dict[str, Path]]:
    """Shared memory as dead and living servers leave it, under names of this test alone."""
    mark = f"opsctltest{os.getpid()}"
    made = {
        "dead": Path(f"/dev/shm/sgl_shm_{mark}_4194303_a"),
        "living": Path(f"/dev/shm/sgl_shm_{mark}_{os.getpid()}_a"),
        "nobody": Path(f"/dev/shm/nccl-{mark}"),
        "opened": Path(f"/dev/shm/nccl-{mark}-o"),
        "foreign": Path(f"/dev/shm/{mark}-of-somebody"),
    }
    for path in made.values():
        path.write_bytes(b"x" * 100)
    yield made
    for path in made.values():
        path.unlink(missing_ok=True)


@pytest.mark.dead_memory
def test_shared_memory_is_judged_by_its_owner(
    agent: RemoteAgent, segments: dict[str, Path]
) -> None:
    """Dead owner: a leftover. Living owner, or somebody has it open: kept. Unknown family: not shown."""
    with segments["opened"].open("rb"):
        found = {one.path: one for one in read_leftovers(agent) if one.kind == "shm"}

    judged = {key: found.get(str(path)) for key, path in segments.items()}
    assert judged["foreign"] is None
    alive = {key: one.owner_alive for key, one in judged.items() if one is not None}
    sees_all = os.geteuid() == 0  # without root another user's process may have it open unseen
    unowned = False if sees_all else None
    assert alive == {"dead": False, "living": True, "nobody": unowned, "opened": True}
    assert judged["opened"] is not None
    assert judged["opened"].owner_pid == os.getpid()


def test_a_bound_port_is_named_with_its_process(agent: RemoteAgent) -> None:
    """Whoever holds the server's port is the first thing to know."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        bound = [one for one in read_leftovers(agent, ports=[port]) if one.kind == "port"]
    free = [one for one in read_leftovers(agent, ports=[port]) if one.kind == "port"]

    assert [(one.path, one.owner_pid) for one in bound] == [(f"tcp:{port}", os.getpid())]
    assert free == []


def test_a_port_is_found_in_a_table_of_many_pages(agent: RemoteAgent) -> None:
    """/proc/net/tcp comes in short reads: the last record counts as much as the first."""
    with contextlib.ExitStack() as stack:
        servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(120)]
        for server in servers:
            stack.enter_context(server)
        ports = [server.getsockname()[1] for server in servers]
        (mine,) = read_details(agent, [os.getpid()])
        bound = [one for one in read_leftovers(agent, ports=ports[:40]) if one.kind == "port"]

    assert mine.listening_ports is not None
    assert set(ports) <= set(mine.listening_ports)
    assert len(bound) == 40


def test_jit_locks_tell_a_baton_from_a_flock(agent: RemoteAgent, tmp_path: Path) -> None:
    """torch's `lock` file blocks by existing (case 063), a flock file only while somebody holds it."""
    baton = tmp_path / ".cache/torch_extensions/py311_cu130/fused/lock"
    flock = tmp_path / ".cache/flashinfer/0.6/cached_ops/op/op.lock"
    for path in (baton, flock):
        path.parent.mkdir(parents=True)
        path.touch()

    leftovers = read_leftovers(agent, homes=[str(tmp_path)])
    found = {one.path: one.detail for one in leftovers if one.kind == "jit-lock"}

    assert "makes a start wait" in found[str(baton)]
    assert "harmless" in found[str(flock)]


def test_a_package_is_found_without_importing_it(agent: RemoteAgent, tmp_path: Path) -> None:
    """A package whose import fails is still read: version, place, RECORD."""
    package = tmp_path / "brokenserver"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported!')\n")
    info = tmp_path / "brokenserver-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: BrokenServer\nVersion: 1.2\n")
    (info / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}')

    found = read_package(agent, sys.executable, "brokenserver", env={"PYTHONPATH": str(tmp_path)})

    assert (found.version, found.location) == ("1.2", str(package))
    assert (found.editable, found.error) == (True, None)
    assert found.record == str(info / "RECORD")


def test_a_missing_package_and_a_missing_interpreter_are_told(agent: RemoteAgent) -> None:
    """Not installed, not there, and hanging are three sentences."""
    absent = read_package(agent, sys.executable, "no-such-server").error
    nowhere = read_package(agent, "/nonexistent/python", "x").error
    hangs = read_package(agent, ["/bin/sh", "-c", "sleep 9"], "x", timeout_s=0.3).error

    assert absent is not None
    assert "is not installed" in absent
    assert nowhere is not None
    assert "cannot run" in nowhere
    assert hangs is not None
    assert "did not answer" in hangs


def kept_code(folder: Path) -> Path:
    """Return where an agent keeps the compiled code of this folder's pynvml."""
    nvml = Path(opsctl.agent.__file__).with_name("nvml.py")
    sources = [(folder / "pynvml.py").read_bytes(), nvml.read_bytes()]
    return Path(nvml_child.cache_path(*(hashlib.sha256(source).hexdigest() for source in sources)))


@contextmanager
def agent_with_nvml(folder: Path, code: str) -> Iterator[RemoteAgent]:
    """Start an agent that gets real pynvml with ``code`` appended, and finds some library to load."""
    spec = importlib.util.find_spec("pynvml")
    assert spec is not None
    assert spec.origin is not None
    real = Path(spec.origin).read_text()
    (folder / "pynvml.py").write_text(f"{real}\nimport time\ndef nvmlInit(): pass\n{code}\n")
    maps = Path("/proc/self/maps").read_text()
    libc = next(line.split()[-1] for line in maps.splitlines() if "libc.so.6" in line)
    (folder / "libnvidia-ml.so.1").symlink_to(libc)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("LD_LIBRARY_PATH", str(folder))
        shipping.resource_frame.cache_clear()
        shipping.digest_frame.cache_clear()
        with connect(LocalTransport()) as agent:
            yield agent
    kept_code(folder).unlink(missing_ok=True)
    shipping.resource_frame.cache_clear()
    shipping.digest_frame.cache_clear()


def test_a_hanging_nvml_is_a_state_and_the_agent_lives_on(tmp_path: Path) -> None:
    """The call is given up with its process; the next one tries anew."""
    code = "def nvmlDeviceGetCount(): time.sleep(60)"
    with agent_with_nvml(tmp_path, code) as agent:
        began = time.monotonic()
        states = [read_gpus(agent, timeout_s=0.7).state for _ in range(2)]
        waited_s = time.monotonic() - began
        assert agent.call("agent.noop") == {}

    assert states == ["timeout", "timeout"]
    assert waited_s < 5


def test_a_poll_over_a_hanging_nvml_ends(tmp_path: Path) -> None:
    """Unreadable is an outcome of its own: never free."""
    request = {"limits": {"GPU-1": 0}, "timeout_s": 5, "call_timeout_s": 0.7}
    with agent_with_nvml(tmp_path, "def nvmlDeviceGetHandleByUUID(u): time.sleep(60)") as agent:
        result = agent.call("gpu.poll", request)

    assert (result["outcome"], result["state"]) == ("unreadable", "timeout")


def test_an_nvml_that_crashes_its_process_is_told(tmp_path: Path) -> None:
    """A segmentation fault in the library takes the child, not the agent."""
    code = "def nvmlDeviceGetCount(): import os; os.kill(os.getpid(), 11)"
    with agent_with_nvml(tmp_path, code) as agent:
        report = read_gpus(agent)

    assert report.state == "error"
    assert "signal 11" in (report.detail or "")


def test_compiled_code_is_kept_and_a_damaged_copy_is_not_believed(tmp_path: Path) -> None:
    """The second agent starts from the copy; cut or foreign-writable, it is made anew."""
    code = "def nvmlDeviceGetCount(): return 0"
    with agent_with_nvml(tmp_path, code) as agent:
        assert read_gpus(agent).state == "no-devices"
        kept = kept_code(tmp_path)
        whole = kept.read_bytes()
        for damage in (whole, whole[:-1], b""):
            kept.write_bytes(damage)
            with connect(LocalTransport()) as other:
                assert read_gpus(other).state == "no-devices"
            assert kept.read_bytes() == whole


def test_no_library_is_a_state(agent: RemoteAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without NVIDIA driver is no error."""
    report = read_gpus(agent)

    if report.state == "ok":
        pytest.skip("this machine has GPUs")
    assert report.state in ("no-library", "driver-not-loaded", "no-devices")
    assert report.gpus == ()


def test_reports_become_facts() -> None:
    """Lists become tuples, names become enums, and None stays None."""
    report = gpus_of(
        {
            "state": "no-library",
            "detail": "x",
            "driver_version": None,
            "cuda_version": None,
            "gpus": [],
            "xids": None,
            "kernel_module_version": None,
        }
    )

    assert (report.state, report.gpus, report.xids) == ("no-library", (), None)
