"""Writing a smoke run down: in the ledger, with the log that explains it, and what is known of it."""

from __future__ import annotations

import gzip
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsctl.cli.app import App
from opsctl.cli.seen import known_before, last_passed
from opsctl.errors import OpsctlError, UsageError
from opsctl.output import Document, Finding
from opsctl.smoke.store import load_result

if TYPE_CHECKING:
    from opsctl.domain.runs import RunDetail
    from opsctl.ledger import Ledger
    from opsctl.session import ServerSession

KNOWN_ROWS = 3


def record_smoke(
    app: App,
    document: Document,
    server: str,
    started_s: float,
    log: str,
    launched_by: str | None = None,
) -> None:
    """Keep the run in the ledger and its log beside it; name earlier runs with the same signature.

    A ledger that cannot take it is told as a finding: the measurement stays valid.

    Args:
        app: the state folder.
        document: the smoke's document.
        server: name of the server, or its address.
        started_s: when it began, in seconds since the epoch.
        log: what the server's log gained; empty where it is not worth keeping.
        launched_by: the run that launched the server: its content is what was smoked.
    """
    from opsctl.cli.playbook_run import who_am_i
    from opsctl.ledger import Ledger

    assert document.run is not None
    signature = (document.data.get("diagnosis") or {}).get("signature")
    try:
        ledger = Ledger.open(app.state())
        try:
            if signature is not None:
                document.findings += known_before(ledger, signature, KNOWN_ROWS)
            ledger.begin(
                document.run,
                server=server,
                playbook="smoke",
                at_s=started_s,
                who=who_am_i(),
                reason=None,
                inputs={"profile": document.data.get("profile"), "url": document.data.get("url")},
            )
            _keep_content(ledger, document.run, launched_by)
            ledger.finish(
                document.run,
                at_s=time.time(),
                outcome=document.outcome,
                exit_code=document.exit_code,
                signature=signature,
                document=_slim(document),
            )
        finally:
            ledger.close()
        if log:
            _keep_log(app.state() / "runs" / document.run, log)
    except (OpsctlError, OSError) as error:
        document.findings.append(Finding("not-recorded", str(app.state()), str(error)))


def _keep_content(ledger: Ledger, run: str, launched_by: str | None) -> None:
    """Note what was smoked: the content of the run that launched it, where this ledger knows it."""
    launch = _launch(ledger, launched_by)
    if launch is not None:
        ledger.set_facts(run, {"content": launch.facts["content"]}, launch.run.fingerprint)


def _launch(ledger: Ledger, launched_by: str | None) -> RunDetail | None:
    """Return the run that launched what was smoked; None where its content is not known here."""
    if launched_by is None:
        return None
    try:
        launch = ledger.find(launched_by)
    except UsageError:
        return None  # launched from another machine
    return launch if launch.facts.get("content") is not None else None


def way_out_of(app: App, session: ServerSession, launched_by: str | None) -> str | None:
    """Say what to do about a known-bad patch of the server that broke; None where there is none.

    What it was launched with counts; for a launch that this ledger does not know, what stands in its package.
    """
    from opsctl.ledger import Ledger
    from opsctl.patch_advice import advice, standing_content

    try:
        ledger = Ledger.open(app.state())
        try:
            launch = _launch(ledger, launched_by)
            passed = last_passed(ledger, session.name)
        finally:
            ledger.close()
        content = launch.facts["content"] if launch is not None else standing_content(session)
        return advice(content, session.name, passed, session.hosts.site.patch_folder)
    except (OpsctlError, OSError):
        return None  # the crash is told all the same


def load_run(app: App, name: str) -> dict[str, Any]:
    """Return a smoke result by name: a smoke of its own, or the smoke inside another run of the ledger.

    Raises:
        UsageError: there is none.
    """
    try:
        return load_result(app.state(), name)
    except UsageError as error:
        if not (app.state() / "ledger.sqlite").exists():
            raise
        found = _from_ledger(app, name)
        if found is None:
            raise error from None
        return found


def _from_ledger(app: App, name: str) -> dict[str, Any] | None:
    from opsctl.ledger import Ledger

    ledger = Ledger.open(app.state())
    try:
        detail = ledger.find(name)
    except UsageError:
        return None
    finally:
        ledger.close()
    data: Mapping[str, Any] = (detail.document or {}).get("data") or {}
    for part in (data.get("smoke"), data):
        if isinstance(part, Mapping) and isinstance(part.get("levels"), list):
            return {**part, "run": detail.run.id, "label": detail.run.server}
    return None


def _slim(document: Document) -> dict[str, Any]:
    """Return the document as the ledger keeps it; the whole result is in the smoke folder."""
    import json

    body: dict[str, Any] = json.loads(document.to_json())
    body["data"].pop("evidence", None)
    return body


def _keep_log(folder: Path, log: str) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with gzip.open(folder / "server.log.gz", "wt", encoding="utf-8") as out:
        out.write(log)
