"""Which Python runs the lab: the one called if it has what the lab imports, else the checkout's .venv.

Standard library only, and the syntax of an old Python: this runs before anything else is imported.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
NEEDED = ("click", "cryptography", "pydantic", "yaml")
HANDED_OVER = "OPSCTL_LAB_HANDED_OVER"  # set for the second interpreter: there is no third


def hand_over() -> None:
    """Go on, or run the same command line with the checkout's .venv; without one exit 2 with one sentence."""
    before = os.environ.pop(HANDED_OVER, None)
    missing = [name for name in NEEDED if find_spec(name) is None]
    if not missing and sys.version_info >= (3, 11):
        return
    python = CHECKOUT / ".venv" / "bin" / "python"
    if before is None and os.access(python, os.X_OK):
        os.environ[HANDED_OVER] = "yes"
        os.execv(str(python), [str(python), "-m", "tests.lab", *sys.argv[1:]])
    lacks = f"lacks {', '.join(missing)}" if missing else "is older than 3.11"
    which = f"{sys.executable} {lacks}"
    mend = "run `make demo` first, it makes .venv with all the lab needs"
    if before is not None:
        mend = "remove .venv and run `make demo`, which makes it anew"
    print(f"lab: {which}\n  next: {mend}", file=sys.stderr)
    sys.exit(2)
