"""What to say of a server that broke with a known-bad patch: the one text of restart, smoke and diagnose."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsctl.errors import OpsctlError

if TYPE_CHECKING:
    from opsctl.session import ServerSession


def advice(
    content: Mapping[str, Any],
    server: str | None,
    passed: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> str | None:
    """Say what goes in the stead of a known-bad patch of a launch; None where it has none.

    Args:
        content: what the launch consisted of: ``patches`` by id, ``package_version``.
        server: its name in the site.
        passed: the last run of this server that passed: ``run``, ``patches``; named if it had no bad one.
        folder: the site's own patches, beside those that ship.
    """
    from opsctl.domain.patch_way_out import known_bad, way_out
    from opsctl.patch_library import load_library

    standing = content.get("patches") or {}
    if not standing:
        return None
    library = load_library(folder)
    run = None
    if passed is not None and passed.get("patches") is not None:
        had = passed["patches"]
        was_bad = any(bad.id in had for bad in known_bad(library, standing))
        run = None if was_bad else passed.get("run")
    return way_out(library, list(standing), content.get("package_version"), server, run)


def standing_content(session: ServerSession) -> dict[str, Any]:
    """Return which patches stand in a server's package now, and its version; empty where nobody can tell."""
    from opsctl.patch_library import load_library
    from opsctl.steps.patch import look, target_of

    try:
        library = load_library(session.hosts.site.patch_folder)
        target = target_of(session.server, session.name)
        seen = look(session.agent, target, library, recover=False)
    except OpsctlError:
        return {}
    return {"patches": dict.fromkeys(seen.applied, ""), "package_version": seen.version}
