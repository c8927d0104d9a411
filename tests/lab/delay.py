"""Round-trip delay to a lab host: a relay between two TUN devices (works without netem).

`with far(lab, "pve1", rtt_ms=20) as address:` gives the host a second way in, at ``address``; the
ssh_config knows it as pve1-far. Traffic on its ordinary address is not delayed.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import select
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.lab import kernel
from tests.lab.enter import must

if TYPE_CHECKING:
    from tests.lab.fixture import Lab

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
FAR = {"pve1": "10.78.1.2", "gpu1": "10.78.2.2"}  # the host's end; the control machine's ends in .1
LONGEST_S = 1800
PACKET = 2048


@contextmanager
def far(lab: Lab, host: str, rtt_ms: float) -> Iterator[str]:
    """Give ``host`` an address that answers ``rtt_ms`` later; it goes at the end."""
    pid = lab.run(["lxc-info", "-P", str(lab.instance.dir / "lxc"), "-n", host, "-pH"]).stdout
    argv = [sys.executable, "-m", "tests.lab.delay", pid.strip(), FAR[host], str(rtt_ms)]
    with lab.popen(argv) as relay:
        try:
            assert relay.stdout is not None
            assert relay.stderr is not None
            line = relay.stdout.readline()
            assert line == b"ready\n", relay.stderr.read(4000).decode()
            yield FAR[host]
        finally:
            assert relay.stdin is not None
            relay.stdin.close()  # the relay ends on it
            relay.wait(10)


def main() -> None:
    """Usage, inside the lab: python -m tests.lab.delay INIT_PID ADDRESS RTT_MS."""
    init_pid, address, rtt_ms = sys.argv[1], sys.argv[2], float(sys.argv[3])
    near_address = address.rsplit(".", 1)[0] + ".1"
    name = "far" + address.split(".")[2]
    near = open_tun(name, near_address, address)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    kernel.setns(f"/proc/{init_pid}/ns/net", kernel.NEWNET)
    there = open_tun(name, address, near_address)
    kernel.setns(f"/proc/self/fd/{own}", kernel.NEWNET)
    print("ready", flush=True)
    relay(near, there, rtt_ms / 2000)


def open_tun(name: str, address: str, peer: str) -> int:
    """Make a point-to-point device in this network namespace; it goes when the descriptor closes."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    must(["ip", "address", "add", address, "peer", peer, "dev", name])
    must(["ip", "link", "set", name, "up", "mtu", "1500"])
    return descriptor


def relay(one: int, other: int, one_way_s: float) -> None:
    """Carry packets both ways, each ``one_way_s`` late, until stdin ends."""
    peers = {one: other, other: one}
    queue: list[tuple[float, int, int, bytes]] = []
    count = 0
    end = time.monotonic() + LONGEST_S
    while time.monotonic() < end:
        wait_s = max(0.0, queue[0][0] - time.monotonic()) if queue else 10.0
        ready, _, _ = select.select([one, other, 0], [], [], wait_s)
        if 0 in ready and not os.read(0, 1):
            return
        due = time.monotonic() + one_way_s
        for descriptor in set(ready) & set(peers):
            for packet in _packets(descriptor):
                heapq.heappush(queue, (due, count, peers[descriptor], packet))
                count += 1
        while queue and queue[0][0] <= time.monotonic():
            _, _, target, packet = heapq.heappop(queue)
            try:
                os.write(target, packet)
            except OSError:
                pass  # a full queue drops packets, as a network does


def _packets(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            yield os.read(descriptor, PACKET)
        except BlockingIOError:
            return


if __name__ == "__main__":
    main()
