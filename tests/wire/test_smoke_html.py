"""The HTML report in headless Chromium: it lays out on a phone, and asks the network for nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from opsctl.smoke.html import html_report
from tests.unit.smoke.test_reports import stored

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.wire,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
# A frame of a phone's width, and what the page takes in it.
PROBE = """<!doctype html><title>probe</title>
<iframe id="page" src="report.html" style="width:{width}px;height:700px;border:0"></iframe>
<p id="found">waiting</p><script>
const frame = document.getElementById("page");
frame.onload = () => {{
  const page = frame.contentDocument;
  const plots = [...page.querySelectorAll(".plots svg")].map(svg => svg.getBoundingClientRect());
  const loaded = frame.contentWindow.performance.getEntriesByType("resource").length;
  document.getElementById("found").textContent = [
    "width", page.documentElement.scrollWidth, "plots", plots.length,
    "empty", plots.filter(box => box.width < 200 || box.height < 20).length, "loaded", loaded,
  ].join(" ");
}};
</script>"""


@pytest.mark.parametrize("width", [390, 1100])
def test_report_lays_out_without_scrolling_sideways(tmp_path: Path, width: int) -> None:
    """No part is wider than the screen, every plot is drawn, nothing else is loaded."""
    runs = [stored() | {"label": "eagle"}, stored("failed") | {"label": "baseline"}]
    (tmp_path / "report.html").write_text(html_report(runs, ["eagle loses above C=5"]))
    (tmp_path / "probe.html").write_text(PROBE.format(width=width))
    assert CHROMIUM is not None

    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--allow-file-access-from-files",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=8000",
            "--dump-dom",
            (tmp_path / "probe.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    found = re.search(r"width (\d+) plots (\d+) empty (\d+) loaded (\d+)", done.stdout)
    assert found is not None, done.stdout[-500:] + done.stderr[-500:]
    page_width, plots, empty, loaded = map(int, found.groups())
    assert page_width <= width
    assert (plots, empty) == (2, 0)  # these runs measured no time per token
    assert loaded == 0
