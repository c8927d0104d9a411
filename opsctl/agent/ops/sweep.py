"""Removing what a dead server left behind, each thing only after it is found dead once more."""

from __future__ import annotations

import os

from opsctl.agent.ops import leftovers

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context


def remove(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Remove the files ``paths`` that are still leftovers of dead owners now.

    Only shared memory of the known families and our own lock files are ever removed.

    Returns:
        ``removed``: objects with ``path`` and ``size_bytes``; ``kept``: ``path`` and ``why``.
    """
    now = {item["path"]: item for item in leftovers.shared_memory() + leftovers.our_locks()}
    removed, kept = [], []
    for path in request["paths"]:
        item = now.get(path)
        why = refusal(item)
        if why is None and item is not None:
            try:
                os.unlink(path)
                removed.append({"path": path, "size_bytes": item["size_bytes"]})
                continue
            except OSError as error:
                why = error.strerror or str(error)
        kept.append({"path": path, "why": why})
    return {"removed": removed, "kept": kept}


def refusal(item: dict[str, Any] | None) -> str | None:
    """Return why a thing is kept, None when its owner is dead and nothing has it open."""
    if item is None:
        return "it is gone, or no leftover of a known kind"
    if item["owner_alive"] is None:
        return "whether it is still used is not known"
    return "its owner lives" if item["owner_alive"] else None


OPERATIONS = {"remove": remove}
