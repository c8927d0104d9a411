"""Wire tests share one machine, and two of them run at once: those that leave orphans run alone.

An orphan of a server bears only SGLang's title, so a stop of any other server on the machine is
rightly refused while one lives. Tests marked ``orphans`` hold the machine; all the others share it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def locks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that all workers of this run have in common."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(autouse=True)
def machine(request: pytest.FixtureRequest, locks: Path) -> Iterator[None]:
    """Share the machine with the other worker, or hold it for a test marked ``orphans``."""
    alone = request.node.get_closest_marker("orphans") is not None
    how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    # who waits stands in the door, so that those who share cannot starve the one who wants it alone
    with _locked(locks / "door", fcntl.LOCK_EX) as door, _locked(locks / "machine", how):
        fcntl.flock(door, fcntl.LOCK_UN)
        yield


@contextmanager
def _locked(path: Path, how: int) -> Iterator[int]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, how)
        yield handle
    finally:
        os.close(handle)
