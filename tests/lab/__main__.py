"""`python -m tests.lab`: with the interpreter that has what the lab needs; `command.py` does the work."""

from __future__ import annotations

import sys

from tests.lab import interpreter

if __name__ == "__main__":
    interpreter.hand_over()
    from tests.lab.command import main

    sys.exit(main())
