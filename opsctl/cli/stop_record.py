"""Writing a stop down in the ledger, without making anybody wait for the database to be loaded.

The intent is a small file, written before the first signal. The ledger is opened while the server ends, and
takes the run over; loading it sooner would delay the signal by 0.15 s. An intent that is left was cut: the
next stop gives it to the ledger as it is.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsctl.errors import OpsctlError
from opsctl.output import Document, Finding

if TYPE_CHECKING:
    from opsctl.ledger import Ledger

FOLDER = "stops"


class StopRecord:
    """The run of one stop. A ledger that cannot take it is told, and does not keep a server running."""

    def __init__(self, state: Path, run: str, verb: str, server: str, who: str) -> None:
        self.run = run
        self._state = state
        self._intent: dict[str, Any] = {"server": server, "verb": verb, "who": who}
        self._ledger: Ledger | None = None
        self._findings: list[Finding] = []
        self._opening: threading.Thread | None = None

    def begin(self) -> None:
        """Write the intent durably."""
        self._intent["at_s"] = time.time()
        try:
            write_intent(self._state / FOLDER, self.run, self._intent)
        except OSError as error:
            self._miss(f"{self._state}: {error.strerror}", "make room or name another --state")

    def open(self) -> None:
        """Begin to open the ledger, unless that was begun."""
        if self._opening is not None or "at_s" not in self._intent:
            return
        self._opening = threading.Thread(target=self._open, daemon=True, name="ledger")
        self._opening.start()

    def end(self, document: Document) -> None:
        """Write the outcome, and give the document the run's id."""
        document.run = self.run
        self._finish("done" if document.exit_code == 0 else "failed", document)
        document.findings.extend(self._findings)

    def cut(self, outcome: str, exit_code: int) -> None:
        """Write that the stop ended before its result was known."""
        self._finish(outcome, Document(str(self._intent["verb"]), outcome, exit_code, self.run))

    def _finish(self, outcome: str, document: Document) -> None:
        self.open()
        if self._opening is None:
            return
        self._opening.join(30.0)
        if self._ledger is None:
            return
        try:
            self._ledger.finish(
                self.run,
                at_s=time.time(),
                outcome=outcome,
                exit_code=document.exit_code,
                signature=None,
                document=json.loads(document.to_json()),
            )
        except OpsctlError as error:
            self._miss(error.message, error.next_step or "")
        self._ledger.close()

    def _open(self) -> None:
        from opsctl.ledger import Ledger

        try:
            ledger = Ledger.open(self._state)
            for path in sorted((self._state / FOLDER).glob("*.json")):
                take_over(ledger, path)
            self._ledger = ledger
        except OpsctlError as error:
            self._miss(error.message, error.next_step or "")

    def _miss(self, why: str, step: str) -> None:
        text = f"this stop is not recorded: {why}"
        self._findings.append(Finding("not-recorded", self.run, text, step))


def write_intent(folder: Path, run: str, intent: Mapping[str, Any]) -> None:
    """Write one intent so that it survives a crash of opsctl and of this machine."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = folder / f"{run}.tmp"
    with open(temporary, "w") as out:
        json.dump(dict(intent), out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, folder / f"{run}.json")


def take_over(ledger: Ledger, path: Path) -> None:
    """Begin an intent's run in the ledger, and remove the intent; a damaged one is removed."""
    try:
        intent = json.loads(path.read_text())
        verb = intent["verb"]
        order = {"command": verb, "playbook": "stop", "given": {}, "deadline_s": None}
        ledger.begin(
            path.stem,
            server=intent["server"],
            playbook="stop",
            at_s=intent["at_s"],
            who=intent["who"],
            reason=f"opsctl {verb}",
            inputs=order,
        )
    except (ValueError, KeyError, FileNotFoundError):
        pass  # another stop took it over, or a crash of the machine cut it
    path.unlink(missing_ok=True)
