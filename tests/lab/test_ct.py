"""`opsctl ct` on the lab's node: pvesh over ssh, real containers, real tasks."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.session import open_session
from opsctl.site import load_site
from tests.lab.fixture import Lab
from tests.lab.stopping import cleared, opsctl, wait_for
from tests.schemas import read_document

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]
CONFIG = "/etc/pve/lxc/130.conf"


@pytest.fixture
def node(lab: Lab) -> Iterator[Lab]:
    """Container 130 stopped, unlocked, without snapshots, before and after."""
    saved = lab.on("pve1", ["/bin/cat", CONFIG]).stdout
    _clean(lab)
    yield lab
    _clean(lab)
    lab.on("pve1", ["/bin/sh", "-c", 'printf %s "$1" >"$2"', "sh", saved, CONFIG])


def _clean(lab: Lab) -> None:
    lab.pct("unlock", "130")
    if lab.pct("status", "130").stdout == "status: running\n":
        assert lab.pct("stop", "130").exit_code == 0
    for row in ct(lab, "status", "ct130")[1]["data"]["snapshots"]:
        lab.pct("delsnapshot", "130", row["name"])


def ct(lab: Lab, *words: str) -> tuple[int, dict[str, Any]]:
    done = lab.opsctl(["ct", words[0], "--json", "--site", str(lab.site_file), *words[1:]])
    try:
        document: dict[str, Any] = read_document(done.stdout)
    except ValueError:
        raise AssertionError((done.exit_code, done.stdout, done.stderr)) from None
    assert document["exit_code"] == done.exit_code
    return done.exit_code, document


def state(lab: Lab) -> str:
    return lab.pct("status", "130").stdout.split()[-1]


def test_a_container_is_started_rebooted_and_shut_down_through_pvesh(node: Lab) -> None:
    """Each ends with the container seen in its state; the node's user needs no root login (sudo -n)."""
    assert ct(node, "status", "ct130")[0] == 20

    started = ct(node, "start", "ct130", "--yes")
    rebooted = ct(node, "reboot", "130", "--node", "pve1-ops", "--yes")
    assert (started[0], rebooted[0], state(node)) == (0, 0, "running")
    done = ct(node, "shutdown", "ct130", "--yes")

    assert (done[0], done[1]["outcome"], state(node)) == (0, "shut-down", "stopped")
    assert started[1]["data"]["api"].startswith("pvesh on ssh:")
    assert started[1]["data"]["task"].startswith("UPID:pve1:")


def test_a_lock_is_told_with_its_task_and_never_cleared(node: Lab) -> None:
    """A backup that runs is named with user and age; one that was killed leaves a lock without a task."""
    node.on("pve1", ["/usr/bin/sed", "-i", "$ a lock: backup", CONFIG])
    upid = "UPID:pve1:00000001:00000001:00000001:vzdump:130:backup@pve:"
    task = {"upid": upid, "type": "vzdump", "id": "130", "user": "backup@pve", "node": "pve1"}
    task |= {"starttime": int(time.time()) - 300, "pid": 1}
    write = 'mkdir -p /var/log/pve/tasks; printf %s "$2" >"/var/log/pve/tasks/$1"'
    node.on("pve1", ["/bin/sh", "-c", write, "sh", upid, json.dumps(task)])
    try:
        code, held = ct(node, "start", "ct130", "--yes")
        looked, seen = ct(node, "status", "ct130")
    finally:
        node.on("pve1", ["/bin/rm", f"/var/log/pve/tasks/{upid}"])
    orphaned = ct(node, "start", "ct130", "--yes")

    assert (code, looked, orphaned[0]) == (50, 20, 50)
    assert "vzdump of backup@pve" in held["findings"][0]["text"]
    assert seen["data"]["lock"]["user"] == "backup@pve"
    assert "no running task" in orphaned[1]["findings"][0]["text"]
    assert "lock: backup" in node.on("pve1", ["/bin/cat", CONFIG]).stdout
    assert state(node) == "stopped"


def test_a_start_that_fails_shows_the_tasks_log(node: Lab) -> None:
    """dev0 names a device that the node does not have."""
    node.on("pve1", ["/usr/bin/sed", "-i", "$ a dev0: /dev/nvidia99", CONFIG])

    code, failed = ct(node, "start", "ct130", "--yes")

    assert (code, state(node)) == (20, "stopped")
    assert "Device /dev/nvidia99 does not exist" in failed["findings"][0]["text"]


