"""The documentation builds strictly, and needs no network to be read."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT

pytestmark = [
    pytest.mark.wire,
    pytest.mark.skipif(
        importlib.util.find_spec("material") is None, reason="the extra 'docs' is not installed"
    ),
]


def test_the_site_builds_without_a_warning_and_loads_nothing_from_a_network(tmp_path: Path) -> None:
    """Links and anchors are checked by the build; no page asks another host for anything."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    pages = list(tmp_path.rglob("*.html"))
    loaded = [
        f"{page.name}: {tag}"
        for page in pages
        for tag in re.findall(r"<(?:script|img|iframe|link)\b[^>]*>", page.read_text())
        if re.search(r'(?:src|href)="(?:https?:)?//', tag) and 'rel="canonical"' not in tag
    ]
    assert len(pages) > 20
    assert loaded == []
