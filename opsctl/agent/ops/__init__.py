"""Operation modules of the agent: each is sent to the host on first use, with what it needs."""

from __future__ import annotations

# module -> the other operation modules it imports; they are sent first
MODULES: dict[str, tuple[str, ...]] = {
    "arguments": ("preflight", "procfs"),
    "adopt": ("procfs",),
    "attempts": ("launch_find",),
    "compute": (),
    "ctconf": (),
    "details": ("procfs", "sockets"),
    "doctor": ("preflight", "procfs"),
    "evidence": ("procfs",),
    "gpu": ("nvml_child", "procfs"),
    "host": ("procfs",),
    "launch": ("launch_find", "procfs"),
    "launch_find": ("procfs",),
    "launch_tidy": ("launch_find",),
    "leftovers": ("details", "lock", "procfs", "sockets"),
    "load": ("load_http", "load_level"),
    "load_http": ("load_wire",),
    "load_level": ("load_wire",),
    "load_wire": (),
    "lock": ("procfs",),
    "log_read": (),
    "nvml_child": ("procfs",),
    "package": (),
    "patch": ("patch_files", "patch_look", "patch_proof", "patch_record"),
    "patch_files": ("patch_record",),
    "patch_look": ("patch_files", "patch_proof", "patch_record", "patch_users"),
    "patch_proof": ("patch_record",),
    "patch_record": (),
    "patch_users": (),
    "preflight": ("procfs",),
    "probe": (),
    "process": ("procfs",),
    "procfs": (),
    "signalling": ("procfs",),
    "sockets": ("procfs",),
    "sweep": ("leftovers",),
    "units": (),
}

# operation -> its module, where that is not the first word of the operation's name
PROVIDERS: dict[str, str] = {
    "launch.tidy": "launch_tidy",
    "preflight.arguments": "arguments",
    "launch.find": "launch_find",
    "launch.records": "launch_find",
    "process.detail": "details",
    "process.device_holders": "details",
    "process.signal": "signalling",
    "process.signal_all": "signalling",
    "process.wait_gone": "signalling",
    "process.watch": "signalling",
}

# resources that are sent only when the module asks for them: they are large, and it may have a copy
ON_DEMAND = frozenset({"opsctl.agent.nvml", "pynvml"})

# module -> files of other packages that it gets as data (an importable module's source)
RESOURCES: dict[str, tuple[str, ...]] = {
    "nvml_child": ("opsctl.agent.nvml", "pynvml"),
    "launch": ("opsctl.agent.supervisor",),
}
