"""`opsctl ct` and its logins against fakepve, an independent API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.wire.api_cases import ApiCases
from tests.wire.ct_cases import Ct, CtCases, codes, make_ct
from tests.wire.fake_node import fake_node
from tests.wire.pve_peer import FakePeer, write_site

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


class TestHa:
    """The HA manager runs the container: a task ends when it took the request, and the work comes later."""

    @pytest.fixture
    def ct(self, peer: FakePeer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ct:
        peer.fake.ha_state = "started"
        return make_ct(write_site(tmp_path, peer.hosts(peer.access())), capsys)

    def test_each_verb_ends_when_the_ha_manager_has_done_it(self, ct: Ct, peer: FakePeer) -> None:
        """Not when its task has ended."""
        for verb, after in (
            ("shutdown", "stopped"),
            ("start", "running"),
            ("reboot", "running"),
            ("stop", "stopped"),
        ):
            code, done = ct(verb, "130", "--yes")

            assert (code, done["data"]["after"], peer.state()) == (0, after, after), verb
            assert ":hast" in done["data"]["task"]

    def test_status_says_that_it_is_managed(self, ct: Ct, peer: FakePeer) -> None:
        """On a screen of three in the morning: who else starts and stops it."""
        assert ct("status", "130")[1]["data"]["ha_state"] == "started"
        peer.fake.ha_state = None
        assert ct("status", "130")[1]["data"]["ha_state"] is None

    def test_an_ha_resource_in_error_is_told_with_its_way_out(
        self, ct: Ct, peer: FakePeer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was asked, and does nothing: exit 20, never "started"."""
        peer.set_state("stopped")
        monkeypatch.setattr(peer.pve, "ha_delay", 1e6)
        peer.fake.ha_state = "error"

        code, refused = ct("start", "130", "--yes")

        assert (code, codes(refused), peer.state()) == (20, ["ha-not-done"], "stopped")
        assert "ha-manager set ct:130" in refused["findings"][0]["next"]

    def test_a_rollback_says_that_it_does_not_stay_down(self, ct: Ct, peer: FakePeer) -> None:
        """The HA manager starts what it wants started."""
        peer.set_snapshot("before", 1)

        plan = ct("rollback", "130", "before", "--dry-run")[1]["data"]["plan"]

        assert any("HA manager starts it again" in line for line in plan)
