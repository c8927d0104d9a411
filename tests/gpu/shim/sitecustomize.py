"""Fill ``--load-format dummy`` models with the lab's known-answer weights (OPSCTL_LAB_WEIGHTS=known).

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


class Hook(importlib.abc.MetaPathFinder):
    """Lets the weights' patch run right after SGLang's loader module."""

    def find_spec(self, name, path, target=None):
        if name != LOADER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            found = importlib.util.spec_from_file_location("opsctl_lab_weights", WEIGHTS)
            weights = importlib.util.module_from_spec(found)
            found.loader.exec_module(weights)
            weights.loader(module)

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("OPSCTL_LAB_WEIGHTS"):
    sys.meta_path.insert(0, Hook())
