"""The root file system of a lab host: this machine's, read only below, with a layer of its own above.

Nothing private shows through: home folders, the checkout and everything else that is not part of the
distribution are replaced by empty folders, and no service of the machine is started.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab import kernel
from tests.lab.errors import LabError

# Top folders that belong to the distribution; every other one shows as empty.
DISTRIBUTION = {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32"}
DISTRIBUTION |= {"proc", "run", "sbin", "sys", "tmp", "usr", "var"}
EMPTY = (
    *("usr/local", "etc/systemd/system", "etc/ssh", "etc/sudoers.d", "etc/profile.d", "run", "tmp"),
    *("etc/lxc", "var/lib/lxc", "var/log", "var/tmp", "var/cache", "var/spool", "var/lib/opsctl"),
    *("var/lib/systemd", "var/lib/postgresql", "var/lib/docker", "var/backups", "var/mail"),
    # what systemd would start: only the units that a host names itself
    *(f"usr/lib/systemd/{part}" for part in ("system-generators", "user-generators")),
    *(
        f"usr/lib/systemd/system/{target}.target.wants"
        for target in (
            "sysinit",
            "multi-user",
            "local-fs",
            "timers",
            "sockets",
            "getty",
            "graphical",
        )
    ),
    "usr/lib/tmpfiles.d",
)
# crypt(3) of "lab", SHA-512
LAB_PASSWORD = (
    "$6$opsctl$OGlpDfr3K6nHd4WTg/kMUuNDMb.uSWhn0EnmsaYdXspeKkahwQ"
    "WMIxqiHQ0.FC3jM5JuJWcz0EcSVTWBoN4aa0"
)
WANTED_UNITS = {
    "sysinit.target": ("systemd-journald.service",),
    "sockets.target": ("systemd-journald.socket", "systemd-journald-dev-log.socket", "dbus.socket"),
}
# Started by a path of their own, useless or slow in a container.
MASKED_UNITS = (
    *("systemd-logind.service", "systemd-journal-flush.service", "systemd-update-utmp.service"),
    *("systemd-udevd.service", "systemd-udevd-control.socket", "systemd-udevd-kernel.socket"),
    *("systemd-journald-audit.socket", "systemd-networkd.service", "systemd-resolved.service"),
    *("dev-hugepages.mount", "sys-kernel-debug.mount", "systemd-tmpfiles-clean.timer"),
)


def check_machine() -> None:
    """Refuse a machine whose root file system cannot be the lower layer of the hosts.

    Raises:
        LabError: this is a chroot, or a part of the distribution is another file system, which an overlay
            does not follow.
    """
    if kernel.in_chroot():
        raise LabError(
            "not inside a chroot: whatever enters the lab's namespaces is outside of it again; use a virtual "
            "machine, a container, or unshare -m with pivot_root"
        )
    root = Path("/").stat().st_dev
    apart = [f"/{name}" for name in ("etc", "usr", "var") if Path("/", name).stat().st_dev != root]
    if apart:
        raise LabError(
            f"the lab's hosts are layers over this machine's root file system, and "
            f"{' and '.join(apart)} is a file system of its own; use --no-root here"
        )


@dataclass(slots=True)
class User:
    """One account; ``sudo`` is none, free or asks. Its password, where one is wanted, is "lab"."""

    name: str
    uid: int
    sudo: str


@dataclass(slots=True)
class Layer:
    """The writable layer of one root file system, filled before it is mounted."""

    upper: Path
    hostname: str
    services: list[str] = field(default_factory=list)

    def create(self, shown: str | None = None) -> None:
        """Make the layer: empty folders, identity, units; ``shown`` names one not to be emptied."""
        self.upper.mkdir(parents=True, exist_ok=True)
        self.upper.chmod(0o755)
        strangers = [
            entry.name
            for entry in Path("/").iterdir()
            if entry.is_dir() and not entry.is_symlink() and entry.name not in DISTRIBUTION
        ]
        for path in (*strangers, *EMPTY):
            if path != shown:
                self.empty(path)
        for path, mode in (("root", 0o700), ("tmp", 0o1777), ("var/tmp", 0o1777)):
            (self.upper / path).chmod(mode)
        for path in ("proc", "sys", "dev"):
            (self.upper / path).mkdir(exist_ok=True)
        machine_id = hashlib.sha256(f"lab {self.hostname}".encode()).hexdigest()[:32]
        self.put("etc/machine-id", machine_id + "\n")
        self.put("etc/hostname", self.hostname + "\n")
        for path in ("etc/fstab", "etc/resolv.conf", "etc/motd", "etc/environment", "etc/issue"):
            self.put(path, "")
        self._units()

    def _units(self) -> None:
        self.link("etc/systemd/system/default.target", "/usr/lib/systemd/system/multi-user.target")
        for unit in MASKED_UNITS:
            self.link(f"etc/systemd/system/{unit}", "/dev/null")
        for target, units in {**WANTED_UNITS, "multi-user.target": tuple(self.services)}.items():
            for unit in units:
                own = self.upper / "etc/systemd/system" / unit
                base = "/etc/systemd/system" if own.exists() else "/usr/lib/systemd/system"
                self.link(f"etc/systemd/system/{target}.wants/{unit}", f"{base}/{unit}")
        self.put(
            "etc/systemd/journald.conf.d/lab.conf",
            "[Journal]\nStorage=volatile\nRuntimeMaxUse=16M\nReadKMsg=no\n",
        )

    def empty(self, path: str) -> None:
        """Show an empty folder at ``path``, whatever the machine has there."""
        folder = self.upper / path
        folder.mkdir(parents=True, exist_ok=True)
        os.setxattr(folder, "trusted.overlay.opaque", b"y")

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write one file."""
        target = self.upper / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)

    def copy(self, source: Path, path: str, mode: int = 0o644) -> None:
        """Copy one file."""
        target = self.upper / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(mode)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link."""
        place = self.upper / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def add_users(self, users: list[User], authorized_key: str) -> None:
        """Let root and ``users`` log in with the client's key; give the users their kind of sudo."""
        passwd = Path("/etc/passwd").read_text()
        shadow = ["root:*:19000:0:99999:7:::"]
        shadow += [
            f"{line.split(':', 1)[0]}:*:19000:0:99999:7:::"
            for line in passwd.splitlines()
            if line and not line.startswith("root:")
        ]
        group = Path("/etc/group").read_text()
        homes = [("root", 0)]
        for user in users:
            passwd += f"{user.name}:x:{user.uid}:{user.uid}::/home/{user.name}:/bin/bash\n"
            group += f"{user.name}:x:{user.uid}:\n"
            shadow.append(f"{user.name}:{LAB_PASSWORD}:19000:0:99999:7:::")
            rule = "ALL" if user.sudo == "asks" else "NOPASSWD: ALL"
            if user.sudo != "none":
                self.put(f"etc/sudoers.d/{user.name}", f"{user.name} ALL=(ALL) {rule}\n", 0o440)
            homes.append((f"home/{user.name}", user.uid))
        self.put("etc/passwd", passwd)
        self.put("etc/group", group)
        self.put("etc/shadow", "\n".join(shadow) + "\n", 0o640)
        for home, uid in homes:
            self.put(f"{home}/.ssh/authorized_keys", authorized_key + "\n", 0o600)
            for part in (home, f"{home}/.ssh", f"{home}/.ssh/authorized_keys"):
                os.chown(self.upper / part, uid, uid)
                if part != f"{home}/.ssh/authorized_keys":
                    (self.upper / part).chmod(0o700)

    def add_sshd(self, key: Path) -> None:
        """Give the host its sshd, with its own key and the distribution's defaults otherwise."""
        self.copy(key, "etc/ssh/ssh_host_ed25519_key", 0o600)
        self.copy(key.with_name(key.name + ".pub"), "etc/ssh/ssh_host_ed25519_key.pub")
        self.put("etc/ssh/sshd_config", SSHD_CONFIG)
        self.put("etc/default/ssh", "SSHD_OPTS=\n")


SSHD_CONFIG = """\
HostKey /etc/ssh/ssh_host_ed25519_key
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PrintMotd no
AcceptEnv LANG LC_*
Subsystem sftp /usr/lib/openssh/sftp-server
"""


def mount_overlay(lower: str, upper: Path, work: Path, target: Path) -> None:
    """Mount ``upper`` over ``lower`` at ``target``."""
    for folder in (work, target):
        folder.mkdir(parents=True, exist_ok=True)
    kernel.mount(
        "overlay", target, "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work}"
    )
