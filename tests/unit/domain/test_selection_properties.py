"""Over random process tables: no plan holds a stranger, and a planted server is found whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.domain.gpu import GpuHolder
from opsctl.domain.protection import Table, View
from opsctl.domain.selection import select
from opsctl.domain.server import ServerIdentity
from opsctl.domain.stop_plan import plan_stop
from opsctl.errors import SafetyRefusal
from opsctl.facts import Process, ProcessDetail, ProcessId

from .tables import AGENT, BOOT, GPU0, GPU1, GPU2, detail, hold, proc, server, system, title, view

CONTAINER: dict[str, Any] = {
    "cgroup": "/lxc/129/ns",
    "ns_pids": (0, 0),
    "uid": 100000,
    "user": None,
    "pid_namespace": "pid:[4026532129]",
}
DAEMONS = ("nvidia-persistenced", "nv-hostengine", "dcgm-exporter", "Xorg", "nv-fabricmanager")
STRANGERS = (
    "python3 train.py --port 30000",
    "jupyter-lab --no-browser",
    "grep sglang",
    "vim sglang.launch_server",
    "/usr/bin/python3 /usr/share/unattended-upgrades/unattended-upgrade-shutdown",
    "bash run.sh",
)


@dataclass
class World:
    """A table with the truth about it."""

    identity: ServerIdentity
    others: tuple[ServerIdentity, ...] = ()
    processes: list[Process] = field(default_factory=list)
    holders: list[GpuHolder] = field(default_factory=list)
    details: dict[int, ProcessDetail] = field(default_factory=dict)
    planted: set[int] = field(default_factory=set)
    next_pid: int = 1000
    seen_from: View = field(default_factory=view)

    def pid(self, draw: st.DrawFn) -> int:
        self.next_pid += draw(st.integers(1, 40))
        return self.next_pid

    def add(self, process: Process, *, ours: bool = False) -> int:
        self.processes.append(process)
        if ours:
            self.planted.add(process.pid)
        return process.pid


def launch_argv(draw: st.DrawFn, port: int, model: str) -> tuple[str, ...]:
    front = draw(
        st.sampled_from(
            [
                ("python3", "-m", "sglang.launch_server"),
                ("/opt/sglang/bin/python", "-u", "-m", "sglang.launch_server"),
                ("/usr/local/bin/python3", "/usr/local/bin/sglang", "serve"),
            ]
        )
    )
    ports: list[tuple[str, ...]] = [("--port", str(port)), (f"--port={port}",)]
    if port == 30000:
        ports.append(())
    return (*front, "--model-path", model, *draw(st.sampled_from(ports)))


def plant(draw: st.DrawFn, world: World, argv: tuple[str, ...], gpus: list[str], **own: Any) -> int:
    """Add a server's tree to the world and return its root; it is the wanted one if ``ours``."""
    ours = own.pop("ours", False)
    root = world.pid(draw)
    session = root if draw(st.booleans()) else 810
    same = {"session": session, **own}
    if "ns_pids" in own:
        same["ns_pids"] = (root, root - 900)
    world.add(proc(root, 1, argv, **same), ours=ours)
    parents = [root]
    for rank, uuid in enumerate(gpus):
        pid = world.pid(draw)
        if "ns_pids" in own:
            same["ns_pids"] = (pid, pid - 900)
        worker = title(pid, root, f"sglang::scheduler_TP{rank}", **same)
        parents.append(world.add(worker, ours=ours))
        world.holders.append(hold(uuid, pid))
    for _ in range(draw(st.integers(0, 3))):
        pid = world.pid(draw)
        if "ns_pids" in own:
            same["ns_pids"] = (pid, pid - 900)
        state = draw(st.sampled_from("SSSZ"))
        argv = () if state == "Z" else ("python3", "-c", "from multiprocessing")
        parent = draw(st.sampled_from(parents))
        world.add(proc(pid, parent, argv, state=state, **same), ours=ours)
        if state != "Z":
            parents.append(pid)
    return root


