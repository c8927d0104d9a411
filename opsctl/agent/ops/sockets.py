"""Listening TCP ports, each in the network namespace of the process that is asked about."""

from __future__ import annotations

from opsctl.agent.ops import procfs

LISTEN = b"0A"


def parse_listening(data: bytes) -> dict[str, int]:
    """Return inode -> port of the listening sockets in one /proc/PID/net/tcp or tcp6.

    Source: Documentation/networking/proc_net_tcp.rst; the local address is HEX:PORT, the state a byte.
    """
    found = {}
    for line in data.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == LISTEN:
            found[fields[9].decode()] = int(fields[1].rpartition(b":")[2], 16)
    return found


def listening_in(pid: int) -> dict[str, int] | None:
    """Return inode -> port of all listening sockets in the namespace of ``pid``, None when unreadable."""
    tables = [procfs.read("/proc/%d/net/%s" % (pid, name)) for name in ("tcp", "tcp6")]
    if tables == [None, None]:
        return None
    found: dict[str, int] = {}
    for table in tables:
        found.update(parse_listening(table or b""))
    return found


class Tables:
    """The listening sockets per network namespace, read once each."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, int] | None] = {}

    def listening(self, pid: int, links: list[str] | None) -> list[int] | None:
        """Return the ports that a process with these descriptors listens on, None when unreadable."""
        if links is None:
            return None
        inodes = [link[8:-1] for link in links if link.startswith("socket:[")]
        if not inodes:
            return []
        namespace = procfs.readlink("/proc/%d/ns/net" % pid)
        if namespace is None:
            table = listening_in(pid)
        else:
            if namespace not in self._known:
                self._known[namespace] = listening_in(pid)
            table = self._known[namespace]
        if table is None:
            return None
        return sorted({table[inode] for inode in inodes if inode in table})
