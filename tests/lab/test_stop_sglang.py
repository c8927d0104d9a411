"""Stops of real SGLang in container 129, over ssh: the tree it really has, and the time the proof takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.lab import gpus
from tests.lab.fixture import Lab
from tests.lab.sglang import environment, in_lab
from tests.lab.sglang.launch import Launch
from tests.lab.sglang.test_in_lab import serving
from tests.lab.stopping import opsctl, table

pytestmark = [
    pytest.mark.lab,
    pytest.mark.sglang,
    pytest.mark.timeout(500),
    pytest.mark.skipif(
        not environment.is_built(environment.default_prefix(), environment.VERSIONS[0]),
        reason="real SGLang is not built: python -m tests.lab.sglang build",
    ),
]
VERSION = environment.VERSIONS[0]
PORT = 30100
HELD_MIB = 88000


def site_of(lab: Lab, start: Launch, folder: Path) -> Path:
    """Write the lab's site file with this server in place of the stand-in."""
    site = yaml.safe_load(lab.site_file.read_text())
    entry = site["servers"]["glm5"]
    entry.update(port=PORT, python=start.python, model=start.model, args={})
    site["servers"] = {"glm5": entry}
    path = folder / "opsctl.yaml"
    path.write_text(yaml.safe_dump(site))
    return path


@pytest.mark.parametrize("verb", ["stop", "kill"])
def test_real_sglang_is_stopped_whole_and_its_memory_proven(
    clean_lab: Lab, tmp_path: Path, verb: str
) -> None:
    """Root, resource tracker, scheduler, detokenizer, compile workers: all by name, eight GPUs free."""
    hold = ",".join(f"{gpu}:{HELD_MIB}" for gpu in range(gpus.COUNT))
    start = in_lab.launch_on(clean_lab, "ct129", VERSION, PORT, hold=hold)
    site = site_of(clean_lab, start, tmp_path)
    with serving(clean_lab, "ct129", start) as pid:
        code, done = opsctl(
            clean_lab, tmp_path, verb, "glm5", "--yes", "--site", str(site), timeout_s=120
        )

        rows = {row["ns_pid"]: row for row in done["data"]["processes"]}
        seconds = done["data"]["seconds"]
        beyond = seconds["total"] - seconds["ending"]
        print(
            f"\n{verb}: {len(rows)} processes, {seconds['ending']:.2f} s from the first signal to the "
            f"last exit, {beyond:.2f} s more in all, proof {seconds['proven_after_last_exit']} s after"
        )
        assert (code, done["outcome"]) == (0, "stopped"), done["findings"]
        assert pid in rows
        assert any("sglang::scheduler" in " ".join(row["argv"]) for row in rows.values())
        assert [card["state"] for card in done["data"]["gpus"]] == ["free"] * gpus.COUNT
        assert all(card["before_bytes"] == HELD_MIB << 20 for card in done["data"]["gpus"])
        left = [row for row in table(clean_lab, "ct129") if "sglang" in row[4]]
        assert [row for row in left if not row[3].startswith("Z")] == []
