"""A stand-in for SGLang, for tests that need a server in a second instead of twenty.

It is a package named ``sglang``, standard library only, Python 3.8 and later. Put ``SITE`` on
PYTHONPATH and start it as the real one is started: ``python -m sglang.launch_server --model-path M
--port P --tp 8``. It has SGLang's process tree and titles, real lab GPU memory, the endpoints, the
log lines in order, and tokens that follow from the prompt, so every answer can be checked. What
goes wrong is ordered by ``--lab-NAME VALUE`` or LAB_FAULTS; see ``site/sglang/standin/faults.py``.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

SITE = Path(__file__).parent / "site"
VERSION = "0.5.12.post1"


def argv(port: int, *flags: str, model: Path | str = SITE, python: str | None = None) -> list[str]:
    """Return the command line that starts a stand-in."""
    start = [python or sys.executable, "-m", "sglang.launch_server"]
    return [*start, "--model-path", str(model), "--port", str(port), *flags]


def environment(faults: str = "", base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment that finds the stand-in; ``faults`` is ``NAME=VALUE,...``."""
    found = dict(os.environ if base is None else base)
    found["PYTHONPATH"] = str(SITE)
    found["PYTHONDONTWRITEBYTECODE"] = "1"
    if faults:
        found["LAB_FAULTS"] = faults
    return found


def install(site_packages: Path, version: str = VERSION) -> Path:
    """Copy the stand-in into a site-packages folder, as pip would: with METADATA and RECORD.

    Returns:
        The package's folder. A test may edit it: the copy is the test's own.
    """
    site_packages.mkdir(parents=True, exist_ok=True)
    package = site_packages / "sglang"
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(SITE / "sglang", package, ignore=ignored)
    source = package / "version.py"
    source.write_text(source.read_text().replace(VERSION, version))
    info = site_packages / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    (info / "INSTALLER").write_text("pip\n")
    rows = []
    for path in sorted([*package.rglob("*"), *info.iterdir()]):
        if path.is_file():
            digest = hashlib.sha256(path.read_bytes()).digest()
            text = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            name = path.relative_to(site_packages)
            rows.append(f"{name},sha256={text},{path.stat().st_size}")
    rows.append(f"{info.name}/RECORD,,")
    (info / "RECORD").write_text("\n".join(rows) + "\n")
    return package
