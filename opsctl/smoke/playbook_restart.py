"""Restarting a server of the site between two levels of a bisection, by the restart playbook."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from opsctl.errors import CheckFailed
from opsctl.records import dataclass

RESTART_S = 3600.0


@dataclass(frozen=True, slots=True)
class PlaybookRestart:
    """Runs `opsctl restart` as a run of its own: with its lock, its ledger entry and its proofs."""

    server: str
    site: Path | None
    state: Path | None
    say: Callable[[str], None]

    def __call__(self, reason: str) -> None:
        self.say(f"restarting {self.server} ({reason})")
        argv = [sys.executable, "-m", "opsctl", "restart", self.server, "--yes", "--json"]
        # to bring the crash back is what was agreed to; a known-bad patch in place is part of it
        argv += ["--no-smoke", "--again", reason, "--allow-known-bad"]
        if self.site is not None:
            argv += ["--site", str(self.site)]
        if self.state is not None:
            argv += ["--state", str(self.state)]
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=RESTART_S
            )
        except subprocess.TimeoutExpired as error:
            raise CheckFailed(f"the restart took longer than {RESTART_S:.0f} s") from error
        if done.returncode == 0:
            return
        try:
            findings = json.loads(done.stdout)["findings"]
        except (ValueError, KeyError, TypeError):
            findings = []
        words = findings[0]["text"] if findings else f"exit {done.returncode}"
        raise CheckFailed(f"the server could not be brought back: {words}")
