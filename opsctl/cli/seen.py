"""What the ledger knows of a signature: the runs that ended with it, their patches, and what passed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsctl.errors import OpsctlError
from opsctl.output import Finding

if TYPE_CHECKING:
    from opsctl.cli.app import App
    from opsctl.domain.runs import RunDetail
    from opsctl.ledger import Ledger

PROVING = frozenset({"restart", "launch", "smoke"})
LOOK_BACK = 200


def seen_before(ledger: Ledger, signature: str, limit: int) -> list[dict[str, Any]]:
    """Return the runs that ended with this signature, newest first.

    Each has its patches (id to a short hash; None where they are not known), and ``passed``: the last
    run of the same server that passed, with its patches.
    """
    found = []
    for row in ledger.runs(signature=signature, limit=limit):
        found.append(
            _told(ledger.find(row.id)) | {"passed": last_passed(ledger, row.server)},
        )
    return found


def last_passed(ledger: Ledger, server: str) -> dict[str, Any] | None:
    """Return the newest run that proved this server to work."""
    for row in ledger.runs(server=server, limit=LOOK_BACK):
        if row.exit_code == 0 and row.playbook in PROVING and row.outcome != "planned":
            return _told(ledger.find(row.id))
    return None


def own_patches(app: App) -> Path | None:
    """Return the folder of the site's own patches; None without one, or without a site that can be read."""
    from opsctl.site_cache import load_site

    try:
        return load_site(app.site_path).patch_folder
    except OpsctlError:
        return None


def _told(detail: RunDetail) -> dict[str, Any]:
    content = detail.facts.get("content")
    patches = None
    if isinstance(content, dict):
        patches = {name: str(digest)[:8] for name, digest in (content.get("patches") or {}).items()}
    return {
        "run": detail.run.id,
        "server": detail.run.server,
        "playbook": detail.run.playbook,
        "started_s": detail.run.started_s,
        "patches": patches,
    }


def patch_words(patches: dict[str, str] | None) -> str:
    """Return patches as words: each with its hash."""
    if patches is None:
        return "patches not known"
    if not patches:
        return "no patches"
    return "patches " + ", ".join(f"{name} {digest}" for name, digest in sorted(patches.items()))


def run_words(one: dict[str, Any]) -> str:
    """Return one run with when and what it was."""
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(one["started_s"]))
    return (
        f"{one['run']} ({one['server']}, {one['playbook']}, {when}, {patch_words(one['patches'])})"
    )


def passed_words(seen: Iterable[dict[str, Any]]) -> list[str]:
    """Return the last run that passed of each server that these runs are of."""
    told = {one["server"]: one["passed"] for one in reversed(list(seen))}
    return [
        f"{server} last passed without it: {run_words(passed)}"
        if passed is not None
        else f"no run of {server} passed yet"
        for server, passed in told.items()
    ]


def known_before(ledger: Ledger, signature: str, limit: int) -> list[Finding]:
    """Return the earlier runs that ended with this signature, as one finding; none without any."""
    seen = seen_before(ledger, signature, limit)
    if not seen:
        return []
    runs = ", ".join(run_words(one) for one in seen)
    text = "; ".join([f"this crash was seen before: {runs}", *passed_words(seen)])
    return [Finding("signature-known", signature, text, f"opsctl show {seen[0]['run']}")]
