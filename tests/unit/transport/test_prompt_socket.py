"""The socket below SSH: acknowledges at once, and ends its reader at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from opsctl.transport.ssh_connect import _tcp


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = _tcp("127.0.0.1", server.getsockname()[1], 5.0)
        theirs, _ = server.accept()
        with theirs, ours:
            yield ours, theirs


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux has it")
def test_what_is_received_is_acknowledged_at_once(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """Linux would wait 40 ms for data to send along, and sshd waits for it with its next small packet."""
    ours, theirs = pair
    for _ in range(5):  # after the first, Linux takes it for a dialogue
        ours.sendall(b"question")
        theirs.recv(100)
        theirs.sendall(b"answer")
        assert ours.recv(100) == b"answer"
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1
    assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_a_reader_is_told_when_the_socket_is_closed(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """Closing alone would leave it in its poll until the time-out; paramiko waits for it."""
    ours, _ = pair
    ours.settimeout(60.0)
    reading = threading.Event()
    ended: list[object] = []

    def read() -> None:
        reading.set()
        try:
            ended.append(ours.recv(100))
        except OSError as error:
            ended.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert reading.wait(20)
    reader.join(0.05)  # it is in recv by now, in all likelihood; where not, recv fails at once
    ours.close()
    reader.join(20)
    assert ended
    ours.close()  # a second time is no error
