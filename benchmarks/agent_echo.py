"""A no-op operation of the agent over ssh, against a bare echo loop on one paramiko channel."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Figure, in_turns
from benchmarks.relay import delaying_relay
from opsctl.agent.client import connect
from opsctl.transport.ssh import SshTransport
from opsctl.transport.ssh_connect import Target
from tests.wire.sshd import Sshd, running_sshd

# what the facts call "a resident Python agent": reads a line, writes it back
ECHO = "import os\nwhile 1:\n b=os.read(0,65536)\n if not b: break\n os.write(1,b)"
MESSAGE = b'{"id":1,"op":"noop"}\n'
CALLS = 200


@contextmanager
def box() -> Iterator[Sshd]:
    """Run a private sshd that the client trusts."""
    with tempfile.TemporaryDirectory() as folder, running_sshd(Path(folder)) as sshd:
        sshd.trust()
        yield sshd


@contextmanager
def echo_loop(transport: SshTransport) -> Iterator[Callable[[], None]]:
    """Give one round trip of the bare loop."""
    channel = transport._client().open_session()
    channel.exec_command(f"python3 -I -S -u -c '{ECHO}'")

    def once() -> None:
        channel.sendall(MESSAGE)
        got = b""
        while len(got) < len(MESSAGE):
            got += channel.recv(65536)

    once()
    yield once
    channel.close()


def times(act: Callable[[], object], count: int) -> Callable[[], None]:
    def many() -> None:
        for _ in range(count):
            act()

    return many


def run() -> list[Figure]:
    """Measure on loopback, then through a relay with 20 ms round trip."""
    with box() as sshd:
        transport = sshd.transport()
        with connect(transport) as agent, echo_loop(transport) as echo:
            noop = times(lambda: agent.call("agent.noop"), CALLS)
            ours, peer = in_turns(noop, times(echo, CALLS), 9)
        transport.close()
        figures = [Figure("agent no-op over ssh / bare echo loop", ours / CALLS, peer / CALLS, 1.5)]
        figures.append(far(sshd))
    return figures


def far(sshd: Sshd) -> Figure:
    """Measure a no-op with 20 ms round trip on the way."""
    with delaying_relay(sshd.port, 0.020) as port:
        known = sshd.known_hosts.read_text().replace(f":{sshd.port} ", f":{port} ")
        sshd.known_hosts.write_text(sshd.known_hosts.read_text() + known)
        sshd.write_config(port=port)
        transport = SshTransport(Target("box", ssh_config_path=str(sshd.config)))
        with connect(transport) as agent, echo_loop(transport) as echo:
            noop = lambda: agent.call("agent.noop")  # noqa: E731
            ours, peer = in_turns(times(noop, 10), times(echo, 10), 5)
        transport.close()
    note = f"the bare loop there: {peer / 10:.1f} ms"
    return Figure("agent no-op at 20 ms round trip", ours / 10, None, 25, note=note)
