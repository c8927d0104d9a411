"""Restarts on the lab: through ssh and pct, under systemd in container 129, with GPU memory proven."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.fixture import Lab
from tests.lab.instance import CHECKOUT
from tests.lab.stopping import alive, cleared, codes, opsctl, table, wait_for
from tests.schemas import read_document

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

RUNS = "/var/lib/opsctl/runs"


@pytest.fixture
def host(clean_lab: Lab) -> Iterator[Lab]:
    with cleared(clean_lab, "ct129", "gpu1"):
        yield clean_lab
        for name in ("ct129", "gpu1"):
            clean_lab.on(name, ["sh", "-c", "systemctl stop 'opsctl-*' ; rm -rf /var/lib/opsctl"])


def mains(lab: Lab, where: str, port: int) -> list[int]:
    """Return the pids of servers on a port; a worker that was forked a moment ago still has their words."""
    wanted = f"--port {port} "
    found = {
        pid: ppid
        for pid, ppid, _, state, args in table(lab, where)
        if "-m sglang.launch_server" in args and wanted in f"{args} " and not state.startswith("Z")
    }
    return [pid for pid, ppid in found.items() if ppid not in found]


def with_server(lab: Lab, folder: Path, name: str, **changes: Any) -> Path:
    """Write the lab's site with changes to one server; args and env are merged."""
    site = yaml.safe_load(lab.site_file.read_text())
    entry = site["servers"][name]
    for key, value in changes.items():
        entry[key] = {**entry.get(key, {}), **value} if isinstance(value, dict) else value
    path = folder / "site.yaml"
    path.write_text(yaml.safe_dump(site))
    return path


def restart(lab: Lab, state: Path, name: str, *words: str) -> tuple[int, Any]:
    return opsctl(lab, state, "restart", name, "--yes", "--no-smoke", *words, timeout_s=120)


@pytest.mark.parametrize(
    ("name", "where", "port"), [("glm5", "ct129", 30000), ("plain", "gpu1", 30001)]
)
def test_a_restart_replaces_the_server_under_systemd(
    host: Lab, tmp_path: Path, name: str, where: str, port: int
) -> None:
    """Eight GPUs proven free between the two; the unit carries the run's id; the downtime is broken down."""
    first_code, first = restart(host, tmp_path, name)
    before = mains(host, where, port)
    code, second = restart(host, tmp_path, name)
    after = mains(host, where, port)

    assert (first_code, code) == (0, 0), (first["findings"], second["findings"])
    assert len(before) == len(after) == 1
    assert before != after
    assert [card["state"] for card in second["data"]["gpu verify"]["gpus"]] == ["free"] * 8
    unit = f"opsctl-{name}-{second['run']}.service"
    shown = host.on(where, ["systemctl", "show", "-p", "MainPID", "--value", unit]).stdout
    assert int(shown) == after[0]
    assert second["data"]["downtime"]["total_s"] > 0


def test_a_launch_outlives_the_ssh_connection(host: Lab, tmp_path: Path) -> None:
    """It is no part of any login session: it lives in a unit of its own."""
    assert restart(host, tmp_path, "plain")[0] == 0
    pid = mains(host, "gpu1", 30001)[0]

    host.on(
        "gpu1",
        ["sh", "-c", "pkill -x sshd || true; systemctl restart ssh || systemctl restart sshd"],
    )

    cgroup = host.on("gpu1", ["cat", f"/proc/{pid}/cgroup"]).stdout
    assert alive(host, "gpu1", pid)
    assert "opsctl-plain-" in cgroup
    assert "session-" not in cgroup


@pytest.mark.parametrize(
    ("faults", "words"),
    [("signal-at-start=SEGV", "crashed"), ("fail-at=args,exit-at-start=0", "crashed")],
)
def test_an_end_at_start_is_told_by_systemd(
    host: Lab, tmp_path: Path, faults: str, words: str
) -> None:
    """Exit code or signal of the unit's main process; a unit that exits 0 is still there to be asked."""
    site = with_server(host, tmp_path, "plain", env={"LAB_FAULTS": faults})

    code, document = restart(host, tmp_path, "plain", "--site", str(site))

    assert code == 60
    assert "start-crashed" in codes(document)
    assert mains(host, "gpu1", 30001) == []


def test_a_server_that_exits_0_after_it_was_ready_is_seen(host: Lab, tmp_path: Path) -> None:
    """Ready, then gone with exit 0: a launch finds no server, a restart starts one again."""
    site = with_server(host, tmp_path, "plain", env={"LAB_FAULTS": "exit-after-s=3"})
    assert restart(host, tmp_path, "plain", "--site", str(site))[0] == 0
    wait_for(lambda: not mains(host, "gpu1", 30001), "the server is gone")

    code, document = restart(host, tmp_path, "plain")

    assert code == 0, document["findings"]
    assert len(mains(host, "gpu1", 30001)) == 1