def test_exec_passes_words_whole_and_tells_the_true_end(node: Lab) -> None:
    """No shell in between; a signal, a missing program and a time-out are told apart; nothing is left."""
    ct(node, "start", "ct130", "--yes")

    words = ct(node, "exec", "ct130", "--", "printf", "%s\n", "a b", "$HOME", "'", "--", "*")
    killed = ct(node, "exec", "ct130", "--", "sh", "-c", "kill -9 $$")
    absent = ct(node, "exec", "ct130", "--", "/no/such/program")
    late = ct(node, "exec", "--timeout", "1", "ct130", "--", "sleep", "9871")
    left = node.on("ct130", ["/usr/bin/pgrep", "-f", "^sleep 9871$"]).stdout

    assert (words[0], words[1]["data"]["stdout"]) == (0, "a b\n$HOME\n'\n--\n*\n")
    assert (killed[0], killed[1]["data"]["exit_code"]) == (20, 137)
    assert (absent[0], absent[1]["data"]["exit_code"]) == (20, 127)
    assert (late[0], late[1]["findings"][0]["code"], left) == (20, "exec-timeout", "")


def test_an_exec_is_heard_to_its_end_when_lxc_attach_dies(node: Lab) -> None:
    """The command holds the pipes itself, and our own line reports its end: not lxc-attach's exit code."""
    ct(node, "start", "ct130", "--yes")
    words = ["ct", "exec", "--json", "--site", str(node.site_file), "ct130", "--"]
    words += ["sh", "-c", "sleep 4; echo there; exit 3", "lab-attach"]
    with node.popen([sys.executable, "-m", "opsctl", *words]) as child:
        inside = ["/usr/bin/pgrep", "-f", "^sleep 4$"]
        wait_for(lambda: node.on("ct130", inside).stdout, "the command inside")
        killed = node.on("pve1", ["/usr/bin/pkill", "-9", "-f", "^lxc-attach -n 130 .*lab-attach"])
        out, err = child.communicate(timeout=60)

    assert killed.exit_code == 0, "there was no lxc-attach"
    assert out, err.decode()
    told = read_document(out.decode())
    assert (child.returncode, told["data"]["exit_code"]) == (20, 3)
    assert told["data"]["stdout"] == "there\n"


def test_exec_in_a_stopped_container_says_so(node: Lab) -> None:
    """Exit 30: it could not be reached, and how to start it."""
    code, refused = ct(node, "exec", "ct130", "--", "true")

    assert (code, refused["findings"][0]["code"]) == (30, "container-stopped")


def test_a_snapshot_brings_files_back_and_old_ones_are_pruned(node: Lab) -> None:
    """Take, change, roll back; then keep one: the older one of ours goes, the operator's stays."""
    ct(node, "start", "ct130", "--yes")
    node.pct("exec", "130", "--", "sh", "-c", "echo before >/root/file")
    assert node.pct("snapshot", "130", "mine").exit_code == 0
    assert ct(node, "snapshot", "ct130", "--name", "opsctl-one", "--yes")[0] == 0
    node.pct("exec", "130", "--", "sh", "-c", "echo after >/root/file")

    back = ct(node, "rollback", "ct130", "opsctl-one", "--start", "--yes")
    file = node.pct("exec", "130", "--", "cat", "/root/file").stdout
    pruned = ct(node, "snapshot", "ct130", "--keep", "1", "--yes")

    assert (back[0], back[1]["data"]["after"], file) == (0, "running", "before\n")
    assert (pruned[0], pruned[1]["data"]["deleted"]) == (0, ["opsctl-one"])
    names = [row["name"] for row in ct(node, "status", "ct130")[1]["data"]["snapshots"]]
    assert sorted(names) == sorted(["mine", pruned[1]["data"]["snapshot"]])


def test_passthrough_is_right_in_one_container_and_told_in_the_other(node: Lab) -> None:
    """129 has its GPUs; 130 has none, and one that is mounted without its cgroup rule is named."""
    code, good = ct(node, "check", "glm5")
    assert (code, good["outcome"], good["findings"]) == (0, "ok", [])
    assert len(good["data"]["devices"]) == 11
    assert good["data"]["driver"]["module"] == good["data"]["driver"]["library"]

    stopped = ct(node, "check", "ct130")
    mount = "lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file"
    node.on("pve1", ["/usr/bin/sed", "-i", f"$ a {mount}", CONFIG])
    ct(node, "start", "ct130", "--yes")
    code, bad = ct(node, "check", "ct130")

    assert [item["code"] for item in stopped[1]["findings"]][:1] == ["no-gpu-passed"]
    told = {item["code"]: item["next"] for item in bad["findings"]}
    assert code == 20
    assert told["device-not-allowed"].endswith("lxc.cgroup2.devices.allow: c 1:* rwm")
    assert "driver-library-missing" in told


