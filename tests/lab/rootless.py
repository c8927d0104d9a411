"""The lab without root: this machine as the only host, lab GPUs, and an sshd of this user."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import time

from tests.lab import access, gpus, kernel, nvml, packages, site
from tests.lab.errors import LabError
from tests.lab.instance import Instance, Record, hash_sources, read_boot_id

SSHD = "/usr/sbin/sshd"
MISSING = [
    "containers: no pve1, gpu1, ct129 or pct, so nothing of Proxmox and no second machine",
    "a network of its own: it uses 127.0.0.1, and programs see this machine's processes",
    "/dev/nvidia* and /proc/driver/nvidia: holders of GPU memory are seen through NVML only",
    "sudo, other users, fleets",
]


def gpu_environment(instance: Instance) -> dict[str, str]:
    """Return what a program needs to see the lab's GPUs through NVML."""
    library = str(nvml.compiled_library(instance).parent)
    paths = [library, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(paths),
        "NVML_LAB_DIR": str(instance.gpu_dirs / "here"),
        "PATH": os.pathsep.join([str(instance.bin_dir), os.environ.get("PATH", "")]),
    }


def up(instance: Instance) -> Record:
    """Bring the lab without root up, or return the one that is up.

    Raises:
        LabError: a lab of another kind is up under this name, or there is no C compiler.
    """
    from tests.lab import lifecycle

    with instance.locked("up --no-root"):
        record = instance.ready_record()
        if record and (record.mode, record.sources) == ("no-root", hash_sources()):
            return record
        if record and record.mode != "no-root":
            raise LabError(
                f"the lab {instance.name} is up in mode {record.mode}; take it down first, "
                "or choose another OPSCTL_LAB"
            )
        lifecycle.tear_down(instance)
        started = time.monotonic()
        record = Record("building", "no-root", read_boot_id(), sources=hash_sources())
        record.missing = list(MISSING)
        instance.write_record(record)
        instance.cache.mkdir(parents=True, exist_ok=True)
        instance.log_dir.mkdir(exist_ok=True)
        gpus.create(instance.gpu_dirs / "here", "here")
        nvml.compiled_library(instance)
        _install_nvidia_smi(instance)
        user = pwd.getpwuid(os.getuid())
        if os.path.exists(SSHD):
            access.make_client_key(instance)
            _start_sshd(instance, record, user)
        else:
            lacking = ", ".join(packages.missing(packages.ROOTLESS))
            record.missing.append(f"sshd: not installed ({lacking}); the local transport only")
        instance.site_file.write_text(site.rootless_site(instance, user.pw_name, record.sshd_port))
        record.phase, record.seconds = "ready", round(time.monotonic() - started, 1)
        instance.write_record(record)
        return record


def _install_nvidia_smi(instance: Instance) -> None:
    tools = instance.bin_dir
    tools.mkdir(exist_ok=True)
    source = os.path.join(os.path.dirname(__file__), "node", "nvidia_smi.py")
    (tools / "nvidia-smi").symlink_to(source)


def _start_sshd(instance: Instance, record: Record, user: pwd.struct_passwd) -> None:
    """Start an sshd of this user on a free port of 127.0.0.1."""
    if os.path.basename(user.pw_shell) in ("nologin", "false"):
        record.missing.append(f"sshd: the shell of {user.pw_name} is {user.pw_shell}")
        return
    port = _free_port()
    host = access.SshHost("me", ("127.0.0.1",), port, user.pw_name)
    access.write_client_files(instance, [host])
    authorized = instance.keys / "authorized_keys"
    authorized.write_text((instance.keys / "id_ed25519.pub").read_text())
    environment = " ".join(
        f'"{name}={value}"' for name, value in gpu_environment(instance).items() if name != "PATH"
    )
    config = instance.dir / "sshd_config"
    config.write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {access.host_key(instance, 'me')}\n"
        f"PidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\n"
        f"KbdInteractiveAuthentication no\nAuthorizedKeysFile {authorized}\nPrintMotd no\n"
        f"SetEnv {environment}\nSubsystem sftp internal-sftp\n"
    )
    log = instance.log_dir / "sshd.log"
    with log.open("ab") as file:
        process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    record.sshd_port, record.sshd_pid = port, process.pid
    record.sshd_ticks = kernel.start_ticks(process.pid)
    instance.write_record(record)
    deadline = time.monotonic() + 10
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            words = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise LabError(f"sshd does not start: {' '.join(words)}")
        time.sleep(0.02)
    process.returncode = 0  # it goes on without us; Popen need not warn


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.settimeout(2)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def stop(record: Record) -> None:
    """End the lab's sshd, if it is still ours."""
    if record.sshd_pid is None or kernel.start_ticks(record.sshd_pid) != record.sshd_ticks:
        return
    os.kill(record.sshd_pid, signal.SIGTERM)
    deadline = time.monotonic() + 5
    while kernel.start_ticks(record.sshd_pid) == record.sshd_ticks:
        if time.monotonic() > deadline:
            os.kill(record.sshd_pid, signal.SIGKILL)
            return
        _reap(record.sshd_pid)
        time.sleep(0.02)


def _reap(pid: int) -> None:
    """Collect ``pid`` if it is a child of this process (the lab came up in it)."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
