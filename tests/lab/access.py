"""Keys, known_hosts and ssh_config of a lab: what a person at the control machine has in ~/.ssh."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.lab.enter import must
from tests.lab.instance import Instance

USERS = ("root", "ops", "asks")  # ops: sudo without a password; asks: sudo wants one


@dataclass(frozen=True, slots=True)
class SshHost:
    """One host as the control machine knows it."""

    name: str
    addresses: tuple[str, ...]
    port: int = 22
    user: str = "root"
    aliases: tuple[tuple[str, str], ...] = ()  # (alias, user)
    key: str | None = None  # whose host key it shows; its own by default


def make_client_key(instance: Instance) -> None:
    """Make the client's key, once."""
    instance.keys.mkdir(parents=True, exist_ok=True, mode=0o700)
    instance.keys.chmod(0o700)
    make_key(instance.keys / "id_ed25519", "lab-client")


def make_key(path: Path, comment: str) -> str:
    """Make an ed25519 key pair at ``path`` unless it is there; return the public line."""
    public = path.with_name(path.name + ".pub")
    if not public.exists():
        path.unlink(missing_ok=True)
        must(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])
    return public.read_text().strip()


def host_key(instance: Instance, name: str) -> Path:
    """Return the private host key of a lab host, made on first use."""
    folder = instance.dir / "hostkeys"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / name
    make_key(path, name)
    return path


def write_client_files(instance: Instance, hosts: Iterable[SshHost]) -> None:
    """Write known_hosts and config for ``hosts``."""
    known, config = [], []
    for host in hosts:
        key = host_key(instance, host.key or host.name)
        public = key.with_name(key.name + ".pub").read_text().split()
        for address in host.addresses:
            subject = address if host.port == 22 else f"[{address}]:{host.port}"
            known.append(f"{subject} {public[0]} {public[1]}")
        for alias, user in ((host.name, host.user), *host.aliases):
            config.append(_stanza(instance, alias, host, user))
    (instance.keys / "known_hosts").write_text("\n".join(known) + "\n")
    defaults = _defaults(instance)
    instance.ssh_config.write_text("\n".join(config) + "\nHost *\n" + defaults)
    instance.ssh_config.chmod(0o600)


def _stanza(instance: Instance, alias: str, host: SshHost, user: str) -> str:
    return (
        f"Host {alias}\n  HostName {host.addresses[0]}\n  Port {host.port}\n  User {user}\n"
        + _defaults(instance)
    )


def _defaults(instance: Instance) -> str:
    return (
        f"  IdentityFile {instance.keys / 'id_ed25519'}\n"
        f"  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {instance.keys / 'known_hosts'}\n"
        f"  GlobalKnownHostsFile /dev/null\n"
        f"  StrictHostKeyChecking yes\n"
        f"  BatchMode yes\n"
    )