def add_strangers(draw: st.DrawFn, world: World) -> None:
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["job", "daemon", "server", "user", "container", "engine"]))
        gpus = draw(st.lists(st.sampled_from([GPU0, GPU1, GPU2]), max_size=2, unique=True))
        if kind == "job":
            argv = draw(st.sampled_from(STRANGERS))
            pid = world.add(proc(world.pid(draw), draw(st.sampled_from([1, 810, 800])), argv))
            world.holders += [hold(uuid, pid) for uuid in gpus]
        elif kind == "daemon":
            name = draw(st.sampled_from(DAEMONS))
            pid = world.add(proc(world.pid(draw), 1, (name,), exe=f"/usr/bin/{name}"))
            world.holders += [hold(uuid, pid) for uuid in gpus]
        elif kind == "server":
            beside = CONTAINER if world.seen_from.container and draw(st.booleans()) else {}
            plant(draw, world, launch_argv(draw, 30001, "/models/other"), gpus, **beside)
        elif kind == "user":
            own = {"uid": 1001, "user": "ada"}
            plant(draw, world, launch_argv(draw, 30002, "/models/m"), gpus, **own)
        elif kind == "container":
            place = {"cgroup": "/lxc/131/ns", "ns_pids": (0, 0)}
            plant(draw, world, launch_argv(draw, 30000, "/models/m"), gpus, **place)
        else:
            parent = world.add(proc(world.pid(draw), 1, "python3 eval.py"))
            pid = world.add(title(world.pid(draw), parent, "sglang::scheduler_TP0"))
            world.holders += [hold(uuid, pid) for uuid in gpus]


def kill_root(draw: st.DrawFn, world: World, root: int) -> None:
    """The root dies; its children go to pid 1 or to a subreaper."""
    adopter = 1
    if world.seen_from.container:
        place = {"cgroup": CONTAINER["cgroup"], "uid": CONTAINER["uid"], "start": 500}
        pid = world.pid(draw)
        adopter = world.add(proc(pid, 1, "/sbin/init", exe="/sbin/init", ns_pids=(pid, 1), **place))
    elif draw(st.booleans()):
        adopter = world.add(proc(world.pid(draw), 1, ("tmux",), exe="/usr/bin/tmux", start=500))
    moved = []
    for process in world.processes:
        if process.pid != root:
            parent = adopter if process.ppid == root else process.ppid
            moved.append(_with_parent(process, parent))
    world.processes = moved
    world.planted.discard(root)


def _with_parent(process: Process, ppid: int) -> Process:
    from dataclasses import replace

    return replace(process, ppid=ppid)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A host with the wanted server alive or orphaned, and with strangers around it."""
    world = World(server())
    own: dict[str, Any] = {}
    if draw(st.booleans()):
        own = dict(CONTAINER)
        world.seen_from = view(container="129", owner_uid=CONTAINER["uid"])
    root = plant(draw, world, launch_argv(draw, 30000, "/models/m"), [GPU0, GPU1], ours=True, **own)
    start = {p.pid: p.identity.start_ticks for p in world.processes}
    if draw(st.booleans()):
        shift = 900 if own else 0  # the record has the container's numbers
        recorded = tuple(ProcessId(BOOT, pid - shift, start[pid]) for pid in world.planted)
        world.identity = server(recorded=recorded)
    add_strangers(draw, world)
    if draw(st.booleans()):
        kill_root(draw, world, root)
    for process in world.processes:
        world.details[process.pid] = detail(process.pid)
    world.processes = draw(st.permutations(system(*world.processes)))
    return world


@settings(max_examples=400, deadline=None)
@given(worlds())
def test_no_plan_ever_holds_a_stranger(world: World) -> None:
    """Strangers, daemons, other users, other containers and the operator's login are never in it."""
    result = select(world.identity, world.processes, world.details, world.holders, world.seen_from)

    assert result.pids <= world.planted
    assert not {1, 2, 50, 700, 800, 810, AGENT} & result.pids
    try:
        plan = plan_stop(result, Table.of(world.processes))
    except SafetyRefusal:
        return
    assert {target.pid for target in plan.targets} <= world.planted


@settings(max_examples=400, deadline=None)
@given(worlds())
def test_a_planted_server_is_found_whole_or_the_plan_is_refused(world: World) -> None:
    """While the root lives every process is found; without it, all workers or a refusal."""
    result = select(world.identity, world.processes, world.details, world.holders, world.seen_from)

    workers = {
        process.pid
        for process in world.processes
        if process.pid in world.planted and process.argv and process.argv[0].startswith("sglang::")
    }
    root_lives = any(
        process.pid in world.planted and "--model-path" in process.argv
        for process in world.processes
    )
    if root_lives or world.identity.recorded:
        assert result.pids == world.planted
    elif not result.ambiguous:
        assert workers <= result.pids


@settings(max_examples=300, deadline=None)
@given(worlds(), st.integers(0, 3))
def test_recycled_pids_are_never_taken_for_recorded_ones(world: World, shift: int) -> None:
    """Records of another life of the same numbers prove nothing about strangers."""
    recorded = tuple(
        ProcessId(BOOT, process.pid, process.identity.start_ticks + 1 + shift)
        for process in world.processes
    )
    identity = server(recorded=recorded)
    result = select(identity, world.processes, world.details, world.holders, world.seen_from)

    assert result.pids <= world.planted
