"""A quicker start: fork the schedulers and the detokenizer instead of importing everything thrice.

Only with OPSCTL_LAB_START=fork. The tree looks the same, the resource tracker included, and titles,
parents, pipes and endings are SGLang's; a child is a copy of the main process before it serves, where
SGLang spawns a new interpreter.
"""

import os
from multiprocessing import resource_tracker


def engine(module):
    """Patch sglang.srt.entrypoints.engine."""
    if os.environ.get("OPSCTL_LAB_START") != "fork":
        return
    multiprocessing = module.mp
    own = multiprocessing.set_start_method

    def set_start_method(method, force=False):
        resource_tracker.ensure_running()
        own("fork" if method == "spawn" else method, force=force)

    multiprocessing.set_start_method = set_start_method