def test_fix_devices_writes_the_lines_that_are_missing_and_keeps_what_was(
    node: Lab, tmp_path: Path
) -> None:
    """Shown, refused while locked, written under the node's lock by a user with sudo; then the container
    starts with its GPUs, and only what no line can mend is left."""
    planned = ct(node, "fix-devices", "ct130", "--dry-run")
    node.on("pve1", ["/usr/bin/sed", "-i", "$ a lock: backup", CONFIG])
    locked = ct(node, "fix-devices", "ct130", "--yes")
    node.pct("unlock", "130")
    before = node.on("pve1", ["/bin/cat", CONFIG]).stdout

    code, fixed = ct(node, "fix-devices", "130", "--node", "pve1-ops", "--yes")
    kept = node.on("pve1", ["/bin/cat", str(fixed["data"]["backup"])]).stdout
    after = node.on("pve1", ["/bin/cat", CONFIG]).stdout
    assert node.pct("start", "130").exit_code == 0
    inside = node.on("ct130", ["/bin/ls", "/dev/nvidia0", "/dev/nvidia-uvm"])
    _, checked = ct(node, "check", "ct130")

    assert (planned[0], planned[1]["outcome"], len(planned[1]["data"]["edits"])) == (
        0,
        "planned",
        10,
    )
    assert (locked[0], locked[1]["findings"][0]["code"]) == (50, "container-locked")
    assert (code, fixed["outcome"], kept) == (0, "changed", before)
    assert [
        line for line in after.splitlines() if line in before.splitlines()
    ] == before.splitlines()
    assert inside.exit_code == 0, inside.stderr
    assert checked["data"]["broken"] == ["driver-library-missing"]


@pytest.fixture
def stopped_129(clean_lab: Lab) -> Iterator[Lab]:
    """Container 129 stopped, as found at 3 a.m.; it runs again afterwards."""
    with cleared(clean_lab, "ct129"):
        assert clean_lab.pct("stop", "129").exit_code == 0
        yield clean_lab
        clean_lab.restore()
        clean_lab.on("ct129", ["sh", "-c", "systemctl stop 'opsctl-*'; rm -rf /var/lib/opsctl"])


def test_a_restart_finds_its_container_stopped_and_brings_it_up(
    stopped_129: Lab, tmp_path: Path
) -> None:
    """Planned and refused without a yes, the container stays down; with it the server answers."""
    lab = stopped_129
    planned = opsctl(lab, tmp_path, "restart", "glm5", "--dry-run", "--no-smoke")
    code, refused = opsctl(lab, tmp_path, "restart", "glm5", "--no-smoke")
    assert (code, refused["outcome"]) == (50, "refused")
    assert refused["findings"][0]["code"] == "not-confirmed"
    assert "container 129 on pve1 is stopped, and stays so" in refused["findings"][0]["text"]
    assert (planned[0], planned[1]["outcome"]) == (21, "planned")  # the rest cannot be told yet
    assert [row["step"] for row in planned[1]["data"]["plan"]] == ["container"]
    assert "start container 129" in planned[1]["data"]["plan"][0]["lines"][0]
    assert lab.pct("status", "129").stdout == "status: stopped\n"

    code, done = opsctl(lab, tmp_path, "restart", "glm5", "--yes", "--no-smoke", timeout_s=120)

    assert code == 0, done["findings"]
    steps = {step["name"]: step["outcome"] for step in done["data"]["steps"]}
    assert (steps["container"], steps["launch"], steps["ready"]) == ("done", "done", "done")
    code, again = opsctl(lab, tmp_path, "restart", "glm5", "--yes", "--no-smoke", timeout_s=120)
    steps = {step["name"]: step["outcome"] for step in again["data"]["steps"]}
    assert (code, steps["container"]) == (0, "unchanged")


def test_a_launch_leaves_a_locked_container_alone(stopped_129: Lab, tmp_path: Path) -> None:
    """Exit 50 with the lock, which stays; nothing is started."""
    lab = stopped_129
    config = CONFIG.replace("130", "129")
    lab.on("pve1", ["/usr/bin/sed", "-i", "$ a lock: backup", config])

    code, refused = opsctl(lab, tmp_path, "launch", "glm5", "--yes", "--no-smoke")

    assert (code, refused["findings"][0]["code"]) == (50, "container-locked")
    assert "lock: backup" in lab.on("pve1", ["/bin/cat", config]).stdout
    assert lab.pct("status", "129").stdout == "status: stopped\n"


def test_a_container_in_which_a_run_works_is_not_rebooted(clean_lab: Lab) -> None:
    """Another operator's run holds the server's port: exit 50 with who; without it the reboot is done."""
    owner = {"who": "ann@desk", "run": "r7", "server": "glm5", "reason": "graph crash"}
    with open_session(load_site(clean_lab.site_file), "glm5") as session:
        request = {"names": ["port-30000"], "owner": owner}
        assert session.agent.call("lock.acquire", request, timeout_s=10.0)["acquired"]

        code, refused = ct(clean_lab, "reboot", "glm5", "--yes")

    assert (code, refused["findings"][0]["code"]) == (50, "locked")
    assert "ann@desk" in refused["findings"][0]["text"]
    code, done = ct(clean_lab, "reboot", "glm5", "--yes")
    assert (code, done["outcome"]) == (0, "rebooted"), done
    clean_lab.restore()
