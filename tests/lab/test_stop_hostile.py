"""Stops on the lab where a stranger is easily hit, or memory easily called free too soon."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab import gpus
from tests.lab.fixture import Lab
from tests.lab.stopping import (
    MODEL,
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
SMALL = ("--lab-mem-mib", "2048")


@pytest.fixture
def host(clean_lab: Lab) -> Iterator[Lab]:
    with cleared(clean_lab, "ct129", "pve1", "gpu1"):
        yield clean_lab
        clean_lab.on("ct129", ["sh", "-c", "systemctl stop 'opsctl-*'; rm -rf /var/lib/opsctl"])


def begun(lab: Lab, state: Path, *words: str) -> Any:
    """Begin a stop, and return it once its plan is made and its intent written: signals go out."""
    argv = ["python", "-m", "opsctl", "stop", *words, "--yes", "--json", "--state", str(state)]
    running = lab.popen(argv)
    wait_for(lambda: list((state / "stops").glob("*.json")), "the stop has written its intent")
    return running


def test_a_nested_container_s_server_on_the_same_port_lives(host: Lab, tmp_path: Path) -> None:
    """As Docker in LXC: pid and network namespaces of its own, the same port, model, user and GPUs."""
    nested = (
        "unshare --fork --pid --net --mount-proc /opt/sglang/bin/python -m sglang.launch_server"
    )
    nested += " --model-path /models/GLM-5-NVFP4 --port 30000 --tp 2 --lab-startup-s 0"
    outer = start(host, "ct129", f"{nested} --lab-mem-mib 2048")
    wait_for(lambda: len(titled_of(host, "ct129", outer)) >= 3, "the nested server's workers")
    theirs = titled_of(host, "ct129", outer)
    ours = serve(host, "ct129", 30000, *SMALL)

    code, done = opsctl(host, tmp_path, "stop", "glm5", "--yes", "--timeout", "2")

    assert not alive(host, "ct129", ours)
    assert alive(host, "ct129", *theirs)
    assert code == 20  # the nested server's memory is on the same cards
    assert "port-held" not in codes(done)
    held = [row["reason"] for row in done["data"]["processes"] if row["class"] == "protected"]
    assert any("inside container 129" in reason for reason in held), held


def test_a_worker_that_left_its_unit_s_cgroup_is_stopped_too(host: Lab, tmp_path: Path) -> None:
    """systemd no longer sees it; the tree and the launch record do."""
    code, launched = opsctl(host, tmp_path, "launch", "glm5", "--yes", "--no-smoke")
    assert code == 0, launched["findings"]
    root = next(pid for pid, _, _, _, args in table(host, "ct129") if "launch_server" in args)
    workers = titled_of(host, "ct129", root)
    script = (
        "while IFS=: read -r _ names path; do case $path in *opsctl-glm5*) "
        "for at in /sys/fs/cgroup/${names#name=} /sys/fs/cgroup/unified /sys/fs/cgroup; do "
        f"echo {workers[0]} >$at/cgroup.procs 2>/dev/null && break; done;; esac; "
        f"done </proc/{workers[0]}/cgroup; cat /proc/{workers[0]}/cgroup"
    )
    shown = host.on("ct129", ["sh", "-c", script]).stdout
    assert "opsctl-glm5" not in shown, shown

    code, done = opsctl(host, tmp_path, "stop", "glm5", "--yes")

    assert code == 0, done["findings"]
    assert workers[0] in {row["ns_pid"] for row in done["data"]["processes"]}
    assert not [row for row in table(host, "ct129") if row[4].startswith("sglang::")]


def test_a_job_that_takes_a_gpu_after_the_plan_is_named_and_lives(
    host: Lab, tmp_path: Path
) -> None:
    """It was not there when the plan was made: the proof sees it, says what it is, and claims nothing."""
    root = serve(host, "ct129", 30000, *SMALL, "--lab-term-poll-s", "4")
    with begun(host, tmp_path, "glm5", "--timeout", "3") as running:
        job = start(host, "pve1", "python3 /opt/lab-src/hold.py --gpu 5 --mib 1024")
        out, _ = running.communicate(timeout=120)
    done = json.loads(out)

    assert not alive(host, "ct129", root)
    assert alive(host, "pve1", job)
    assert (done["exit_code"], done["outcome"]) == (20, "memory-busy")
    card = next(card for card in done["data"]["gpus"] if card["index"] == 5)
    assert card["state"] == "busy"
    assert [holder["pid"] for holder in card["holders"]] == [job]
    assert "hold.py" in card["holders"][0]["what"]


@pytest.mark.parametrize("learn", [False, True])
def test_an_mps_server_s_memory_is_no_one_s_free_memory(
    host: Lab, tmp_path: Path, learn: bool
) -> None:
    """It stays, is never signalled, and its memory counts unless the idle card was learned with it."""
    host.on("gpu1", ["cp", "/usr/bin/python3", "/tmp/nvidia-cuda-mps-server"])
    daemon = "/tmp/nvidia-cuda-mps-server /opt/lab-src/hold.py --gpu 0 --mib 300 --kind mps"
    mps = start(host, "gpu1", daemon)
    wait_for(lambda: "mps-server" in str(_holders(host, tmp_path)), "MPS holds memory")
    if learn:
        code, _ = opsctl(host, tmp_path, "gpu", "status", "plain", "--learn")
        assert code == 0
    root = serve(host, "gpu1", 30001, *SMALL)

    code, done = opsctl(host, tmp_path, "stop", "plain", "--yes", "--timeout", "2")

    assert not alive(host, "gpu1", root)
    assert alive(host, "gpu1", mps)
    assert outcomes(done, "protected") == {mps: "untouched"}
    assert code == (0 if learn else 20), done["findings"]
    host.on("gpu1", ["kill", "-9", str(mps)])


def _holders(lab: Lab, state: Path) -> Any:
    return opsctl(lab, state, "gpu", "status", "plain")[1]["data"]


def test_what_may_not_be_signalled_is_its_own_outcome(host: Lab, tmp_path: Path) -> None:
    """Logged in without root, the server is root's: told, alive, and never called stopped."""
    root = serve(host, "pve1", 30005, *SMALL)
    site = yaml.safe_load(host.site_file.read_text())
    plain = {key: value for key, value in site["hosts"]["pve1-ops"].items() if key != "become"}
    entry = {"host": "plain", "port": 30005, "user": "root", "python": "/opt/sglang/bin/python"}
    path = tmp_path / "site.yaml"
    path.write_text(
        yaml.safe_dump({"hosts": {"plain": plain}, "servers": {"s": {**entry, "model": MODEL}}})
    )

    words = ("stop", "s", "--yes", "--grace", "1", "--timeout", "1", "--site", str(path))
    code, done = opsctl(host, tmp_path, *words)

    assert code == 20, done["findings"]
    assert done["outcome"] == "not-stopped"
    assert set(outcomes(done).values()) == {"denied"}
    assert "denied" in codes(done)
    assert alive(host, "pve1", root, *titled_of(host, "pve1", root))


