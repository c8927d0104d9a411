"""``opsctl patch`` on real SGLang in the lab, whole processes, over ssh and over ssh and pct.

Beside the version that the lab runs, the wheel of the one with the most files is unpacked on the GPU host: of
a look only the files count, and they are the wheel's. Without that wheel its line is left out.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.in_lab import time_opsctl
from benchmarks.measure import Figure
from opsctl.errors import ConfigError
from opsctl.patch_trial import download
from tests.lab.fixture import Lab
from tests.lab.instance import find_instance
from tests.lab.sglang.environment import default_prefix

PATCH = "spec-disable-v2"
ROUNDS = 5
APPLIES = 3  # each imports SGLang in a fresh process, which takes 10 s
LARGE = "0.5.23"  # 5,776 files in its RECORD
LARGE_HOME = f"/opt/sglang-{LARGE}-files"


def run() -> list[Figure]:
    """Look at the package as its series asks, look at all of it, apply and revert."""
    instance = find_instance()
    record = instance.ready_record()
    if record is None or record.mode != "hosts":
        return []
    lab = Lab(instance, record)
    servers = yaml.safe_load(lab.site_file.read_text())["servers"]
    if "real" not in servers:
        return []  # no real SGLang is installed
    with tempfile.TemporaryDirectory() as folder:
        opsctl = Opsctl(lab, Path(folder), servers["real"])
        return [*figures(opsctl), *large_figures(lab, opsctl)]


class Opsctl:
    """opsctl in the lab with a site file of two servers: in container 129, and on the GPU host."""

    def __init__(self, lab: Lab, folder: Path, server: dict[str, Any]) -> None:
        self._lab = lab
        site = yaml.safe_load(lab.site_file.read_text())
        server = {**server, "patches": [PATCH]}
        bare = {**server, "host": "gpu1", "gpus": {"host": "gpu1"}}
        large = {**bare, "env": {**bare.get("env", {}), "PYTHONPATH": LARGE_HOME}}
        servers = {"inside": server, "bare": bare, "large": large}
        site = {"hosts": site["hosts"], "servers": servers}
        self._site = folder / "opsctl.yaml"
        self._site.write_text(yaml.safe_dump(site))

    def __call__(self, *words: str) -> tuple[float, Any]:
        """Run it; return the milliseconds of the whole process, and its document's data."""
        took_ms, document = time_opsctl(self._lab, "patch", *words, "--site", str(self._site))
        return took_ms, document["data"]


def figures(opsctl: Opsctl) -> list[Figure]:
    (
        opsctl("status", "inside"),
        opsctl("status", "bare"),
    )  # compiles what an installation has compiled
    made = []
    for server, way in (("bare", "ssh"), ("inside", "ssh + pct")):
        took = statistics.median(opsctl("status", server)[0] for _ in range(ROUNDS))
        made.append(Figure(f"patch status over {way}", took, None, 800))
        looks = [opsctl("status", server, "--all-files") for _ in range(ROUNDS)]
        files = looks[0][1]["packages"][0]["record"]["files"]
        took = statistics.median(ms for ms, _ in looks)
        made.append(
            Figure(f"the same, all files, over {way}", took, None, 2000, note=f"{files} files")
        )
    try:
        applied = [apply_and_revert(opsctl) for _ in range(APPLIES)]
    finally:
        opsctl("revert", "inside", "--yes")
    rest, proof = (statistics.median(column) for column in zip(*applied, strict=True))
    note = f"whole process; the fresh import itself: {proof / 1000:.1f} s"
    return [*made, Figure("patch apply + prove, less the fresh import", rest, None, 500, note=note)]


def large_figures(lab: Lab, opsctl: Opsctl) -> list[Figure]:
    """Look at every file of the largest release, unpacked on the GPU host, over ssh."""
    try:
        wheel = download("sglang", LARGE, default_prefix() / "wheels")
    except ConfigError as error:
        print(f"patch status of all files of {LARGE}: left out: {error.message}")
        return []
    lab.on("gpu1", ["/bin/rm", "-rf", LARGE_HOME], timeout_s=60)
    words = ["/usr/bin/python3", "-m", "zipfile", "-e", str(wheel), LARGE_HOME]
    done = lab.on("gpu1", words, timeout_s=120)
    if done.exit_code != 0:
        raise RuntimeError(f"unpacking {wheel.name} on gpu1: {done.stderr}")
    looks = [opsctl("status", "large", "--all-files") for _ in range(ROUNDS)]
    lab.on("gpu1", ["/bin/rm", "-rf", LARGE_HOME], timeout_s=60)
    (package,) = looks[0][1]["packages"]
    assert (package["version"], package["record"]["changed"]) == (LARGE, []), package
    took = statistics.median(ms for ms, _ in looks)
    note = f"{package['record']['files']} files of {LARGE}"
    return [Figure("patch status, all files, over ssh", took, None, 2000, note=note)]


def apply_and_revert(opsctl: Opsctl) -> tuple[float, float]:
    """Return what an apply took besides its proof, and the proof, in milliseconds."""
    took, data = opsctl("apply", "inside", "--yes")
    proof = sum(one["proof"]["seconds"] for one in data["transactions"]) * 1000
    opsctl("revert", "inside", "--yes")
    return took - proof, proof


def main() -> None:
    for figure in run():
        print(figure.line())


if __name__ == "__main__":
    main()
