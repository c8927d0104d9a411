"""The page over the ledger in headless Chromium: on a phone, with ten thousand runs, without a network."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from opsctl import ledger_tables as tables
from opsctl.cli import run
from tests.unit.report.history import BEGUN_S, make_history

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.wire,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
# The page in a frame of a screen's width: opened runs, the filter used, a link followed; then measured.
PROBE = """<!doctype html><title>probe</title>
<iframe id="page" src="runs.html" style="width:{width}px;height:700px;border:0"></iframe>
<p id="found">waiting</p><script>
const frame = document.getElementById("page");
frame.onload = () => {{
  const page = frame.contentDocument, seen = frame.contentWindow;
  const runs = [...page.querySelectorAll("details.run")];
  runs.slice(0, 20).forEach(run => run.open = true);
  const closed = runs.filter(run => !run.open).at(-1) || runs[0];
  seen.location.hash = closed.id;
  setTimeout(() => {{
    const box = page.getElementById("find");
    box.value = "glm5 failed";
    box.dispatchEvent(new Event("input"));
    const plots = [...page.querySelectorAll(".card svg")].map(svg => svg.getBoundingClientRect());
    document.getElementById("found").textContent = [
      "width", page.documentElement.scrollWidth, "runs", runs.length,
      "shown", runs.filter(run => !run.hidden).length, "followed", closed.open ? 1 : 0,
      "plots", plots.filter(plot => plot.width > 200 && plot.height > 20).length,
      "loaded", seen.performance.getEntriesByType("resource").length,
      "alerts", seen.alerted || 0,
    ].join(" ");
  }}, 300);
}};
</script>"""


def probe(folder: Path, width: int) -> dict[str, int]:
    (folder / "probe.html").write_text(PROBE.format(width=width))
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
            f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=8000", "--dump-dom",
            (folder / "probe.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )  # fmt: skip
    found = re.search(r'id="found">([^<]*)<', done.stdout)
    assert found is not None, done.stdout[-500:] + done.stderr[-500:]
    words = found.group(1).split()
    assert len(words) == 14, found.group(1)
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


@pytest.mark.parametrize("width", [390, 1100])
def test_the_page_lays_out_filters_and_follows_links(tmp_path: Path, width: int) -> None:
    """No part is wider than the screen with runs opened; nothing is loaded; no script of the ledger ran."""
    make_history(tmp_path).close()
    assert run(["history", "--html", str(tmp_path / "runs.html"), "--state", str(tmp_path)]) == 0

    seen = probe(tmp_path, width)

    assert seen["width"] <= width
    assert (seen["runs"], seen["shown"], seen["followed"]) == (5, 2, 1)
    assert (seen["plots"], seen["loaded"], seen["alerts"]) == (2, 0, 0)


def test_ten_thousand_runs_stay_usable(tmp_path: Path) -> None:
    """All rows are there, the details of the newest, and a phone's browser is done with it in its time."""
    ledger = make_history(tmp_path)
    row: dict[str, Any] = {
        "server": "glm5", "playbook": "restart", "outcome": "done", "exit_code": 0, "who": "ann@desk",
        "inputs": "{}", "document": '{"data": {"state": "%s"}}' % ("x" * 3000),
    }  # fmt: skip
    with ledger._engine.begin() as connection:
        rows = [{**row, "id": f"r{n:05}", "started_s": BEGUN_S - n} for n in range(9_995)]
        connection.execute(tables.runs.insert(), rows)
    ledger.close()
    target = tmp_path / "runs.html"

    assert run(["history", "--all", "--html", str(target), "--state", str(tmp_path)]) == 0
    seen = probe(tmp_path, 390)

    assert target.stat().st_size < 8 << 20
    assert "Steps, curves and evidence are here for 100 of them" in target.read_text()
    assert (seen["runs"], seen["shown"], seen["followed"]) == (10_000, 2, 1)
    assert seen["width"] <= 390
