"""`opsctl smoke SERVER` across the lab: into a container through its node, to a machine over SSH."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.fixture import Lab
from tests.schemas import read_document

pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]
PYTHON = "/opt/sglang/bin/python"
MODEL = "/models/GLM-5-NVFP4"
EAGLE = {"tp": 2, "speculative-algorithm": "EAGLE3", "speculative-num-draft-tokens": 16}


class Deployed:
    """Two servers of one site file: ``inside`` container 129, ``outside`` on gpu1."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.site = folder / "smoke.yaml"
        self.state = folder / "state"
        body = {
            "hosts": yaml.safe_load(lab.site_file.read_text())["hosts"],
            "servers": {
                "inside": {
                    "host": "ct129",
                    "gpus": {"host": "pve1"},
                    "port": 31000,
                    "python": PYTHON,
                    "model": MODEL,
                    "args": EAGLE,
                    "env": {"LAB_FAULTS": "crash-above=5"},
                    "smoke": {"levels": [1, 2, 5, 10]},
                },
                "outside": {
                    "host": "gpu1",
                    "port": 31001,
                    "python": PYTHON,
                    "model": MODEL,
                    "args": {"tp": 2},
                    "smoke": {"levels": [1, 2, 5, 10]},
                },
            },
        }
        self.site.write_text(yaml.safe_dump(body))

    def json(self, *words: str, timeout_s: float = 120) -> dict[str, Any]:
        rest = ["--json", "--site", str(self.site), "--state", str(self.state)]
        done = self.lab.opsctl([*words, *rest], timeout_s=timeout_s)
        assert done.stdout.startswith("{"), done.stdout + done.stderr
        document: dict[str, Any] = read_document(done.stdout)
        return document


@pytest.fixture
def deployed(clean_lab: Lab, tmp_path: Path) -> Iterator[Deployed]:
    made = Deployed(clean_lab, tmp_path)
    yield made
    for name in ("inside", "outside"):
        made.json("kill", name, "--yes")


def test_incident_in_a_container_is_bracketed_bisected_and_explained(deployed: Deployed) -> None:
    """Nothing but the node's SSH is reached: port, processes and log are all seen through it."""
    launched = deployed.json("launch", "inside", "--yes", "--no-smoke")
    assert launched["exit_code"] == 0, launched["findings"]

    document = deployed.json("smoke", "inside", "--bisect", "--yes", timeout_s=360)

    data = document["data"]
    assert document["exit_code"] == 60
    assert [level["outcome"] for level in data["levels"]] == ["passed"] * 3 + ["crashed"]
    assert data["bracket"] == {"last_good": 5, "first_bad": 6}
    assert data["bisection"]["deterministic"] is True
    assert (data["diagnosis"]["sizes"]["a"], data["diagnosis"]["sizes"]["b"]) == (160, 10)
    first = data["evidence"]["exits"][0]
    assert "sglang::" in first["name"]
    assert 0 <= data["levels"][-1]["sign"]["monotonic_s"] - first["monotonic_s"] < 0.25
    assert data["evidence"]["gpu"]["state"] == "ok"
    assert len(data["evidence"]["gpu"]["gpus"]) == 8


def test_healthy_server_of_another_machine_passes_over_ssh(deployed: Deployed) -> None:
    """Ten streams share one SSH channel and keep their times; the server is left running."""
    assert deployed.json("launch", "outside", "--yes", "--no-smoke")["exit_code"] == 0

    document = deployed.json("smoke", "outside")

    levels = document["data"]["levels"]
    assert document["exit_code"] == 0, document["findings"]
    assert levels[-1]["in_flight"]["peak"] == 10
    assert levels[-1]["ttft_ms"]["p50"] < 200
    assert levels[-1]["answers"]["wrong"] == 0


@pytest.mark.slow  # two launches; `make test` has it on this machine
def test_load_from_the_server_s_own_host_over_ssh_and_inside_a_container(
    deployed: Deployed,
) -> None:
    """`--from host`: no tunnel in its times, the same verdict and diagnosis, nothing left there."""
    for name in ("outside", "inside"):
        assert deployed.json("launch", name, "--yes", "--no-smoke")["exit_code"] == 0

    healthy = deployed.json("smoke", "outside", "--from", "host")
    crashed = deployed.json("smoke", "inside", "--from", "host")

    assert healthy["exit_code"] == 0, healthy["findings"]
    assert healthy["data"]["load"]["from"] == "host"
    assert healthy["data"]["levels"][-1]["in_flight"]["peak"] == 10
    assert crashed["exit_code"] == 60
    assert crashed["data"]["bracket"] == {"last_good": 5, "first_bad": 10}
    assert crashed["data"]["diagnosis"]["sizes"]["a"] == 160
    for host in ("gpu1", "ct129"):
        assert "opsctl-agent" not in deployed.lab.on(host, ["ps", "-eo", "args"]).stdout
