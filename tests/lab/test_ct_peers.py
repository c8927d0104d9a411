"""The shared cases of `opsctl ct` on the lab's node: through its API and through pvesh over ssh."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.fixture import Lab
from tests.lab.pve_peer import LabApiPeer, LabPeer
from tests.wire.api_cases import ApiCases
from tests.wire.ct_cases import CtCases, make_ct
from tests.wire.pve_peer import write_site

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]


@pytest.fixture
def api_peer(lab: Lab, tmp_path: Path) -> Iterator[LabApiPeer]:
    found = LabApiPeer(lab, tmp_path)
    found.clean()
    yield found
    found.clean()


@pytest.fixture
def pvesh_peer(lab: Lab, tmp_path: Path) -> Iterator[LabPeer]:
    found = LabPeer(lab, tmp_path)
    found.clean()
    yield found
    found.clean()


class TestCommandsThroughTheApi(CtCases):
    """A token; tasks run in the background of the node and are waited for."""

    @pytest.fixture
    def peer(self, api_peer: LabApiPeer) -> LabApiPeer:
        return api_peer


@pytest.mark.slow
class TestCommandsThroughPvesh(CtCases):
    """No token at all: pvesh on the node, over ssh; a task runs in the foreground."""

    @pytest.fixture
    def peer(self, pvesh_peer: LabPeer) -> LabPeer:
        return pvesh_peer


class TestLogins(ApiCases):
    """Tickets, tokens and privileges of the node."""

    @pytest.fixture
    def peer(self, api_peer: LabApiPeer) -> LabApiPeer:
        return api_peer


def test_what_only_a_node_can_do_works_beside_the_api(
    api_peer: LabApiPeer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The API has no call to look or run inside: check and exec go through pct on the node."""
    api_peer.set_state("running")
    ct = make_ct(write_site(tmp_path, api_peer.hosts(api_peer.access())), capsys)

    code, done = ct("exec", "130", "--", "printf", "%s", "a b")
    looked, checked = ct("check", "130")

    assert (code, done["data"]["stdout"]) == (0, "a b")
    assert (looked, checked["data"]["api"]) == (20, "https://10.77.1.1:8006")
    assert "no-gpu-passed" in [finding["code"] for finding in checked["findings"]]
