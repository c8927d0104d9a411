"""`opsctl status SERVER`: which package the server would import at its launch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from opsctl.cli import run

pytestmark = pytest.mark.wire


def test_the_package_is_looked_for_in_the_environment_of_the_launch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that finds SGLang by PYTHONPATH has it; it was called not installed once (seen on a GPU)."""
    info = tmp_path / "packages" / "sglang-0.5.12.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.12\n")
    (tmp_path / "packages" / "sglang").mkdir()
    (tmp_path / "packages" / "sglang" / "__init__.py").touch()
    env = {"PYTHONPATH": str(tmp_path / "packages"), "HF_TOKEN": {"env": "NOT_SET_ANYWHERE"}}
    server = {"host": "here", "port": 31993, "python": sys.executable, "model": "/m", "env": env}
    site = tmp_path / "opsctl.yaml"
    site.write_text(json.dumps({"hosts": {"here": {"local": True}}, "servers": {"s": server}}))

    run(["status", "s", "--json", "--site", str(site), "--state", str(tmp_path / "state")])
    package = json.loads(capsys.readouterr().out)["data"]["servers"][0]["package"]

    assert package["version"] == "0.5.12"
    assert package["location"] == str(tmp_path / "packages" / "sglang")
