"""The units of the nightly smoke are ones that systemd takes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.documents import ROOT, opsctl_calls, parse

UNITS = sorted((ROOT / "docs" / "examples").glob("opsctl-smoke@.*"))
pytestmark = [pytest.mark.wire]


def verify(folder: Path, change: tuple[str, str] = ("", "")) -> subprocess.CompletedProcess[str]:
    """Let systemd read the units, with a program and a user that are here."""
    for unit in UNITS:
        text = unit.read_text().replace("/usr/local/bin/opsctl", "/bin/true")
        text = text.replace("User=opsctl", "User=root").replace(*change)
        (folder / unit.name).write_text(text)
    return subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(folder / u.name) for u in UNITS)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_the_units_are_sound(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say about them, and something about a mistake."""
    good = verify(tmp_path)
    wrong = verify(tmp_path, ("Type=oneshot", "Type=onceshot"))

    assert [line for line in good.stderr.splitlines() if "opsctl-smoke" in line] == []
    assert "onceshot" in wrong.stderr


def test_the_service_runs_a_command_line_that_opsctl_takes() -> None:
    """Its options exist; it does not ask, because nobody is there."""
    service = next(unit for unit in UNITS if unit.suffix == ".service").read_text()
    (line,) = [row for row in service.splitlines() if row.startswith("ExecStart=")]
    (words,) = opsctl_calls(line.removeprefix("ExecStart=/usr/local/bin/"))

    parse(words)

    assert "--yes" in words
