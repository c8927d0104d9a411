"""Operation modules of the agent: each is sent to the host on first use, with what it needs."""

from __future__ import annotations

# module -> the other operation modules it imports; they are sent first
MODULES: dict[str, tuple[str, ...]] = {}