@pytest.mark.parametrize(
    ("faults", "code", "finding"),
    [
        (("process-memory-unavailable",), 20, "held"),
        (("process-memory-unavailable", "memory-unavailable"), 21, "memory-unknown"),
        (("mig", "memory-unavailable"), 20, "held"),
    ],
    ids=["holder", "nothing told", "instance"],
)
def test_a_holder_whose_memory_is_not_told_is_never_free(
    host: Lab, tmp_path: Path, faults: tuple[str, ...], code: int, finding: str
) -> None:
    """NVML lists a process without its memory, says nothing of the card, or only of its MIG instances."""
    with host.holding("pve1", 2, 2048):
        for fault in faults:
            gpus.set_fault(host.gpu_dir("pve1"), fault, 2)
        found, document = opsctl(host, tmp_path, "gpu", "verify", "node1")
    assert (found, finding in codes(document)) == (code, True), document["findings"]


@pytest.mark.parametrize(
    ("fault", "value", "refused"),
    [("recovery", "reboot", True), ("remap-failed", None, True), ("hot", "97", False)],
)
def test_a_card_that_is_not_fit_refuses_the_next_launch_before_the_stop(
    host: Lab, tmp_path: Path, fault: str, value: str | None, refused: bool
) -> None:
    """A reboot asked for, a failed remap: the running server keeps its pid; heat alone only warns."""
    root = serve(host, "ct129", 30000, *SMALL)
    gpus.set_fault(host.gpu_dir("pve1"), fault, 2, value)

    words = ("restart", "glm5", "--dry-run" if not refused else "--yes", "--no-smoke")
    code, document = opsctl(host, tmp_path, *words, timeout_s=120)

    said = codes(document) & {"recovery-action", "remap-failed", "thermal"}
    assert (code != 0, len(said)) == (refused, 1), document["findings"]
    assert alive(host, "ct129", root)
