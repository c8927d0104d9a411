"""The Proxmox client against fakepve, an independent API server, over real TLS on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from opsctl.errors import CheckFailed, ConfigError, CouldNotTell, TransportError
from opsctl.proxmox import HttpsApi, PveshApi
from opsctl.proxmox_container import Container
from opsctl.transport.base import CommandResult
from tests.wire.fake_node import TOKEN, TOKEN_ID, fake_node

pytestmark = pytest.mark.wire


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with fake_node(tmp_path_factory.mktemp("pve")) as node:
        yield node


@pytest.fixture
def api_of(server: SimpleNamespace) -> Iterator[Any]:
    """Makes API clients, and closes them."""
    made: list[HttpsApi] = []

    def make(**keywords: Any) -> HttpsApi:
        made.append(HttpsApi(server.url, **keywords))
        return made[-1]

    yield make
    for api in made:
        api.close()


@pytest.fixture
def container(server: SimpleNamespace, api_of: Any) -> SimpleNamespace:
    """A fresh container 129 on the fake, and our handle of it."""
    server.pve.cts = [c for c in getattr(server.pve, "cts", []) if c.vmid != 129]
    try:
        fake = server.pve.ct(129)
        fake.status, fake.lock, fake.shutdown_secs = "stopped", None, 1
    except Exception:  # noqa: BLE001 - the fake raises its own error when there is none yet
        fake = server.pve.add_ct(129, "sglang", status="stopped")
    api = api_of(token_id=TOKEN_ID, token=TOKEN, ca_file=server.ca)
    return SimpleNamespace(fake=fake, ct=Container(api, "pve1", 129))


def test_start_waits_for_the_task_and_its_exit_status(container: SimpleNamespace) -> None:
    """start is done when the UPID task ended with OK, and the container runs then."""
    result = container.ct.act("start")

    assert result.warnings == 0
    assert container.ct.status()["status"] == "running"


def test_fingerprint_with_a_password_is_a_config_error(
    server: SimpleNamespace, api_of: Any
) -> None:
    """A password would be sent before the pin could be checked, so it is refused."""
    with pytest.raises(ConfigError, match="fingerprint goes with an API token"):
        api_of(user="root@pam", password="x", fingerprint="ab" * 32)


def test_nothing_listening_is_a_transport_error() -> None:
    """A closed port is exit 30 with a next step, after a bounded number of tries."""
    with pytest.raises(TransportError) as caught:
        HttpsApi("https://127.0.0.1:1", token_id=TOKEN_ID, token=TOKEN).call("GET", "/version")

    assert caught.value.exit_code == 30
    assert caught.value.code == "pve-unreachable"


def test_an_order_that_was_cut_is_not_given_again(
    server: SimpleNamespace, container: SimpleNamespace
) -> None:
    """The connection breaks under a POST: it may have arrived, and that is said."""
    server.pve.flaky_network(drop_rate=1.0)
    try:
        with pytest.raises(
            TransportError, match="whether the order arrived is not known"
        ) as caught:
            container.ct.act("start")
    finally:
        server.pve.flaky_network()

    assert (caught.value.exit_code, caught.value.code) == (30, "pve-cut")
    assert "opsctl ct status" in str(caught.value.next_step)


def test_a_read_that_was_cut_is_tried_again(
    server: SimpleNamespace, container: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lost answer while a task is waited for is no failure of the task."""
    server.pve.flaky_network(drop_rate=1.0)
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: server.pve.flaky_network())

    assert container.ct.status()["status"] == "stopped"


