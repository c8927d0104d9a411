"""Drive opsctl on a machine with a GPU: ``python -m tests.gpu.run STEP...``; see README.md.

Every step runs opsctl as a user would (a child process, a site file of its own) and keeps its
JSON, its text and the server's log under --out. A step that fails is reported, and the next one runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tarfile
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.gpu import compare, pair, site, steps
from tests.gpu.session import Run

STEPS: dict[str, Callable[..., None]] = {
    "setup": site.setup,
    "facts": steps.facts,
    "measure": steps.measure,
    "side": compare.side,
    "behave": compare.behave,
    "probe": steps.probe,
    "neighbour": steps.neighbour,
    "health": steps.health,
    "keep": site.keep,
    "incident": steps.incident,
    "updown": steps.updown,
    "killed": steps.killed,
    "over": pair.over,
    "pair": pair.pair,
    "neighbours": pair.neighbours,
}


def main() -> int:
    """Run the named steps; ``NAME:ARG:ARG`` passes arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="+", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--root", type=Path, default=Path("/tmp/opsctl-gpu"))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "gpu-out")))
    parser.add_argument("--limit", type=float, default=560, help="seconds for all steps")
    options = parser.parse_args()
    if shutil.which("nvidia-smi") is None:
        print("skipped: there is no nvidia-smi, so no GPU to run on")
        return 0
    options.root.mkdir(parents=True, exist_ok=True)
    run = Run(options.root, options.root / "out", options.limit)
    for step in options.steps:
        name, *arguments = step.split(":")
        run.say(f"== {step}")
        try:
            STEPS[name](run, *arguments)
        except Exception:  # noqa: BLE001 - the next step is worth its device time
            run.failed.append(step)
            traceback.print_exc(limit=4)
    options.out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(options.out / "results.tar.gz", "w:gz") as archive:
        archive.add(run.out, "results")
        if (run.root / "logs").is_dir():
            archive.add(run.root / "logs", "logs")
    run.say(f"failed: {', '.join(run.failed) or 'nothing'}")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
