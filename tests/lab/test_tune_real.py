"""`opsctl speculation tune SERVER` whole, on real SGLang in container 129."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.fixture import Lab
from tests.lab.sglang import environment
from tests.lab.sglang.launch import launch
from tests.lab.stopping import cleared, opsctl, table

pytestmark = [pytest.mark.lab, pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1500)]

VERSION = "0.5.12.post1"


@pytest.fixture(scope="session")
def built() -> None:
    """Have real SGLang; it is asked for before the lab, whose network has no route outside."""
    environment.build(environment.default_prefix(), VERSION, print)


@pytest.fixture
def place(built: None, clean_lab: Lab, tmp_path: Path) -> Iterator[tuple[Lab, Path, Path]]:
    """The lab, a site whose server is real SGLang with EAGLE-3, and a state folder."""
    site = yaml.safe_load(clean_lab.site_file.read_text())
    made: dict[str, Any] = launch(VERSION, 30000, eagle=True, hold="0:20480").as_dict()["site"]  # type: ignore[assignment]
    site["servers"]["glm5"] = {
        "host": "ct129",
        "gpus": {"host": "node1", "select": "all", "expect": 8},
        **made,
        "speculation": {"disable_above": 5},
        "smoke": {"levels": [1, 2], "requests": 2, "tokens": 8},
        "ready": {"timeout_s": 300, "stall_s": 120, "generation_s": 60},
        "stop": {"grace_s": 15},
    }
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump(site))
    with cleared(clean_lab, "ct129"):
        yield clean_lab, path, tmp_path / "state"
        clean_lab.on("ct129", ["sh", "-c", "systemctl stop 'opsctl-*'; rm -rf /var/lib/opsctl"])


def test_both_sides_are_measured_and_the_server_ends_as_its_site_says(
    place: tuple[Lab, Path, Path],
) -> None:
    """Restart without speculation, measure, restart with it, measure, propose, restart as the site says."""
    lab, site, state = place

    words = ("speculation", "tune", "glm5", "--levels", "1,2,4", "--profile", "quick", "--yes")
    code, document = opsctl(lab, state, *words, "--site", str(site), timeout_s=1200.0)

    data = document["data"]
    assert code in (0, 21), document["findings"]
    assert data["action"] in ("set", "keep-on", "switch-off", "unknown")
    assert len(data["runs"]["baseline"]) == len(data["runs"]["speculation"]) == 1
    assert [row["concurrency"] for row in data["comparison"]["levels"]] == [1, 2, 4]
    assert all(row["ratios"][1] for row in data["comparison"]["levels"])
    measured = opsctl(lab, state, "show", data["runs"]["speculation"][0])[1]
    assert "'from': 'host'" in str(measured)
    mains = [args for *_, args in table(lab, "ct129") if "-m sglang.launch_server" in args]
    assert len(mains) == 1
    assert "--speculative-algorithm" in mains[0]
    _, history = opsctl(lab, state, "history")
    playbooks = [run["playbook"] for run in history["data"]["runs"]]
    assert playbooks.count("restart") == 3
    assert playbooks.count("smoke") == 2
