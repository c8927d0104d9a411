"""Bringing a crashed server back between two levels of a bisection."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from opsctl.domain.report import Outcome
from opsctl.errors import CheckFailed, OpsctlError
from opsctl.records import dataclass
from opsctl.sglang.endpoint import Endpoint
from opsctl.sglang.info import read_info
from opsctl.smoke.bracket import Bisection, Restart, bisect
from opsctl.smoke.run import Options, SmokeReport

COMMAND_S = 1800.0
READY_S = 1800.0
POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class CommandRestart:
    """Restarts by a command of the user's, and waits until the server says who it is again."""

    argv: Sequence[str]
    endpoint: Endpoint
    api: str | None
    say: Callable[[str], None]

    def __call__(self, reason: str) -> None:
        self.say(f"restarting the server ({reason})")
        try:
            done = subprocess.run(
                list(self.argv), stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CheckFailed(f"the restart command could not be run: {error}") from error
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            tail = f": {words[0]}" if words else ""
            raise CheckFailed(f"the restart command ended with {done.returncode}{tail}")
        wait_until_answers(self.endpoint, self.api)


def wait_until_answers(endpoint: Endpoint, api: str | None, limit_s: float = READY_S) -> None:
    """Wait until the server can be asked again; the next level's warm-up proves that it generates.

    Raises:
        CheckFailed: it did not come back in time.
    """
    until = time.monotonic() + limit_s
    while True:
        try:
            asyncio.run(read_info(endpoint, api, None))
            return
        except OpsctlError as error:
            if time.monotonic() > until:
                raise CheckFailed(
                    f"the server did not come back within {limit_s:.0f} s: {error.message}"
                ) from error
        time.sleep(POLL_S)


def bisect_report(
    report: SmokeReport,
    run_again: Callable[[Options], SmokeReport],
    restart: Restart,
) -> Bisection | None:
    """Search the exact first bad concurrency of a report's bracket; None without a bracket.

    Args:
        report: the run that found the bracket; its answers are the reference.
        run_again: runs other options on the same server.
        restart: brings the server back.
    """
    bracket = report.bracket
    if bracket is None or bracket["first_bad"] is None:
        return None
    outcome = next(level.outcome for level in report.levels if level.outcome.is_bad)
    interrupted = False

    def try_level(level: int) -> tuple[Outcome, str]:
        nonlocal interrupted
        options = replace(
            report.options,
            levels=(level,),
            down=False,
            mixed=False,
            allow_live=True,  # nobody but us uses it: we looked before, and have just restarted it
            reference=report.answers or None,
        )
        again = run_again(options)
        interrupted = again.interrupted
        if not again.levels:
            return Outcome.NOT_MEASURED, "interrupted"
        return again.levels[-1].outcome, again.levels[-1].reason

    return bisect(
        bracket["last_good"],
        bracket["first_bad"],
        outcome,
        try_level,
        restart,
        stopped=lambda: interrupted,
    )
