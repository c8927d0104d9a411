"""``python -m opsctl``."""

from opsctl.cli import main

main()
