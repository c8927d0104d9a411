"""The way to a server's port through a host's transport: as if the client ran there."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.domain.report import Outcome
from opsctl.errors import TransportError
from opsctl.sglang.endpoint import Endpoint
from opsctl.smoke.relay import Relay
from opsctl.smoke.run import Options, run_smoke
from opsctl.transport.local import LocalTransport
from tests.wire.ground import free_port

pytestmark = pytest.mark.wire
SERVER = Path(__file__).with_name("smoke_server.py")


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets, in upper case."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        def answer(connection: socket.socket) -> None:
            with connection:
                while data := connection.recv(65536):
                    connection.sendall(data.upper())

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def relay(echo: int) -> Iterator[Relay]:
    made = Relay(LocalTransport(None), "127.0.0.1", echo)
    yield made
    made.close()


def test_bytes_pass_unchanged_both_ways(relay: Relay) -> None:
    """300 kB of every byte value arrive whole, on two lines at once."""
    data = bytes(range(97, 123)) * 6000
    with relay.dial() as one, relay.dial() as two:
        for end in (one, two):
            threading.Thread(target=end.sendall, args=(data,), daemon=True).start()
        for end in (one, two):
            end.settimeout(10)
            received = b""
            while len(received) < len(data):
                received += end.recv(65536)
            assert received == data.upper()


def test_refusal_there_is_a_refusal_here() -> None:
    """A dead server looks dead through the relay, with the host's own errno."""
    relay = Relay(LocalTransport(None), "127.0.0.1", free_port())
    try:
        with pytest.raises(ConnectionRefusedError) as caught:
            relay.dial()
    finally:
        relay.close()
    assert caught.value.errno == errno.ECONNREFUSED


def test_end_of_the_channel_ends_the_lines(relay: Relay) -> None:
    """When the way to the host breaks, streams end and nothing new can be dialled."""
    with relay.dial() as line:
        relay.close()
        line.settimeout(5)
        assert line.recv(10) == b""
    with pytest.raises(ConnectionResetError):
        relay.dial()


def test_host_without_python_is_said(tmp_path: Path) -> None:
    """No python3 on the far side: one sentence, exit 30."""

    class Bare(LocalTransport):
        def open(self, argv):  # type: ignore[no-untyped-def]
            return super().open(["sh", "-c", "echo no python3 here >&2; exit 127"])

    with pytest.raises(TransportError, match="no python3 here"):
        Relay(Bare(None), "127.0.0.1", 1)


@pytest.mark.parametrize(
    ("plan", "outcomes"),
    [
        ({}, [Outcome.PASSED, Outcome.PASSED, Outcome.PASSED]),
        ({"fault": "die", "at": 4}, [Outcome.PASSED, Outcome.PASSED, Outcome.CRASHED]),
        ({"fault": "cut", "at": 4}, [Outcome.PASSED, Outcome.PASSED, Outcome.FAILED]),
    ],
)
def test_smoke_through_the_relay_judges_alike(
    plan: dict[str, object], outcomes: list[Outcome]
) -> None:
    """Healthy, dead and cut are told apart as on a direct connection."""
    child = subprocess.Popen(
        [sys.executable, str(SERVER), json.dumps(plan)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    port = int(child.stdout.readline())
    relay = Relay(LocalTransport(None), "127.0.0.1", port)
    try:
        endpoint = Endpoint("127.0.0.1", port, dial=relay.dial)
        report = run_smoke(Options(endpoint, levels=(1, 2, 5), idle_s=0.0))
    finally:
        relay.close()
        child.kill()
        child.wait(timeout=10)
        child.stdout.close()
    assert [level.outcome for level in report.levels] == outcomes