def test_the_incidents_setup_passes_a_dry_run(host: Lab, tmp_path: Path) -> None:
    """The shipped example, on the lab's SM120 cards; an SM100-only backend on them is refused."""
    example = yaml.safe_load((CHECKOUT / "docs/examples/glm5-sm120.yaml").read_text())["servers"][
        "glm5"
    ]
    prepare = (
        "mkdir -p /opt/tools /models/GLM-5-EAGLE3",
        "ln -sf /bin/true /opt/tools/nvcc",
        "ln -sf /bin/true /opt/tools/ninja",
        "cp -n /models/GLM-5-NVFP4/config.json /models/GLM-5-EAGLE3/ || true",
    )
    host.on("ct129", ["sh", "-c", "; ".join(prepare)])
    path = {"PATH": "/opt/tools:/usr/bin:/bin"}
    args = example["args"]
    site = with_server(host, tmp_path, "glm5", args=args, env={**example["env"], **path})

    code, document = opsctl(host, tmp_path, "restart", "glm5", "--dry-run", "--site", str(site))
    wrong = {**args, "moe-runner-backend": "flashinfer_trtllm"}
    site = with_server(host, tmp_path, "glm5", args=wrong, env={**example["env"], **path})
    refused_code, refused = opsctl(
        host, tmp_path, "restart", "glm5", "--dry-run", "--site", str(site)
    )

    assert code == 0, document["findings"]
    launch = next(item["lines"] for item in document["data"]["plan"] if item["step"] == "launch")
    assert any("EAGLE3" in line for line in launch)
    assert refused_code == 20
    assert "unsupported-arch" in codes(refused)
    assert "SM120" in str(refused["findings"])


def test_a_full_log_disk_is_found_before_the_stop(host: Lab, tmp_path: Path) -> None:
    """The running server keeps its pid."""
    assert restart(host, tmp_path, "plain")[0] == 0
    before = mains(host, "gpu1", 30001)
    host.on(
        "gpu1", ["sh", "-c", "mkdir -p /mnt/small && mount -t tmpfs -o size=1m none /mnt/small"]
    )
    try:
        site = with_server(host, tmp_path, "plain", log_dir="/mnt/small/logs")
        code, document = restart(host, tmp_path, "plain", "--site", str(site))
    finally:
        host.on("gpu1", ["umount", "/mnt/small"])

    assert code == 20
    assert "log-disk" in codes(document)
    assert mains(host, "gpu1", 30001) == before


def test_a_server_with_ugly_arguments_and_secrets_is_launched_as_written(
    host: Lab, tmp_path: Path
) -> None:
    """Dollars, quotes and blanks reach the process as they are; a secret reaches it and nothing else."""
    ugly = "a $HOME ${X} $$ \"q\" 'r' \\ 100%"
    script = (
        "import os, sys, http.server as h\n"
        "seen = (sys.argv[1:], os.environ['UGLY'], os.environ['MY_TOKEN'])\n"
        "open('/tmp/seen', 'w').write(repr(seen))\n"
        "h.HTTPServer(('127.0.0.1', 30001), h.SimpleHTTPRequestHandler).serve_forever()"
    )
    site = yaml.safe_load(host.site_file.read_text())
    site["servers"]["plain"] = {
        "host": "gpu1",
        "port": 30001,
        "command": ["/usr/bin/python3", "-c", script, ugly],
        "env": {"UGLY": ugly, "MY_TOKEN": {"command": ["echo", "s3cr3t-value"]}},
    }
    path = tmp_path / "ugly.yaml"
    path.write_text(yaml.safe_dump(site))

    code, document = restart(host, tmp_path, "plain", "--site", str(path))

    seen = host.on("gpu1", ["cat", "/tmp/seen"]).stdout
    assert code == 0, document["findings"]
    assert seen == repr(([ugly], ugly, "s3cr3t-value"))
    left = host.on(
        "gpu1", ["sh", "-c", "grep -rl s3cr3t-value /var/lib/opsctl /run/systemd/transient || true"]
    )
    assert left.stdout == ""
    assert "s3cr3t-value" not in json.dumps(document)


def test_a_cut_restart_in_the_container_is_resumed(host: Lab, tmp_path: Path) -> None:
    """kill -9 of opsctl as the unit starts: the unit is found by the run's id, and one server runs."""
    assert restart(host, tmp_path, "glm5")[0] == 0
    words = ["restart", "glm5", "--yes", "--no-smoke", "--state", str(tmp_path)]
    host.run(["python3", "-m", "tests.wire.cut_run", "act:launch", *words], timeout_s=120)
    run = next(row["id"] for row in opsctl(host, tmp_path, "resume")[1]["data"]["runs"])

    code, document = opsctl(host, tmp_path, "resume", run, "--yes", timeout_s=120)

    found = mains(host, "ct129", 30000)
    assert code == 0, document["findings"]
    assert len(found) == 1
    unit = host.on(
        "ct129", ["systemctl", "show", "-p", "MainPID", "--value", f"opsctl-glm5-{run}.service"]
    )
    assert int(unit.stdout) == found[0]


def test_a_lost_ssh_connection_leaves_a_run_to_resume(host: Lab, tmp_path: Path) -> None:
    """The way breaks while the server starts: cut, not failed; the server goes on, and resume proves it."""
    site = with_server(host, tmp_path, "plain", env={"LAB_FAULTS": "startup-s=8"})
    words = ["restart", "plain", "--yes", "--no-smoke", "--json"]
    words += ["--site", str(site), "--state", str(tmp_path)]
    child = host.popen([sys.executable, "-m", "opsctl", *words])
    wait_for(lambda: mains(host, "gpu1", 30001), "the new server")

    host.on("gpu1", ["pkill", "-f", "^sshd: root"])
    out, _ = child.communicate(timeout=90)

    document = read_document(out)
    assert document["outcome"] == "cut"
    assert document["exit_code"] in (30, 40)
    assert len(mains(host, "gpu1", 30001)) == 1, host.on("gpu1", ["journalctl", "-n", "20"]).stdout
    code, resumed = opsctl(
        host, tmp_path, "resume", document["run"], "--yes", "--site", str(site), timeout_s=120
    )
    assert code == 0, resumed["findings"]
    assert len(mains(host, "gpu1", 30001)) == 1
