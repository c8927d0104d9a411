"""A TCP relay on loopback that adds a round-trip delay: netem needs a kernel module that is often absent."""

from __future__ import annotations

import collections
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def delaying_relay(port: int, round_trip_s: float) -> Iterator[int]:
    """Relay connections to ``127.0.0.1:port`` with half the delay each way; yields the relay's port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_accept, args=(server, port, round_trip_s / 2), daemon=True).start()
        yield server.getsockname()[1]


def _accept(server: socket.socket, port: int, delay_s: float) -> None:
    while True:
        try:
            near, _ = server.accept()
        except OSError:
            return
        far = socket.create_connection(("127.0.0.1", port))
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, target in ((near, far), (far, near)):
            _Pipe(source, target, delay_s)


class _Pipe:
    """One direction: a thread that stamps what it reads, and one that writes it when it is due."""

    def __init__(self, source: socket.socket, target: socket.socket, delay_s: float) -> None:
        self._queue: collections.deque[tuple[float, bytes]] = collections.deque()
        self._ready = threading.Semaphore(0)
        self._delay_s = delay_s
        threading.Thread(target=self._read, args=(source,), daemon=True).start()
        threading.Thread(target=self._write, args=(target,), daemon=True).start()

    def _read(self, source: socket.socket) -> None:
        while True:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            self._queue.append((time.monotonic() + self._delay_s, data))
            self._ready.release()
            if not data:
                return

    def _write(self, target: socket.socket) -> None:
        while True:
            self._ready.acquire()
            due, data = self._queue.popleft()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(data)
            except OSError:
                return