def test_a_node_that_is_down_is_a_transport_error(
    server: SimpleNamespace, container: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node of the cluster answers 595: nothing was looked at, exit 30."""
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: None)
    server.pve.set_node_offline("pve1")
    try:
        with pytest.raises(TransportError, match="cannot reach the container's node") as caught:
            container.ct.status()
    finally:
        server.pve.set_node_offline("pve1", False)

    assert (caught.value.exit_code, caught.value.code) == (30, "pve-node-away")


def test_task_without_end_is_could_not_tell(container: SimpleNamespace) -> None:
    """A time-out of ours is not success: exit 21."""

    class Slow:
        name = "slow"

        def call(self, method: str, path: str, params: dict[str, Any] | None = None) -> Any:
            return {"status": "running", "type": "vzstart"}

    ticks = iter(range(1000))
    with pytest.raises(CouldNotTell, match="did not end within 5 s") as caught:
        Container(Slow(), "pve1", 129).wait(
            "UPID:x", timeout_s=5, sleep=lambda _: None, clock=lambda: float(next(ticks))
        )

    assert caught.value.exit_code == 21


@pytest.mark.parametrize(
    ("exitstatus", "warnings"), [("OK", 0), ("WARNINGS: 3", 3), ("unexpected", None), ("", None)]
)
def test_only_ok_and_warnings_count_as_done(exitstatus: str, warnings: int | None) -> None:
    """Any other exit status, also an empty one, fails with the end of the task's log."""

    class Ended:
        name = "ended"

        def call(self, method: str, path: str, params: dict[str, Any] | None = None) -> Any:
            if path.endswith("/log"):
                return [{"n": 1, "t": "disk is full"}]
            return {"status": "stopped", "exitstatus": exitstatus}

    if warnings is None:
        with pytest.raises(CheckFailed, match="disk is full"):
            Container(Ended(), "pve1", 129).wait("UPID:x")
    else:
        assert Container(Ended(), "pve1", 129).wait("UPID:x").warnings == warnings


@pytest.mark.parametrize("count", [3, 500, 1203])
def test_the_end_of_a_long_log_is_told(count: int) -> None:
    """The API gives a log from its beginning, a page at a time, and has words for nothing more."""
    log = [{"n": number, "t": f"line {number}"} for number in range(1, count + 1)]

    class Long:
        name = "long"

        def call(self, method: str, path: str, params: dict[str, Any] | None = None) -> Any:
            if path.endswith("/status"):
                return {"status": "stopped", "exitstatus": "broken pipe"}
            assert params is not None
            page = log[params["start"] : params["start"] + params["limit"]]
            return page or [{"n": count, "t": "no content"}]

    with pytest.raises(CheckFailed, match="failed: broken pipe") as caught:
        Container(Long(), "pve1", 129).wait("UPID:x")

    assert caught.value.message.splitlines()[-1].strip() == f"line {count}"
    assert caught.value.next_step == "on the node: pvenode task log UPID:x"


class Scripted:
    """A transport that answers pvesh from a list."""

    name = "ssh:node"

    def __init__(self, *results: tuple[int, bytes, bytes]) -> None:
        self.results = list(results)
        self.calls: list[tuple[str, ...]] = []

    def run(self, argv: Any, *, stdin: bytes = b"", timeout_s: float) -> CommandResult:
        self.calls.append(tuple(argv))
        code, out, err = self.results.pop(0)
        return CommandResult(tuple(argv), code, out, err)

    def open(self, argv: Any) -> Any:
        raise AssertionError("not used")

    def close(self) -> None:
        """Nothing is held."""


def test_pvesh_takes_the_upid_from_the_last_line() -> None:
    """A create prints progress before its UPID."""
    transport = Scripted((0, b'starting\n"UPID:pve1:1:2:3:vzstart:129:root@pam:"\n', b""))

    answer = PveshApi(transport).call("POST", "/nodes/pve1/lxc/129/status/start")

    assert answer == "UPID:pve1:1:2:3:vzstart:129:root@pam:"
    assert transport.calls[0][:3] == ("pvesh", "create", "/nodes/pve1/lxc/129/status/start")


def test_pvesh_busy_lock_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """'got timeout' means that nothing happened yet."""
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: None)
    busy = (255, b"", b"can't lock file '/run/lock/lxc/pve-config-129.lock' - got timeout\n")
    transport = Scripted(busy, busy, (0, b'{"status": "running"}', b""))

    answer = PveshApi(transport).call("GET", "/nodes/pve1/lxc/129/status/current")

    assert answer == {"status": "running"}
    assert len(transport.calls) == 3


def test_pvesh_missing_is_a_transport_error() -> None:
    """A node without pvesh is no Proxmox node; nothing was looked at."""
    with pytest.raises(TransportError, match="there is no pvesh"):
        PveshApi(Scripted((127, b"", b"not found"))).call("GET", "/version")
