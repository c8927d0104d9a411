"""Measuring whole processes of opsctl that run inside the lab."""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.measure import as_installed
from tests.lab.fixture import Lab


def time_opsctl(lab: Lab, *words: str, timeout_s: float = 120) -> tuple[float, Any]:
    """Run opsctl on the lab's control machine; return the whole process's milliseconds, and its document.

    What enters the lab is not measured: the clock runs inside.
    """
    argv = [sys.executable, "-m", "opsctl", *words, "--json"]
    inner = (
        f"import subprocess,sys,time; t=time.time(); d=subprocess.run({argv!r},capture_output=True); "
        "print((time.time()-t)*1000); sys.stdout.buffer.write(d.stdout)"
    )
    compiled = f"PYTHONPYCACHEPREFIX={as_installed()['PYTHONPYCACHEPREFIX']}"
    clean = ["env", "-u", "PYTHONDONTWRITEBYTECODE", compiled]
    done = lab.run([*clean, sys.executable, "-c", inner], timeout_s=timeout_s)
    took_ms, _, text = done.stdout.partition("\n")
    document = json.loads(text)
    assert document["exit_code"] in (0, 20), document  # 20: looked, and it is not as it should be
    return float(took_ms), document
