"""Stops on the lab: over ssh and through pct, with real processes, containers, units and GPU holders."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import gpus
from tests.lab.fixture import Lab
from tests.lab.stopping import (
    alive,
    cleared,
    codes,
    opsctl,
    outcomes,
    serve,
    start,
    table,
    titled_of,
    wait_for,
)

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]


@pytest.fixture
def host(clean_lab: Lab) -> Iterator[Lab]:
    with cleared(clean_lab, "ct129", "ct130", "pve1", "gpu1"):
        yield clean_lab


def test_a_server_in_a_container_is_stopped_on_its_node_and_its_memory_proven(
    host: Lab, tmp_path: Path
) -> None:
    """One machine under two names: host pids, container pids, holders joined, all GPUs free."""
    root = serve(host, "ct129", 30000, tp=8)

    _, held = opsctl(host, tmp_path, "gpu", "verify", "glm5")
    code, planned = opsctl(host, tmp_path, "stop", "glm5", "--dry-run")
    assert code == 0
    assert all(one["next"].startswith("opsctl stop glm5 ") for one in held["findings"])
    assert len(held["findings"]) >= 1
    assert alive(host, "ct129", root)
    code, done = opsctl(host, tmp_path, "stop", "glm5", "--yes")
    again, second = opsctl(host, tmp_path, "stop", "glm5", "--yes")
    text = host.opsctl(["gpu", "verify", "glm5", "--state", str(tmp_path)]).stdout

    row = next(row for row in done["data"]["processes"] if row["ns_pid"] == root)
    assert (code, done["outcome"]) == (0, "stopped")
    assert row["pid"] != root
    assert row["outcome"] == "terminated"
    assert len(outcomes(planned)) == len(outcomes(done)) == 11
    assert [card["state"] for card in done["data"]["gpus"]] == ["free"] * 8
    assert all(card["before_bytes"] > 1 << 30 for card in done["data"]["gpus"])
    assert not titled_of(host, "ct129", root)
    assert (again, second["outcome"]) == (0, "already-stopped")
    for document in (planned, done, second):
        assert document["data"]["one_machine"] is True
        assert "boot id" in document["data"]["machine"]
    assert "on ct129, GPUs of node1: one machine (both have boot id " in text


def test_two_machines_are_not_joined(host: Lab, tmp_path: Path) -> None:
    """The GPUs of another machine have holders with numbers of their own; they are foreign there."""
    root = serve(host, "ct129", 30000)
    holder = start(host, "gpu1", "python3 /opt/lab-src/hold.py --gpu 3 --mib 2048")
    wait_for(lambda: opsctl(host, tmp_path, "gpu", "verify", "gpu1")[0] == 20, "memory is held")

    code, done = opsctl(host, tmp_path, "stop", "glm5-elsewhere", "--yes", "--timeout", "1")

    states = [card["state"] for card in done["data"]["gpus"]]
    assert not titled_of(host, "ct129", root)
    assert (code, states.count("busy"), states.count("free")) == (20, 1, 7)
    assert done["data"]["one_machine"] is False
    verified = opsctl(host, tmp_path, "gpu", "verify", "glm5-elsewhere")[1]["data"]
    assert verified["machine"] == done["data"]["machine"]
    assert verified["machine"].startswith("two machines (boot ids ")
    text = host.opsctl(["stop", "glm5-elsewhere", "--yes", "--state", str(tmp_path)]).stdout
    assert f"on ct129, GPUs of gpu1: {verified['machine']}" in text
    assert alive(host, "gpu1", holder)
    assert holder in outcomes(done, "foreign")


def test_the_strangers_of_the_incident_live(host: Lab, tmp_path: Path) -> None:
    """Jupyter, unattended-upgrades, a job on the same GPU, a grep: alive, and named if in the way."""
    root = serve(host, "ct129", 30000)
    strangers = [
        start(host, "ct129", "python3 -c 'import time; time.sleep(99)' jupyter-lab --no-browser"),
        start(
            host,
            "ct129",
            "python3 -c 'import time; time.sleep(99)' unattended-upgrade lab-stranger",
        ),
        start(host, "ct129", "bash -c 'sleep 99; : sglang.launch_server lab-stranger'"),
        start(host, "ct129", "tail -f /dev/null sglang.launch_server"),
    ]
    job = start(host, "ct129", "python3 /opt/lab-src/hold.py --gpu 1 --mib 4096")
    wait_for(lambda: _held(host, tmp_path) >= 3, "the job holds memory")

    code, done = opsctl(host, tmp_path, "stop", "glm5", "--yes", "--timeout", "1")

    assert alive(host, "ct129", *strangers, job)
    assert not titled_of(host, "ct129", root)
    assert (code, done["outcome"]) == (20, "memory-busy")
    (foreign,) = [row for row in done["data"]["processes"] if row["class"] == "foreign"]
    assert (foreign["ns_pid"], foreign["outcome"]) == (job, "untouched")

    code, evicted = opsctl(host, tmp_path, "stop", "glm5", "--yes", "--evict", str(foreign["pid"]))
    assert code == 0
    assert not alive(host, "ct129", job)
    assert alive(host, "ct129", *strangers)
    assert outcomes(evicted, "foreign")[foreign["pid"]] in ("terminated", "killed")


def _held(lab: Lab, state: Path) -> int:
    _, document = opsctl(lab, state, "gpu", "status", "node1")
    return sum(len(card["holders"]) for card in document["data"]["gpus"])


def test_another_container_s_holder_is_protected(host: Lab, tmp_path: Path) -> None:
    """It is named, it stays, and --evict does not reach it: exit 50, nothing signalled."""
    root = serve(host, "ct129", 30000)
    host.pct("start", "130")
    wait_for(lambda: host.on("ct130", ["true"]).exit_code == 0, "container 130 runs")
    other = start(host, "ct130", "python3 /opt/lab-src/hold.py --gpu 0 --mib 1024")
    wait_for(lambda: _held(host, tmp_path) >= 3, "the other container holds memory")

    _, planned = opsctl(host, tmp_path, "stop", "glm5", "--dry-run")
    ((pid, _),) = outcomes(planned, "protected").items()
    code, refused = opsctl(host, tmp_path, "stop", "glm5", "--yes", "--evict", str(pid))

    assert (code, codes(refused)) == (50, {"protected"})
    assert alive(host, "ct130", other)
    assert alive(host, "ct129", root)


def test_orphans_under_pid_1_are_found_by_their_gpu(host: Lab, tmp_path: Path) -> None:
    """The root was killed by hand; workers without a parent hold the memory."""
    root = serve(host, "ct129", 30000, "--lab-orphans")
    workers = titled_of(host, "ct129", root)
    host.on("ct129", ["kill", "-9", str(root)])
    wait_for(lambda: not alive(host, "ct129", root), "the root is dead")
    assert alive(host, "ct129", *workers)

    code, done = opsctl(host, tmp_path, "stop", "glm5", "--yes")

    assert code == 0, done["findings"]
    assert not titled_of(host, "ct129", root)
    assert {row["ns_pid"] for row in done["data"]["processes"]} >= set(workers)


def test_a_unit_with_restart_is_stopped_as_a_unit(host: Lab, tmp_path: Path) -> None:
    """Restart=always does not bring it back."""
    argv = "/opt/sglang/bin/python -m sglang.launch_server --model-path /models/GLM-5-NVFP4"
    argv += " --port 30001 --tp 2"
    done = host.on(
        "gpu1",
        [
            "systemd-run",
            "--unit=sglang-lab",
            "-p",
            "Restart=always",
            "-p",
            "RestartSec=0",
            *argv.split(),
        ],
    )
    assert done.exit_code == 0, done.stderr
    try:
        wait_for(lambda: sum("sglang::" in row[4] for row in table(host, "gpu1")) >= 3, "workers")
        code, stopped = opsctl(host, tmp_path, "stop", "plain", "--yes")
        time.sleep(1.0)

        state = host.on("gpu1", ["systemctl", "is-active", "sglang-lab"]).stdout.strip()
        assert code == 0, stopped["findings"]
        assert state in (
            "inactive",
            "failed",
        )  # SGLang ends itself by SIGKILL, which systemd calls failed
        assert not [row for row in table(host, "gpu1") if "sglang" in row[4]]
        assert "unit-restarts" in codes(stopped)
    finally:
        host.on("gpu1", ["systemctl", "stop", "sglang-lab"])
        host.on("gpu1", ["systemctl", "reset-failed", "sglang-lab"])  # so that it can run again


def test_two_servers_on_one_host(host: Lab, tmp_path: Path) -> None:
    """The port tells them apart; the other one keeps every pid."""
    small = ("--lab-mem-mib", "4096")
    ours = serve(host, "ct129", 30000, *small)
    theirs = serve(host, "ct129", 30007, *small, model="/models/GLM-5-NVFP4/")
    others = [theirs, *titled_of(host, "ct129", theirs)]

    code, done = opsctl(host, tmp_path, "stop", "glm5", "--yes", "--timeout", "1")

    assert not titled_of(host, "ct129", ours)
    assert alive(host, "ct129", *others)
    assert code == 20  # the other server's memory is on the same cards
    assert {row["class"] for row in done["data"]["processes"]} == {"member", "foreign"}
    named = {row["server"] for row in done["data"]["processes"] if row["class"] == "foreign"}
    assert named == {None}  # the site has no entry for it


def test_orphans_that_another_server_could_own_are_refused(host: Lab, tmp_path: Path) -> None:
    """Two servers of one owner, one root killed: both are named, exit 50, nobody is signalled."""
    small = ("--lab-mem-mib", "4096")
    other = serve(host, "ct129", 30007, *small, tp=1)
    root = serve(host, "ct129", 30000, "--lab-orphans", *small)
    workers = titled_of(host, "ct129", root)
    host.on("ct129", ["kill", "-9", str(root)])
    wait_for(lambda: not alive(host, "ct129", root), "the root is dead")

    code, refused = opsctl(host, tmp_path, "stop", "glm5", "--yes")

    text = refused["findings"][0]["text"]
    assert (code, codes(refused)) == (50, {"ambiguous"})
    assert "30007" in text
    assert "glm5" in text
    assert alive(host, "ct129", other, *workers)


def test_a_pid_that_is_reused_between_plan_and_signal_survives(host: Lab, tmp_path: Path) -> None:
    """The young process with the number of a dead member is left alone: its start differs."""
    root = serve(
        host,
        "ct129",
        30000,
        "--lab-orphans",
        "--lab-reparent",
        "--lab-health-lies",
        "--lab-ignore-term",
    )
    with host.popen(
        [
            "python",
            "-m",
            "opsctl",
            "stop",
            "glm5",
            "--yes",
            "--grace",
            "20",
            "--json",
            "--state",
            str(tmp_path),
        ]
    ) as running:
        wait_for(lambda: _is_watched(host), "the stop has begun", 30)
        # one that pid 1 collects: a zombie keeps its number
        victim = next(pid for pid in titled_of(host, "ct129", root) if parent_of(host, pid) == 1)
        young = _reuse(victim, "sglang::")
        out, _ = running.communicate(timeout=120)

    assert young == victim
    assert alive(host, "ct129", young)
    assert b'"exit_code": ' in out
    host.on("ct129", ["kill", "-9", str(young)])


def parent_of(lab: Lab, pid: int) -> int:
    return next(ppid for other, ppid, *_ in table(lab, "ct129") if other == pid)


def _is_watched(lab: Lab) -> bool:
    """The agent on the node holds pidfds of the server: the watch has begun."""
    script = "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c 'anon_inode:\\[pidfd\\]'"
    return int(lab.on("pve1", ["sh", "-c", script]).stdout.strip() or 0) >= 3


def _reuse(pid: int, title: str) -> int:
    """Kill a process of the container and start sleeps there until one gets its number.

    Only the machine's own /proc/sys can be written; the number is counted in the writer's namespace.
    """
    found = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _is_in_container(entry, pid, title)
    ]
    assert found, f"no {title} with pid {pid} in any container"
    outer = found[0]
    script = (
        "import os,subprocess,time\nn=subprocess.DEVNULL\n"
        f"pid={pid}\n"
        "os.kill(pid,9)\n"
        "for _ in range(1000):\n"
        "    try: os.kill(pid,0); time.sleep(0.01)\n"
        "    except ProcessLookupError: break\n"
        "else: raise SystemExit('not collected')\n"
        "for _ in range(500):\n"
        "    open('/proc/sys/kernel/ns_last_pid','w').write(str(pid-1))\n"
        "    made=subprocess.Popen(['sleep','120'],start_new_session=True,stdout=n,stderr=n)\n"
        "    if made.pid==pid: break\n"
        "    made.kill(); made.wait()\n"
        "print(made.pid)\n"
    )
    argv = ["nsenter", "-t", str(outer), "--pid", "python3", "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def _is_in_container(entry: Path, pid: int, title: str) -> bool:
    try:
        numbers = (entry / "status").read_text().partition("NSpid:")[2].splitlines()[0].split()
        return numbers[-1:] == [str(pid)] and title in (entry / "cmdline").read_text()
    except (OSError, IndexError):
        return False


def test_a_stop_whose_connection_is_cut_is_run_again(host: Lab, tmp_path: Path) -> None:
    """opsctl is killed after TERM; the server ignores TERM; the second run looks and ends it."""
    root = serve(host, "ct129", 30000, "--lab-ignore-term")
    with host.popen(
        [
            "python",
            "-m",
            "opsctl",
            "stop",
            "glm5",
            "--yes",
            "--grace",
            "60",
            "--state",
            str(tmp_path),
        ]
    ) as running:
        wait_for(lambda: _is_watched(host), "the stop has begun", 30)
        running.send_signal(signal.SIGKILL)
        running.wait(timeout=10)
    assert alive(host, "ct129", root)

    wait_for(lambda: not _is_watched(host), "the agent has ended with its stdin", 40)
    code, done = opsctl(host, tmp_path, "stop", "glm5", "--yes", "--grace", "1")

    assert code == 0, done["findings"]
    assert not titled_of(host, "ct129", root)
    assert outcomes(done)


def test_a_stop_whose_ssh_is_cut_kills_nobody_and_says_so(host: Lab, tmp_path: Path) -> None:
    """The connection to the node dies during the grace: exit 30 or 40, no KILL follows, run it again."""
    root = serve(host, "ct129", 30000, "--lab-ignore-term")
    argv = ["python", "-m", "opsctl", "stop", "glm5", "--yes", "--json", "--grace", "3"]
    with host.popen([*argv, "--state", str(tmp_path)]) as running:
        wait_for(lambda: _is_watched(host), "the stop has begun", 30)
        host.on("pve1", ["sh", "-c", "pkill -9 -f 'sshd: root@notty' || true"])
        out, err = running.communicate(timeout=90)
    time.sleep(4.0)

    assert running.returncode in (30, 40), err
    assert alive(host, "ct129", root)
    assert b'"exit_code": ' in out
    wait_for(lambda: not _is_watched(host), "the agents have ended", 40)
    code, done = opsctl(host, tmp_path, "stop", "glm5", "--yes", "--grace", "1")
    assert code == 0, done["findings"]
    assert not titled_of(host, "ct129", root)


@pytest.mark.parametrize(
    ("fault", "gpu", "value", "code", "finding"),
    [
        ("leak", 2, "1024", 20, "memory-without-owner"),
        ("lost", 2, None, 21, "gpu-lost"),
        ("memory-unavailable", 2, None, 21, "memory-unknown"),
        ("hang", 2, "memory", 21, "nvml-timeout"),
        ("mismatch", None, None, 21, "nvml-mismatch"),
        ("driver-not-loaded", None, None, 21, "nvml-driver-not-loaded"),
        ("no-permission", 2, None, 21, "memory-unknown"),
        ("no-memory-v2", 2, None, 21, "reserved-or-used"),
        ("reserved", 2, "912", 0, None),
        ("busy", 2, "100", 0, "ghost-utilisation"),
    ],
)
def test_what_nvml_says_decides_the_exit_code(
    host: Lab,
    tmp_path: Path,
    fault: str,
    gpu: int | None,
    value: str | None,
    code: int,
    finding: str | None,
) -> None:
    """`opsctl gpu verify` is 0 only when proven free; each trouble has its own finding."""
    gpus.set_fault(host.gpu_dir("pve1"), fault, gpu, value)

    found, document = opsctl(host, tmp_path, "gpu", "verify", "node1", "--expect", "8")

    assert found == code, document["findings"]
    assert finding is None or finding in codes(document)
    others = [card["state"] for card in document["data"]["gpus"] if card["index"] != gpu]
    assert set(others) <= {"free"}


def test_fewer_cards_than_expected(host: Lab, tmp_path: Path) -> None:
    """Nine are wanted and eight are there: could not be told."""
    code, document = opsctl(host, tmp_path, "gpu", "verify", "node1", "--expect", "9")
    assert (code, codes(document)) == (21, {"fewer-gpus"})


def test_more_cards_than_expected_are_named(host: Lab, tmp_path: Path) -> None:
    """Four are wanted and eight are there: free, and said."""
    code, document = opsctl(host, tmp_path, "gpu", "verify", "node1", "--expect", "4")
    assert (code, codes(document)) == (0, {"more-gpus"})


def test_gpu_wait_ends_when_the_holder_does(host: Lab, tmp_path: Path) -> None:
    """It proves the release within a poll, and says when each card became free."""
    with host.holding("pve1", 4, 2048) as pid:
        assert opsctl(host, tmp_path, "gpu", "wait", "node1", "--timeout", "0.5")[0] == 20
        start(host, "pve1", f"sh -c 'sleep 4; kill -9 {pid}'")
        code, document = opsctl(host, tmp_path, "gpu", "wait", "node1", "--timeout", "20")
    card = document["data"]["gpus"][4]
    assert code == 0
    assert card["before_bytes"] > 1 << 30
    assert 0 < card["free_after_s"] < 15
