"""Wire tests share one machine, and two of them run at once: some must run alone.

An orphan of a server bears only SGLang's title, so a stop of any other server on the machine is
rightly refused while one lives. Shared memory of a dead server is rightly removed by the sweep of any
other server's restart. Tests marked ``orphans`` or ``dead_memory`` hold the machine; all the others
share it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ALONE = ("orphans", "dead_memory")


@pytest.fixture(scope="session")
def locks(pytestconfig: pytest.Config) -> Path:
    """Return the folder of the locks."""
    return folder_of_locks(pytestconfig)


def folder_of_locks(config: pytest.Config) -> Path:
    """Return the folder that all workers of this run have in common."""
    base: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Share the machine with the other worker, or hold it for a test that must be alone.

    Around all of a test and not in a fixture: those of a module come first, and some restart servers.
    """
    alone = any(item.get_closest_marker(name) is not None for name in ALONE)
    how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    locks = folder_of_locks(item.config)
    # who waits stands in the door, so that those who share cannot starve the one who wants it alone
    with _locked(locks / "door", fcntl.LOCK_EX) as door, _locked(locks / "machine", how):
        fcntl.flock(door, fcntl.LOCK_UN)
        return (yield)


@contextmanager
def _locked(path: Path, how: int) -> Iterator[int]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, how)
        yield handle
    finally:
        os.close(handle)
