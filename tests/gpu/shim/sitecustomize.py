"""Fill ``--load-format dummy`` models with the lab's weights (OPSCTL_LAB_WEIGHTS=known or attentive).

With OPSCTL_GPU_NO_CATCH_UP=1 spec-disable-v2 brings only the last position of the draft's cache up to date:
the control of the measurement that asks what the catch-up is worth.
Python imports this at its start when this folder is on PYTHONPATH. Nothing of SGLang is changed on disk.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

LOADER = "sglang.srt.model_loader.loader"
WEIGHTS = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "lab", "sglang", "shim", "weights.py"
)


SPEC_DISABLE = "sglang.srt.speculative.opsctl_spec_disable"


class Hook(importlib.abc.MetaPathFinder):
    """Lets a function run right after a module of SGLang."""

    def __init__(self, name, after):
        self.name = name
        self.after = after

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            self.after(module)

        spec.loader.exec_module = exec_module
        return spec


def fill(module):
    found = importlib.util.spec_from_file_location("opsctl_lab_weights", WEIGHTS)
    weights = importlib.util.module_from_spec(found)
    found.loader.exec_module(weights)
    weights.loader(module)


def forget(module):
    take = module._Backlog.take

    def take_the_last_only(self, reqs, lengths):
        alive, _ = take(self, reqs, lengths)
        for _, lag in alive:
            lag.first, lag.rows = lag.end - 1, lag.rows[-1:]
        return alive, []

    module._Backlog.take = take_the_last_only


if os.environ.get("OPSCTL_LAB_WEIGHTS"):
    sys.meta_path.insert(0, Hook(LOADER, fill))
if os.environ.get("OPSCTL_GPU_NO_CATCH_UP"):
    sys.meta_path.insert(0, Hook(SPEC_DISABLE, forget))
