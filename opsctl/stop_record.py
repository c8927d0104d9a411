"""Writing a stop down, without making anybody wait for the database to be loaded.

A stop's intent is a small file, on disk before the first signal; its outcome is a second one. Neither is
changed once it stands. Whoever opens the ledger next (`history`, `show`, `resume`, any run) takes them over;
loading the database in the stop itself would take 0.1 s of its time. An intent without an outcome was cut.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opsctl.errors import OpsctlError
from opsctl.output import Document, Finding

FOLDER = "stops"
BEGUN, ENDED = "begun.json", "ended.json"


class StopRecord:
    """The run of one stop. A disk that cannot take it is told, and does not keep a server running."""

    def __init__(self, state: Path, run: str, verb: str, server: str, who: str) -> None:
        self.run = run
        self._folder = state / FOLDER
        self._intent: dict[str, Any] = {"server": server, "verb": verb, "who": who}

    def begin(self) -> None:
        """Write the intent durably; where that fails, ``end`` tries again and tells."""
        self._intent["at_s"] = time.time()
        try:
            write(self._folder / f"{self.run}.{BEGUN}", self._intent)
        except OSError:
            pass

    def end(self, document: Document) -> None:
        """Write the outcome, and give the document the run's id."""
        document.run = self.run
        self._finish("done" if document.exit_code == 0 else "failed", document)

    def cut(self, outcome: str, exit_code: int, error: OpsctlError | None = None) -> None:
        """Write that the stop ended before its result was known, and by what."""
        document = Document(str(self._intent["verb"]), outcome, exit_code, self.run)
        if error is not None:
            step = error.next_step or ""
            document.findings.append(Finding(error.code, error.subject or "", error.message, step))
        self._finish(outcome, document)

    def _finish(self, outcome: str, document: Document) -> None:
        if "at_s" not in self._intent:
            return  # refused before it began: there is no run
        ending = {
            "ended_s": time.time(),
            "outcome": outcome,
            "exit_code": document.exit_code,
            "document": json.loads(document.to_json()),
        }
        try:
            write(self._folder / f"{self.run}.{ENDED}", {**self._intent, **ending})
        except OSError as error:
            text = f"this stop is not recorded: {self._folder}: {error.strerror}"
            step = "make room there or mend its rights, or name another folder with --state"
            document.findings.append(Finding("not-recorded", self.run, text, step))


def write(path: Path, body: Mapping[str, Any]) -> None:
    """Write a file so that it is there as a whole, also after a crash of this machine, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_suffix(".tmp")
    with open(temporary, "w") as out:
        json.dump(dict(body), out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, path)


def kept(state: Path) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """Yield what no ledger has taken over yet: file, run, and what it says; a damaged one says nothing."""
    for path in sorted((state / FOLDER).glob("*.json")):
        try:
            body = json.loads(path.read_text())
        except FileNotFoundError:
            continue  # another opsctl took it over just now
        except ValueError:
            body = {}
        known = isinstance(body, dict) and {"server", "verb", "who", "at_s"} <= body.keys()
        yield path, path.name.partition(".")[0], body if known else {}
