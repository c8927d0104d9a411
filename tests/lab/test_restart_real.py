"""Restarts of real SGLang in container 129: of none, healthy, crashed, hung, half-started; and cut ones."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.fixture import Lab
from tests.lab.sglang import environment
from tests.lab.sglang.launch import launch
from tests.lab.stopping import cleared, opsctl, table, wait_for

pytestmark = [pytest.mark.lab, pytest.mark.sglang, pytest.mark.timeout(1500)]

VERSION = "0.5.12.post1"
PORT = 30000
RESTART_S = 400.0


@pytest.fixture(scope="session")
def built() -> None:
    """Have real SGLang; it is asked for before the lab, whose network has no route outside."""
    environment.build(environment.default_prefix(), VERSION, print)


@pytest.fixture
def place(built: None, clean_lab: Lab, tmp_path: Path) -> Iterator[tuple[Lab, Path, Path]]:
    """The lab, a site whose server is real SGLang holding 20 GiB of a lab GPU, and a state folder."""
    site = yaml.safe_load(clean_lab.site_file.read_text())
    made: dict[str, Any] = launch(VERSION, PORT, hold="0:20480").as_dict()["site"]  # type: ignore[assignment]
    site["servers"]["glm5"] = {
        "host": "ct129",
        "gpus": {"host": "node1", "select": "all", "expect": 8},
        **made,
        "smoke": {"levels": [1, 2], "requests": 2, "tokens": 8},
        "ready": {"timeout_s": 300, "stall_s": 120, "generation_s": 60},
        "stop": {"grace_s": 15},
    }
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump(site))
    with cleared(clean_lab, "ct129"):
        yield clean_lab, path, tmp_path / "state"
        clean_lab.on("ct129", ["sh", "-c", "systemctl stop 'opsctl-*'; rm -rf /var/lib/opsctl"])


def mains(lab: Lab) -> list[int]:
    return [
        pid
        for pid, _, _, state, args in table(lab, "ct129")
        if "-m sglang.launch_server" in args and not state.startswith("Z")
    ]


def schedulers(lab: Lab) -> list[int]:
    return [
        pid for pid, _, _, _, args in table(lab, "ct129") if args.startswith("sglang::scheduler")
    ]


def restarted(place: tuple[Lab, Path, Path], *words: str, state: str = "") -> Any:
    lab, site, folder = place
    chosen = Path(str(folder) + state)
    words = ("restart", "glm5", "--yes", "--site", str(site), *words)
    code, document = opsctl(lab, chosen, *words, timeout_s=RESTART_S)
    assert code == 0, document["findings"]
    assert len(mains(lab)) == 1
    assert [card["state"] for card in document["data"]["gpu verify"]["gpus"]] == ["free"] * 8
    return document


def signal_in_container(lab: Lab, pid: int, number: int) -> None:
    os.kill(lab.outer_pid("ct129", pid), number)


@pytest.mark.slow  # five real starts in two modes; `make test` has them on the stand-in
def test_restart_of_none_healthy_crashed_hung_and_half_started(
    place: tuple[Lab, Path, Path],
) -> None:
    """Each time: stopped by proof, eight GPUs proven free, launched, answered, smoked, recorded."""
    lab, site, folder = place
    restarted(place)
    healthy = restarted(place)
    assert healthy["data"]["downtime"] is not None
    print("downtime", healthy["data"]["downtime"])

    signal_in_container(lab, mains(lab)[0], signal.SIGKILL)
    wait_for(lambda: not mains(lab), "the main process is gone")
    restarted(place, "--no-smoke")

    for pid in schedulers(lab):
        signal_in_container(lab, pid, signal.SIGSTOP)
    restarted(place, "--no-smoke")

    words = ["restart", "glm5", "--yes", "--no-smoke", "--site", str(site), "--state", str(folder)]
    lab.run(["python3", "-m", "tests.wire.cut_run", "begin:ready", *words], timeout_s=RESTART_S)
    assert len(mains(lab)) == 1
    restarted(place, "--no-smoke", state="-other")

    lines = lab.on("ct129", ["cat", "/var/lib/opsctl/attempts.jsonl"]).stdout.splitlines()
    assert len([line for line in lines if '"outcome":"passed"' in line]) == 5


@pytest.mark.slow
def test_real_sglang_is_resumed_at_four_boundaries(place: tuple[Lab, Path, Path]) -> None:
    """kill -9 before the stop, before the launch, after the launch, after ready: one server in the end."""
    lab, site, folder = place
    words = ["restart", "glm5", "--yes", "--no-smoke", "--site", str(site), "--state", str(folder)]
    for point in ("begin:stop", "begin:launch", "act:launch", "act:ready"):
        lab.run(["python3", "-m", "tests.wire.cut_run", point, *words], timeout_s=RESTART_S)
        run = opsctl(lab, folder, "resume")[1]["data"]["runs"][0]["id"]

        resume = ("resume", run, "--yes", "--site", str(site))
        code, document = opsctl(lab, folder, *resume, timeout_s=RESTART_S)

        assert code == 0, (point, document["findings"])
        assert len(mains(lab)) == 1, point
        unit = f"opsctl-glm5-{run}.service"
        shown = lab.on("ct129", ["systemctl", "show", "-p", "MainPID", "--value", unit])
        assert int(shown.stdout) == mains(lab)[0], point
