"""A server's process tree, and the decision on a table that holds it."""

from __future__ import annotations

from typing import Any

from opsctl.domain.process import Selection
from opsctl.domain.selection import select
from opsctl.facts import Process

from .tables import LAUNCH, proc, server, title, view

PYTHON_PATH = "/usr/bin/python3.11"
TREE_PIDS = {4200, 4201, 4202, 4203, 4204, 4205}
HERE, BLUE = "net:[1]", "net:[2]"  # network namespaces


def tree(root: int = 4200, **changes: Any) -> list[Process]:
    """A whole SGLang server under one root."""
    same = {"session": root, **changes}
    spawn = ("python3", "-c", "from multiprocessing.resource_tracker import main;main(25)")
    worker = (PYTHON_PATH, "/x/torch/_inductor/compile_worker/__main__.py", f"--parent={root + 2}")
    return [
        proc(root, 1, LAUNCH, **same),
        proc(root + 1, root, spawn, **same),
        title(root + 2, root, "sglang::scheduler_TP0", **same),
        title(root + 3, root, "sglang::scheduler_TP1", **same),
        title(root + 4, root, "sglang::detokenizer", **same),
        proc(root + 5, root + 2, worker, **same),
    ]


def chosen(processes: list[Process], **changes: Any) -> Selection:
    given = {"details": {}, "holders": [], "view": view(), "others": (), **changes}
    return select(given.pop("server", server()), processes, **given)
