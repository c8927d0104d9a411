"""`opsctl ct` and its logins against fakepve, an independent API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.wire.api_cases import ApiCases
from tests.wire.ct_cases import CtCases
from tests.wire.fake_node import fake_node
from tests.wire.pve_peer import FakePeer

pytestmark = pytest.mark.wire


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with fake_node(tmp_path_factory.mktemp("pve")) as node:
        yield node


@pytest.fixture
def peer(server: SimpleNamespace, tmp_path: Path) -> FakePeer:
    return FakePeer(server, tmp_path)


class TestCommands(CtCases):
    """Containers of the fake change state as PVE's do."""


class TestLogins(ApiCases):
    """The fake has tickets, tokens and privileges per path."""
