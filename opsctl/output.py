"""The one shape of every result: a document on stdout, and findings that say what to do next."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, field
from typing import Any

from opsctl.errors import OpsctlError
from opsctl.records import dataclass

# how Python carries those bytes of a stranger's argv that are no UTF-8
_NO_TEXT = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth telling: a stable code, what it is about, one sentence, what to do next."""

    code: str
    subject: str
    text: str
    next: str = ""


@dataclass(slots=True)
class Document:
    """The result of one command, as printed by ``--json``.

    ``schema`` is ``opsctl.<command>/<version>``; ``run`` is the id of the ledger's run, where there is one.
    """

    command: str
    outcome: str
    exit_code: int = 0
    run: str | None = None
    findings: list[Finding] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    version: int = 1

    @property
    def schema(self) -> str:
        return f"opsctl.{self.command.replace(' ', '-')}/{self.version}"

    @property
    def unique_findings(self) -> list[Finding]:
        """The findings in their order, each once: several steps may come upon the same one."""
        return list(dict.fromkeys(self.findings))

    def to_json(self) -> str:
        """Return the document as one JSON object, on one or more lines, without a final newline."""
        body = {
            "schema": self.schema,
            "outcome": self.outcome,
            "exit_code": self.exit_code,
            "run": self.run,
            "findings": [asdict(finding) for finding in self.unique_findings],
            "data": self.data,
        }
        return well_formed(json.dumps(body, indent=2, ensure_ascii=False, default=str))


def well_formed(text: str) -> str:
    """Return text that every encoding of Unicode can carry: what is none of it is replaced."""
    return _NO_TEXT.sub("\ufffd", text)


def document_of_error(command: str, error: OpsctlError) -> Document:
    """Return the document that ``--json`` prints when a command ends with an error."""
    finding = Finding(error.code, error.subject or "", error.message, error.next_step or "")
    return Document(command, "error", error.exit_code, findings=[finding])
