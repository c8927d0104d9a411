"""Incidents from the field, groups C to E (065 to 097): the data as reported, and what opsctl decides."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from opsctl.domain.gpu import MIB
from opsctl.domain.gpu_health import judge_health
from opsctl.domain.gpu_memory import judge_memory
from opsctl.domain.leftovers import judge_leftovers
from opsctl.domain.protection import Table
from opsctl.domain.selection import select
from opsctl.domain.stop_plan import plan_stop
from opsctl.facts import GpuRead, Leftover, Process, ProcessId

from .tables import (
    BOOT,
    GPU0,
    PYTHON,
    detail,
    gpu,
    hold,
    proc,
    report,
    server,
    system,
    title,
    view,
)

CASES = Path(__file__).parents[2] / "data" / "stop-cases"


def case(number: str) -> str:
    (path,) = CASES.glob(f"{number}-*.log")
    return path.read_text()


def test_065_orphans_under_pid_1_with_100_gb_each() -> None:
    """All four are found by title, owner and GPU; the parent is gone."""
    rows = re.findall(r"^ +(\d) +(\d+) +(sglang::\S+) +(\d+) MiB", case("065"), re.MULTILINE)
    uuids = [f"GPU-{index}" for index, *_ in rows]
    workers = [title(int(pid), 1, name, uid=1000, user="user") for _, pid, name, _ in rows]
    holders = [hold(f"GPU-{index}", int(pid), int(mib) * MIB) for index, pid, _, mib in rows]
    identity = server(user="user", gpu_uuids=frozenset(uuids))

    found = select(identity, system(*workers), {}, holders, view(owner_uid=1000))

    assert len(rows) == 4
    assert found.pids == {int(pid) for _, pid, *_ in rows}


def test_067_the_root_is_found_and_the_test_runner_lives() -> None:
    """`sglang serve` is the root; a path with sglang in it is not a server."""
    lines = [line.split("   <-")[0].strip() for line in case("067").splitlines() if line.strip()]
    root = proc(4200, 1, lines[0])
    workers = [title(4201 + n, 4200, name) for n, name in enumerate(lines[1:4])]
    runner = proc(5000, 1, lines[4])

    found = select(server(port=19000), system(root, *workers, runner), {}, [], view())

    assert found.pids == {4200, 4201, 4202, 4203}


def test_068_the_title_counts_and_the_cut_comm_does_not() -> None:
    """comm has 15 characters; argv carries the padded title; the executable is Python."""
    text = case("068").replace("\\0", "\0")
    comm, cmdline, exe = (line.split(None, 1)[1].strip("\n") for line in text.splitlines())
    argv = tuple(cmdline.split("\0"))
    worker = proc(4202, 1, argv, comm=comm, exe=exe)
    namesake = proc(4300, 1, "sleep 9", comm=comm, exe="/usr/bin/sleep")

    found = select(server(), system(worker, namesake), {}, [hold(GPU0, 4202)], view())

    assert comm == "sglang::schedul"
    assert found.pids == {4202}


def test_070_a_pid_that_is_not_in_proc() -> None:
    """It is named as not visible from here, and the memory is busy, not free."""
    pid, mib = re.findall(r"^(\d+), (\d+) MiB", case("070"), re.MULTILINE)[0]
    card = gpu(used=10151 * MIB, holders=[(int(pid), int(mib) * MIB)])

    found = select(server(), system(), {}, [hold(GPU0, int(pid))], view())
    verdict = judge_memory(report(card), [GPU0], classes={})

    assert [(j.pid, j.reason) for j in found.foreign] == [(int(pid), "not visible from here")]
    assert verdict.exit_code == 20


def test_071_the_living_child_of_a_zombie_is_acted_on() -> None:
    """The zombie is named, its child is a target, and the parent is not waited for."""
    rows = re.findall(r"^(\d+) +(\d+) (Zl|Sl) +(.*)$", case("071"), re.MULTILINE)
    dead, child = (int(row[0]) for row in rows)
    table = system(
        proc(dead, 1, (), state="Z", comm="python"), proc(child, dead, rows[1][3], exe=PYTHON)
    )
    identity = server(
        command=("python", "train.py"), recorded=(ProcessId(BOOT, dead, 1000 + dead),)
    )

    found = select(identity, table, {}, [hold(GPU0, dead)], view())

    assert found.pids == {dead, child}


def test_073_utilisation_without_memory_is_free() -> None:
    """A latched counter is a note."""
    percent = int(case("073").splitlines()[1].split("%")[0])
    verdict = judge_memory(report(gpu(used=0, utilisation_percent=percent)), [GPU0])
    assert verdict.exit_code == 0
    assert [finding.code for finding in verdict.all_findings] == ["ghost-utilisation"]


@pytest.mark.parametrize(("alive", "swept"), [(False, 1), (True, 0)])
def test_074_only_segments_of_dead_owners_are_swept(alive: bool, swept: int) -> None:
    """The segment goes with its pid; the nccl files name none and stay until proven unused."""
    names = re.findall(r"\d\d:\d\d (\S+)$", case("074"), re.MULTILINE)
    found = []
    for name in names:
        owner = re.match(r"sgl_shm_mm_(\d+)_", name)
        pid = int(owner[1]) if owner else None
        found.append(Leftover("shm", f"/dev/shm/{name}", 1, pid, alive if owner else None))

    verdicts = judge_leftovers(found)

    assert len(names) == 3
    assert sum(verdict.removes for verdict in verdicts) == swept


def test_075_who_keeps_the_card_busy_is_named_and_nothing_resets_it() -> None:
    """The daemon that makes a reset fail is shown as what it is; no line of opsctl asks for a reset."""
    assert "In use by another client" in case("075")
    daemon = proc(1346, 1, "nvidia-persistenced", exe="/usr/bin/nvidia-persistenced")
    open_device = {1346: detail(1346, gpu_devices=("/dev/nvidia0",))}
    found = select(server(), system(daemon), open_device, [], view())
    assert [judged.pid for judged in found.protected] == [1346]
    assert "persistence daemon" in found.protected[0].reason
    sources = [path.read_text() for path in (Path(__file__).parents[3] / "opsctl").rglob("*.py")]
    assert not [
        text for text in sources if re.search(r"gpu-reset|nvmlDeviceReset|cudaDeviceReset", text)
    ]


def test_076_the_xids_of_a_killed_monitor_refuse_a_launch_and_the_monitor_is_protected() -> None:
    """119 and 120 are fatal while the driver does not say otherwise."""
    lines = tuple(case("076").splitlines())
    refused = judge_health(report(gpu(recovery_action=None), xids=lines), [GPU0])
    monitor = proc(600, 1, "dcgm-exporter", exe="/usr/bin/dcgm-exporter")
    found = select(server(), system(monitor), {}, [hold(GPU0, 600)], view())

    assert {item.finding.code for item in refused if item.refuses} == {"xid-119", "xid-120"}
    assert [judged.pid for judged in found.protected] == [600]


def test_077_the_tree_is_recorded_before_the_first_signal() -> None:
    """Both workers are in the plan, in the tree as it was; where they land later does not matter."""
    rows = re.findall(r"(\d+) (\d+) ([vV]L*\S*(?: serve)?)", case("077").splitlines()[0])
    argv = {"vllm serve": ("vllm", "serve", "--port", "8000")}
    table = system(
        *(proc(int(pid), int(ppid), argv.get(name, (name,))) for pid, ppid, name in rows)
    )
    identity = server(command=("vllm", "serve", "--port", "8000"))

    found = select(identity, table, {}, [], view())
    plan = plan_stop(found, Table.of(table))

    assert [target.pid for target in plan.targets] == [21950, 22010, 22101]


def test_078_reserved_memory_is_not_use() -> None:
    """v2 reads 0 and is free; v1 reads 103 MiB on the same card and cannot tell."""
    import json

    old, new = (json.loads(line) for line in case("078").splitlines()[:2])
    v1 = gpu(used=old["used"], memory_version=1, reserved_bytes=None)
    v2 = gpu(used=new["used"], reserved_bytes=new["reserved"])

    assert judge_memory(report(v2), [GPU0]).exit_code == 0
    assert judge_memory(report(v1), [GPU0]).exit_code == 21


def test_080_unified_memory_without_numbers() -> None:
    """Not available is not zero: the process list proves use, an empty one proves nothing."""
    row = next(csv.reader([case("080").splitlines()[3]]))
    holder = (int(row[1]), int(row[3]) * MIB)

    busy = gpu(used=None, total_bytes=None, holders=[holder])
    silent = gpu(used=None, total_bytes=None)

    assert judge_memory(report(busy), [GPU0]).exit_code == 20
    assert judge_memory(report(silent), [GPU0]).exit_code == 21


def test_081_an_empty_panel_with_used_memory_is_a_holder_elsewhere() -> None:
    """814 MiB without a process: somebody in another namespace, and never free."""
    used = int(re.findall(r"(\d+)MiB / ", case("081"))[0])
    verdict = judge_memory(report(gpu(used=used * MIB)), [GPU0])
    assert verdict.exit_code == 20
    assert [finding.code for finding in verdict.all_findings] == ["memory-without-owner"]


@pytest.mark.parametrize("number", ["083", "090"])
def test_083_090_a_version_mismatch_is_could_not_look(number: str) -> None:
    """Exit 21 with both versions and both cures."""
    first, second = re.findall(r"\d{3}\.\d+(?:\.\d+)?", case(number))[:2]
    seen = report(state="mismatch", driver_version=first, kernel_module_version=second)
    verdict = judge_memory(seen, [], expect=8)

    assert verdict.exit_code == 21
    assert first in verdict.findings[0].text
    assert second in verdict.findings[0].text
    assert "in a container" in verdict.findings[0].next


def test_085_a_mig_card_that_may_not_be_read_is_unknown() -> None:
    """The parent's memory is denied: unknown, with NVML's words."""
    words = case("085").strip().splitlines()[-1]
    card = gpu(used=None, mig_enabled=True, error=words)
    verdict = judge_memory(report(card), [GPU0])
    assert verdict.exit_code == 21
    assert any("Insufficient Permissions" in finding.text for finding in verdict.all_findings)


def test_086_a_lost_card_is_not_free() -> None:
    """Lost, with the words of NVML, and exit 21."""
    assert "GPU is lost" in case("086")
    card = gpu(read=GpuRead.LOST, used=None, processes=None, error="GPU is lost")
    verdict = judge_memory(report(card), [GPU0])
    assert verdict.gpus[0].state == "lost"
    assert verdict.exit_code == 21


def test_089_an_old_driver_without_v2_is_labelled() -> None:
    """The number of the v1 call carries 'counts reserved memory'."""
    assert "Function Not Found" in case("089")
    verdict = judge_memory(report(gpu(used=4 * MIB, memory_version=1)), [GPU0])
    assert [finding.code for finding in verdict.all_findings] == ["reserved-counted"]


def test_091_one_card_of_these_is_free_where_grep_counts_five() -> None:
    """The numbers decide: 0, 39 and 10 MiB are idle, 50000 and 100800 are not."""
    text = case("091")
    used = [int(re.findall(r"(\d+)MiB", line)[0]) for line in text.splitlines()]
    states = [judge_memory(report(gpu(used=mib * MIB)), [GPU0]).gpus[0].state.value for mib in used]

    assert sum("0MiB" in line for line in text.splitlines()) == 5
    assert dict(zip(used, states, strict=True)) == {
        0: "free",
        39: "free",
        10: "free",
        50000: "busy",
        100800: "busy",
    }


def test_093_of_all_python3_only_the_server_is_chosen() -> None:
    """The incident's grep hits five more processes."""
    rows = [line.split(None, 4) for line in case("093").splitlines()]
    table: list[Process] = system()
    for user, pid, _, _, command in rows:
        uid = 0 if user == "root" else 1000
        table.append(proc(int(pid), 1, command, user=user, uid=uid))

    found = select(server(), table, {}, [], view())

    assert sum("python3" in row[4] for row in rows) == 5
    assert found.pids == {4200}


def test_094_holders_of_the_device_are_evidence_and_no_kill_list() -> None:
    """Of five rows one process is a server's; the daemons are protected."""
    rows = [line.split() for line in case("094").splitlines()[1:]]
    names = {"nvidia-pe": "nvidia-persistenced", "nv-hosten": "nv-hostengine", "Xorg": "Xorg"}
    table = system()
    details = {}
    for command, pid, *_ in rows:
        name = names.get(command, command)
        argv = ("python3", "train.py") if name == "python3" else (name,)
        table = [p for p in table if p.pid != int(pid)]
        table.append(proc(int(pid), 1, argv, exe=f"/usr/bin/{name}"))
        details[int(pid)] = detail(int(pid), gpu_devices=("/dev/nvidia0",))

    found = select(server(), table, details, [], view())

    assert {judged.pid for judged in found.protected} == {1346, 3019, 1402}
    assert {judged.pid for judged in found.foreign} == {4200}
    assert not found.members


def test_097_nothing_to_stop_is_no_error() -> None:
    """The state decides, not the exit code of a kill with an empty list."""
    assert '"rc": 123' in case("097")
    found = select(server(), system(), {}, [], view())
    assert plan_stop(found, Table.of(system())).is_empty
