"""Operation modules of the agent: each is sent to the host on first use, with what it needs."""

from __future__ import annotations

# module -> the other operation modules it imports; they are sent first
MODULES: dict[str, tuple[str, ...]] = {
    "attempts": ("launch",),
    "host": ("procfs",),
    "patch": ("patch_files", "patch_proof"),
    "patch_files": (),
    "patch_proof": ("patch_files",),
    "launch": ("procfs",),
    "log_read": (),
    "procfs": (),
    "process": ("procfs",),
}

# operation -> its module, where that is not the first word of the operation's name
PROVIDERS: dict[str, str] = {}

# module -> files of other packages that it gets as data (an importable module's source)
RESOURCES: dict[str, tuple[str, ...]] = {"launch": ("opsctl.agent.supervisor",)}
