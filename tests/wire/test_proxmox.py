"""The Proxmox client against fakepve, an independent API server, over real TLS on loopback."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from opsctl.errors import CheckFailed, ConfigError, CouldNotTell, TransportError
from opsctl.proxmox import Container, HttpsApi, PveError, PveshApi
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


def test_locked_container_fails_with_the_lock_and_is_not_unlocked(
    container: SimpleNamespace,
) -> None:
    """A backup's lock is told with what to do, and stays."""
    container.fake.lock = "backup"

    with pytest.raises(CheckFailed) as caught:
        container.ct.act("start")

    assert "CT is locked (backup)" in caught.value.message
    assert caught.value.next_step is not None
    assert "never clears a lock" in caught.value.next_step
    assert container.fake.lock == "backup"


def test_unknown_vmid_is_told_in_the_nodes_words(server: SimpleNamespace, api_of: Any) -> None:
    """A container that does not exist is no transport error."""
    api = api_of(token_id=TOKEN_ID, token=TOKEN, ca_file=server.ca)

    with pytest.raises(PveError, match=r"lxc/999\.conf' does not exist") as caught:
        Container(api, "pve1", 999).status()

    assert caught.value.exit_code == 20


@pytest.mark.parametrize(
    ("keywords", "error", "exit_code", "words"),
    [
        ({"token_id": TOKEN_ID, "token": "wrong-9b1c"}, PveError, 30, "authentication failure"),
        ({"user": "root@pam", "password": "wrong-9b1c"}, PveError, 30, "login was refused"),
    ],
)
def test_wrong_secret_is_refused_and_never_shown(
    server: SimpleNamespace,
    api_of: Any,
    keywords: dict[str, str],
    error: type[Exception],
    exit_code: int,
    words: str,
) -> None:
    """Not allowed to look is exit 30, and the secret is in no message."""
    with pytest.raises(error) as caught:
        Container(api_of(ca_file=server.ca, **keywords), "pve1", 129).status()

    assert words in str(caught.value)
    assert getattr(caught.value, "exit_code", None) == exit_code
    assert "wrong-9b1c" not in f"{caught.value} {getattr(caught.value, 'next_step', '')}"


def test_untrusted_certificate_is_refused_by_default(server: SimpleNamespace, api_of: Any) -> None:
    """TLS is verified unless a CA file or a fingerprint says whom to trust."""
    api = api_of(token_id=TOKEN_ID, token=TOKEN)

    with pytest.raises(TransportError, match="certificate is not trusted"):
        api.call("GET", "/version")


def test_fingerprint_trusts_exactly_one_certificate(server: SimpleNamespace, api_of: Any) -> None:
    """The right fingerprint passes, another one is refused."""
    der = ssl.PEM_cert_to_DER_cert(server.ca.read_text())
    right = hashlib.sha256(der).hexdigest()

    good = api_of(token_id=TOKEN_ID, token=TOKEN, fingerprint=right)
    assert good.call("GET", "/version")

    bad = api_of(token_id=TOKEN_ID, token=TOKEN, fingerprint="ab" * 32)
    with pytest.raises(TransportError, match="certificate is not trusted"):
        bad.call("GET", "/version")


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
