"""`speculation.disable_above` from the site file to the running server, on the stand-in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import standin
from tests.wire.ground import Ground, make_ground

pytestmark = [pytest.mark.wire, pytest.mark.timeout(180)]
EAGLE = {
    "tp": 2,
    "disable-cuda-graph": True,
    "speculative-algorithm": "EAGLE3",
    "speculative-num-steps": 7,
}


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with make_ground(tmp_path) as made:
        yield made


def play(ground: Ground, version: str, **changes: Any) -> None:
    """Write a site whose server is the stand-in as this version."""
    site = ground.folder / version
    if not site.exists():
        shutil.copytree(standin.SITE, site)
        (site / "sglang" / "version.py").write_text(f'__version__ = "{version}"\n')
        info = site / f"sglang-{version}.dist-info"
        info.mkdir()
        about = f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n"
        (info / "METADATA").write_text(about)
    env = {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", **changes.pop("env", {})}
    asked = {"args": EAGLE, "speculation": {"disable_above": 5}, **changes}
    ground.write_site(env=env, **asked)


def argv_of(ground: Ground) -> list[str]:
    (main,) = ground.mains()
    return Path(f"/proc/{main}/cmdline").read_bytes().decode().split("\0")


def test_from_0_5_14_the_adaptive_file_is_made_and_placed(ground: Ground) -> None:
    """The launched server's own argument names a file that turns drafting off above five requests."""
    play(ground, "0.5.15")

    explained = ground.json("speculation", "explain", "one")
    done = ground.json("restart", "one", "--yes", "--no-smoke")

    assert explained["outcome"] == "flag"
    assert done["outcome"] == "done", done["findings"]
    argv = argv_of(ground)
    assert "--speculative-adaptive" in argv
    placed = Path(argv[argv.index("--speculative-adaptive-config") + 1])
    wanted = {"1": {"candidate_steps": [7]}, "6": {"candidate_steps": [0]}}
    assert json.loads(placed.read_text()) == wanted
    assert json.loads(explained["data"]["config"]) == wanted


@pytest.mark.parametrize(
    ("version", "more", "says"),
    [
        ("0.5.15", {"args": {**EAGLE, "speculative-eagle-topk": 4}}, "topk"),
        ("0.5.15", {"args": {**EAGLE, "enable-dp-attention": True}}, "DP attention"),
        ("0.5.15", {"args": {**EAGLE, "enable-multi-layer-eagle": True}}, "multi-layer"),
        ("0.5.15", {"args": {**EAGLE, "speculative-adaptive": True}}, "on already"),
        ("0.5.13", {}, "was not made for that version"),
        ("0.5.12.post1", {"env": {"SGLANG_ENABLE_SPEC_V2": "false"}}, "the old worker"),
    ],
)
def test_what_nothing_can_turn_off_is_refused_before_the_stop(
    ground: Ground, version: str, more: dict[str, Any], says: str
) -> None:
    """Both `explain` and a restart's preflight say why, and the way out; nothing is launched."""
    play(ground, version, **more)

    explained = ground.json("speculation", "explain", "one")
    refused = ground.json("restart", "one", "--yes", "--no-smoke")

    assert explained["exit_code"] == 50
    assert refused["exit_code"] != 0
    for document in (explained, refused):
        (found,) = [one for one in document["findings"] if one["code"] == "speculation-refused"]
        assert says in found["text"]
        assert found["next"]
    assert ground.mains() == []


def test_a_patch_of_the_other_worker_is_refused_before_the_stop(ground: Ground) -> None:
    """The incident's patch in a server that runs the overlap worker: a pass would say nothing (case 118)."""
    args = {**EAGLE, "speculative-disable-batch-threshold": 5}
    play(ground, "0.5.12.post1", args=args, patches=["spec-disable-v1"], speculation=None)

    refused = ground.json("restart", "one", "--yes", "--no-smoke", "--allow-known-bad")

    assert refused["exit_code"] != 0
    (found,) = [one for one in refused["findings"] if one["code"] == "patch-not-in-play"]
    assert "0.5.12.post1 runs the overlap worker" in found["text"]
    assert ground.mains() == []
