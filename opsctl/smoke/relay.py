"""TCP connections as a host sees them, many over one channel: for containers and hosts behind SSH.

One small program on the far side (standard library, Python 3.8) connects there; frames carry kind,
connection and data. It ends with its stdin. A refusal there is a refusal here, so a dead server looks
dead through it too.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from dataclasses import field

from opsctl.errors import OpsctlError, TransportError
from opsctl.records import dataclass
from opsctl.transport.base import Channel, Transport

MARKER = b"OPSCTL-RELAY-1\n"
HEADER = struct.Struct("!cII")
START_S = 20.0
DIAL_S = 5.0

FAR_SIDE = r"""
import os, socket, struct, sys, threading
H = struct.Struct("!cII")
lock = threading.Lock()
table = {}
def send(kind, number, data=b""):
    view = memoryview(H.pack(kind, number, len(data)) + data)
    with lock:
        while view:
            view = view[os.write(1, view):]
def take(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            os._exit(0)
        data += part
    return data
def serve(number, host, port):
    try:
        made = socket.create_connection((host, port), 5)
        made.settimeout(None)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        send(b"R", number, str(error.errno or 110).encode())
        return
    table[number] = made
    send(b"O", number)
    try:
        while True:
            data = made.recv(65536)
            if not data:
                break
            send(b"D", number, data)
    except OSError:
        pass
    send(b"E", number)
    table.pop(number, None)
    made.close()
os.write(1, b"OPSCTL-RELAY-1\n")
while True:
    kind, number, size = H.unpack(take(H.size))
    data = take(size)
    if kind == b"C":
        host, port = data.decode().rsplit(" ", 1)
        threading.Thread(target=serve, args=(number, host, int(port)), daemon=True).start()
    elif number in table:
        try:
            if kind == b"D":
                table[number].sendall(data)
            else:
                table[number].shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
"""


@dataclass(slots=True)
class _Line:
    """One relayed connection: our end of a socket pair, and the answer to its opening."""

    ours: socket.socket
    answered: threading.Event = field(default_factory=threading.Event)
    refused: int | None = None


class Relay:
    """Opens connections on a host through one channel of its transport. Safe to use from threads."""

    def __init__(self, transport: Transport, host: str, port: int) -> None:
        self._name, self._explain = transport.name, transport.explain
        self._target = f"{host} {port}".encode()
        self._channel: Channel = transport.open(
            ["python3", "-I", "-S", "-u", "-c", FAR_SIDE.strip()]
        )
        self._lines: dict[int, _Line] = {}
        self._next = 0
        self._lock = threading.Lock()
        self._closed = False
        self._buffer = self._wait_marker()
        threading.Thread(target=self._read, daemon=True, name="relay-read").start()

    def dial(self, timeout_s: float = DIAL_S) -> socket.socket:
        """Return a connected socket to the target.

        Raises:
            OSError: with the errno that the host saw, such as ECONNREFUSED.
        """
        ours, theirs = socket.socketpair()
        with self._lock:
            if self._closed:
                ours.close()
                theirs.close()
                raise ConnectionResetError(errno.ECONNRESET, "the way to the host broke")
            self._next += 1
            number = self._next
            line = self._lines[number] = _Line(ours)
        self._send(b"C", number, self._target)
        if not line.answered.wait(timeout_s):
            line.refused = errno.ETIMEDOUT
        if line.refused is not None:
            self._drop(number)
            ours.close()
            theirs.close()
            raise OSError(line.refused, os.strerror(line.refused))
        threading.Thread(
            target=self._pump, args=(number, ours), daemon=True, name=f"relay-{number}"
        ).start()
        return theirs

    def close(self) -> None:
        """End the far side and every line; safe to call twice."""
        with self._lock:
            self._closed = True
            lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            line.refused = errno.ECONNRESET
            line.answered.set()
            _shut(line.ours)
        self._channel.close()

    def _wait_marker(self) -> bytes:
        received = b""
        left_s = START_S
        while MARKER not in received:
            data = self._channel.read(1.0)
            if data is None:
                left_s -= 1.0
            if data == b"" or left_s <= 0:
                words = self._channel.stderr_tail().decode("utf-8", "replace").strip()
                self._channel.close()
                known = self._explain(None, words.encode())
                if known is not None:
                    raise known
                raise TransportError(
                    f"{self._name}: no way to the server's port: {words or 'python3 did not start'}",
                    next_step="is python3 installed there? a URL that is reachable works with --url",
                    code="no-relay",
                    subject=self._name,
                )
            received += data or b""
        return received.split(MARKER, 1)[1]

    def _send(self, kind: bytes, number: int, data: bytes = b"") -> None:
        with self._lock:
            self._channel.write(HEADER.pack(kind, number, len(data)) + data)

    def _pump(self, number: int, ours: socket.socket) -> None:
        """Carry what our client writes to the host."""
        try:
            while data := ours.recv(65536):
                self._send(b"D", number, data)
            self._send(b"E", number)
        except (OSError, OpsctlError):
            pass
        self._drop(number)
        ours.close()

    def _read(self) -> None:
        """Carry what the host says to the lines, until the channel ends."""
        try:
            while not self._closed:
                while len(self._buffer) >= HEADER.size:
                    kind, number, size = HEADER.unpack_from(self._buffer)
                    if len(self._buffer) < HEADER.size + size:
                        break
                    data = self._buffer[HEADER.size : HEADER.size + size]
                    self._buffer = self._buffer[HEADER.size + size :]
                    self._take(kind, number, data)
                more = self._channel.read(1.0)
                if more == b"":
                    break
                self._buffer += more or b""
        except (OpsctlError, OSError, ValueError):
            pass  # the way broke, or was closed under the read
        self.close()

    def _take(self, kind: bytes, number: int, data: bytes) -> None:
        line = self._lines.get(number)
        if line is None:
            return
        if kind == b"D":
            try:
                line.ours.sendall(data)
            except OSError:
                self._drop(number)
        elif kind == b"E":
            _shut(line.ours)
        else:
            line.refused = int(data) if kind == b"R" else None
            line.answered.set()

    def _drop(self, number: int) -> None:
        with self._lock:
            line = self._lines.pop(number, None)
        if line is not None:
            _shut(line.ours)  # its pump wakes up and closes it


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is closed already
