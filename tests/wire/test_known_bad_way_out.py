"""A server that breaks with a known-bad patch in place: every command names what goes in its stead."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.cli import run
from tests.lab import standin
from tests.wire.ground import Ground, make_ground

pytestmark = [pytest.mark.wire, pytest.mark.timeout(180)]
VERSION = "0.5.12.post1"
SAYS = f"write good in its place, which is recommended for {VERSION}, then `opsctl restart one`"


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with make_ground(tmp_path) as made:
        yield made


def make_patch(folder: Path, one: str, site: Path, **more: Any) -> None:
    """Make a patch of the stand-in's package among the site's own patches."""
    new = folder / f"new-{one}"
    shutil.copytree(site / "sglang", new)
    (new / "srt" / "__init__.py").write_text(f"PATCH = {one!r}\n")
    words = ["--version", VERSION, "--package", "sglang", "--old", str(site / "sglang")]
    into = ["--new", str(new), "--into", str(folder / "patches")]
    assert run(["patch", "new", one, *words, *into]) == 0
    file = folder / "patches" / one / "patch.yaml"
    data = {**yaml.safe_load(file.read_text()), **more}
    data["variants"][0]["proof"] = {"imports": ["sglang.srt"]}
    file.write_text(yaml.safe_dump(data, sort_keys=False))


def test_smoke_alone_names_the_patch_that_goes_in_its_stead(ground: Ground) -> None:
    """For a launch that this machine's ledger does not know, by what stands in the package."""
    site = ground.folder / "site"
    standin.install(site, VERSION)
    env = {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", "LAB_FAULTS": "crash-above=1"}
    ground.write_site(env=env, patches=["bad"], top={"patches_dir": "patches"})
    (ground.folder / "patches").mkdir()
    make_patch(
        ground.folder, "bad", site, status="known-bad", reason="it breaks", conflicts=["good"]
    )
    make_patch(ground.folder, "good", site, status="recommended")
    launch = ("launch", "one", "--yes", "--no-smoke", "--allow-known-bad")
    assert ground.json(*launch)["exit_code"] == 0

    document = ground.json("smoke", "one", state="other")

    assert document["outcome"] == "crashed"
    assert SAYS in document["data"]["diagnosis"]["next"][0]
