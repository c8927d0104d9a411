"""Writing a stop down in the ledger: opened while the agents start, so that nobody waits for it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsctl.errors import OpsctlError
from opsctl.output import Document, Finding

if TYPE_CHECKING:
    from opsctl.ledger import Ledger


class StopRecord:
    """The run of one stop. A ledger that cannot take it is told, and does not keep a server running."""

    def __init__(self, state: Path, run: str, verb: str, server: str, who: str) -> None:
        self.run = run
        self.findings: list[Finding] = []
        self._verb, self._server, self._who = verb, server, who
        self._state = state
        self._ledger: Ledger | None = None
        self._begun = False
        self._opening = threading.Thread(target=self._open, daemon=True, name="ledger")
        self._opening.start()

    def begin(self) -> None:
        """Write the intent, before the first signal."""
        self._opening.join(30.0)
        order: dict[str, Any] = {"command": self._verb, "playbook": "stop", "given": {}}
        order["deadline_s"] = None
        with self._told():
            if self._ledger is not None:
                self._ledger.begin(
                    self.run,
                    server=self._server,
                    playbook="stop",
                    at_s=time.time(),
                    who=self._who,
                    reason=f"opsctl {self._verb}",
                    inputs=order,
                )
                self._begun = True

    def end(self, document: Document) -> None:
        """Write the outcome, and give the document the run's id."""
        outcome = "done" if document.exit_code == 0 else "failed"
        if self._begun:
            document.run = self.run
        self._finish(outcome, document)
        document.findings.extend(self.findings)

    def cut(self, outcome: str, exit_code: int) -> None:
        """Write that the stop ended before its result was known."""
        self._finish(outcome, Document(self._verb, outcome, exit_code, self.run))

    def _finish(self, outcome: str, document: Document) -> None:
        if self._ledger is None or not self._begun:
            return
        with self._told():
            self._ledger.finish(
                self.run,
                at_s=time.time(),
                outcome=outcome,
                exit_code=document.exit_code,
                signature=None,
                document=json.loads(document.to_json()),
            )
        self._ledger.close()

    def _open(self) -> None:
        from opsctl.ledger import Ledger

        with self._told():
            self._ledger = Ledger.open(self._state)

    def _told(self) -> _Told:
        return _Told(self)


class _Told:
    """Turns an error of the ledger into a finding."""

    def __init__(self, record: StopRecord) -> None:
        self._record = record

    def __enter__(self) -> None:
        """Begin to listen for errors."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, OpsctlError):
            return False
        text = f"this stop is not recorded: {error.message}"
        self._record.findings.append(
            Finding("not-recorded", self._record.run, text, error.next_step or "")
        )
        return True
