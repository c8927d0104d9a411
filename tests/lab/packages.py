"""The Debian packages of the lab: looked for by file, installed when root, else named."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.lab.errors import LabError

# package -> a file that proves it is there
NEEDED = {
    "openssh-server": "/usr/sbin/sshd",
    "openssh-client": "/usr/bin/ssh-keygen",
    "openssh-sftp-server": "/usr/lib/openssh/sftp-server",
    "lxc": "/usr/bin/lxc-start",
    "uidmap": "/usr/bin/newuidmap",
    "tini": "/usr/bin/tini",
    "iproute2": "/usr/sbin/ip",
    "sudo": "/usr/bin/sudo",
    "procps": "/usr/bin/ps",
    "psmisc": "/usr/bin/fuser",
    "systemd": "/usr/lib/systemd/systemd",
    "dbus": "/usr/bin/dbus-daemon",
    "python3": "/usr/bin/python3",
    "util-linux": "/usr/bin/nsenter",
}
COMPILER = {"gcc": "/usr/bin/gcc", "libc6-dev": "/usr/include/stdio.h"}
ROOTLESS = {"openssh-server": "/usr/sbin/sshd", **COMPILER}
# systemd's package makes it as it is configured (252: tmpfiles.d/provision.conf)
KEYS = Path("/root/.ssh")


def missing(needed: dict[str, str]) -> list[str]:
    """Return the packages whose file is not there."""
    merged = needed if needed is ROOTLESS else {**needed, **COMPILER}
    return [name for name, file in merged.items() if not Path(file).exists()]


def install(needed: dict[str, str]) -> None:
    """Install what is missing with apt-get, saying so first.

    Raises:
        LabError: this is not a Debian-like machine, or the installation failed.
    """
    with _one_at_a_time:
        _install(needed)


_one_at_a_time = threading.Lock()  # apt-get refuses a second one; here it waits


def _install(needed: dict[str, str]) -> None:
    wanted = missing(needed)
    if not wanted:
        return
    if shutil.which("apt-get") is None:
        raise LabError(
            f"the lab needs {', '.join(wanted)}, and there is no apt-get to install them"
        )
    print(f"lab: installing Debian packages: {' '.join(wanted)}", file=sys.stderr, flush=True)
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    with _home_as_it_was():
        _apt_get(apt, wanted, needed)


@contextlib.contextmanager
def _home_as_it_was() -> Iterator[None]:
    """Take the folder for keys away again that a package makes in root's home, unless something is in it."""
    had = os.path.lexists(KEYS)
    try:
        yield
    finally:
        if not had:
            with contextlib.suppress(OSError):
                KEYS.rmdir()


def _apt_get(apt: list[str], wanted: list[str], needed: dict[str, str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install_argv = [*apt, "install", "-y", "--no-install-recommends", *wanted]
    mend = ["dpkg", "--configure", "-a"]  # an installation that was cut
    for argv in (mend, install_argv, [*apt, "update"], install_argv):
        done = subprocess.run(
            argv,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if not missing(needed) and done.returncode == 0:
            return
    words = " / ".join(done.stderr.strip().splitlines()[-2:])
    raise LabError(f"apt-get could not install {' '.join(missing(needed))}: {words}")
