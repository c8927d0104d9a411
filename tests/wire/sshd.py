"""A private sshd on 127.0.0.1, run as whoever runs the tests: own host key, own authorized keys, own port."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.transport.ssh import SshTransport
from opsctl.transport.ssh_connect import Target


def find_sshd() -> str | None:
    """Return the sshd binary, which is not on an ordinary user's PATH."""
    return shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ.get("PATH", ""))


@dataclass
class Sshd:
    """A running sshd, and the ssh_config with which a client finds it as ``box``."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    extra: list[str] = field(default_factory=list)

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def config(self) -> Path:
        return self.folder / "ssh_config"

    def trust(self) -> None:
        """Write the host key into known_hosts, as an operator does once."""
        kind, key = (self.folder / "host_key.pub").read_text().split()[:2]
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {kind} {key}\n")

    def write_config(
        self, *lines: str, identity: str = "user_key", port: int | None = None
    ) -> None:
        """Write the client's ssh_config: host ``box`` with these further lines."""
        body = [
            "Host hop",
            f"  Port {self.port}",
            "Host box",
            f"  Port {port or self.port}",
            *(f"  {line}" for line in lines),
            "Host box hop",
            "  HostName 127.0.0.1",
            f"  IdentityFile {self.folder / identity}",
            "  IdentitiesOnly yes",
            f"  UserKnownHostsFile {self.known_hosts}",
        ]
        self.config.write_text("\n".join(body) + "\n")

    def transport(self, become: str | None = None, timeout_s: float = 10.0) -> SshTransport:
        target = Target("box", connect_timeout_s=timeout_s, ssh_config_path=str(self.config))
        return SshTransport(target, become)


def make_key(path: Path, kind: str = "ed25519") -> None:
    command = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(path)]
    subprocess.run(command, check=True, timeout=20)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextmanager
def running_sshd(folder: Path, *options: str) -> Iterator[Sshd]:
    """Run an sshd that knows ``user_key`` and trusts nothing else, until the block ends."""
    binary = find_sshd()
    assert binary is not None
    for name in ("host_key", "user_key", "stranger_key"):
        make_key(folder / name)
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    port = free_port()
    settings = [
        f"HostKey {folder / 'host_key'}",
        f"AuthorizedKeysFile {folder / 'authorized_keys'}",
        "StrictModes no",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        f"PidFile {folder / 'sshd.pid'}",
        f"Port {port}",
        "ListenAddress 127.0.0.1",
        *options,
    ]
    config = folder / "sshd_config"
    config.write_text("\n".join(settings) + "\n")
    process = subprocess.Popen([binary, "-D", "-f", str(config), "-E", str(folder / "sshd.log")])
    try:
        wait_for_port(port)
        made = Sshd(folder, port, process)
        made.write_config()
        yield made
    finally:
        process.terminate()
        process.wait(10)


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise TimeoutError(f"sshd did not listen on port {port}")
