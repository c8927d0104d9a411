"""Steps by name. A step's module is imported only when a playbook uses it."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from opsctl.steps.base import Step

# name in playbooks, ledger and documents -> "module:class"
STEPS: dict[str, str] = {
    "container": "opsctl.steps.container:Container",
    "lock": "opsctl.steps.lock:Lock",
    "look": "opsctl.steps.look:Look",
    "preflight": "opsctl.steps.preflight:Preflight",
    "known-failure": "opsctl.steps.known_failure:KnownFailure",
    "stage": "opsctl.steps.swap:StagePatches",
    "ask": "opsctl.steps.ask:Ask",
    "snapshot": "opsctl.steps.snapshot:Snapshot",
    "collect": "opsctl.steps.collect:Collect",
    "stop": "opsctl.steps.stop:StopServer",
    "gpu-memory": "opsctl.steps.gpu_memory:ProveGpuMemory",
    "sweep": "opsctl.steps.sweep:Sweep",
    "container-shutdown": "opsctl.steps.container_shutdown:ShutDownContainer",
    "patch": "opsctl.steps.swap:ApplyPatches",
    "launch": "opsctl.steps.launch:Launch",
    "ready": "opsctl.steps.ready:Ready",
    "smoke": "opsctl.steps.smoke:QuickSmoke",
    "settle": "opsctl.steps.settle:Settle",
    "record": "opsctl.steps.record:Record",
}


def step_class(name: str) -> type[Any]:
    """Return the class of step ``name``, a frozen dataclass whose fields are the step's options."""
    module, attribute = STEPS[name].split(":")
    found: type[Any] = getattr(importlib.import_module(module), attribute)
    return found


def option_names(name: str) -> list[str]:
    """Return the names of the options that a playbook may give step ``name``."""
    return [field.name for field in dataclasses.fields(step_class(name)) if field.init]


def make_step(name: str, options: Mapping[str, Any]) -> Step:
    """Build step ``name`` with its options, which `playbook.load` has checked by name."""
    made: Step = step_class(name)(**options)
    return made
