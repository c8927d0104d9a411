"""Messages between the server's processes: one JSON object a line on a socket pair."""

import json


def send(sock, message):
    """Send one message; a peer that is gone is as silent as it would be behind ZeroMQ."""
    try:
        sock.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        pass


class Reader:
    """Split what a socket brings into messages."""

    def __init__(self, sock):
        self.sock = sock
        self.rest = b""
        self.closed = False

    def receive(self):
        """Return the messages of one read, which blocks if nothing is there."""
        data = self.sock.recv(1 << 16)
        if not data:
            self.closed = True
            return []
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [json.loads(line) for line in lines]
