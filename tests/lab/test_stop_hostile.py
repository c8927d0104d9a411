"""Stops on the lab where a stranger is easily hit, or memory easily called free too soon."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
SMALL = ("--lab-mem-mib", "2048")


@pytest.fixture
def host(clean_lab: Lab) -> Iterator[Lab]:
    with cleared(clean_lab, "ct129", "pve1", "gpu1"):
        yield clean_lab


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
