"""One lab: its name, its folders, its lock, and the record of what is up."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

from tests.lab import processes
from tests.lab.errors import LabError

CHECKOUT = Path(__file__).resolve().parents[2]
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

BUILT_BY = (
    *("access", "api", "build", "fleet", "gpus", "hosts", "keeper", "kernel", "kmsg", "lifecycle"),
    *("rootfs", "rootless", "site", "software"),
)
INSTALLED = ("node", "nvml", "standin")


@dataclass(slots=True)
class Record:
    """What is up. Written as "building" first and as "ready" last, so that a cut `up` shows."""

    phase: str
    mode: str  # hosts, fleet, no-root
    boot_id: str
    keeper_pid: int | None = None
    keeper_ticks: int | None = None
    fleet: int = 0
    sshd_port: int | None = None  # these three: no-root
    sshd_pid: int | None = None
    sshd_ticks: int | None = None
    seconds: float | None = None
    sources: str = ""  # hash of the lab's own code; another one means: build anew
    missing: list[str] = field(default_factory=list)  # what this mode lacks, in words


@dataclass(frozen=True, slots=True)
class Instance:
    """The names and places that belong to one lab; two instances share none of them."""

    name: str
    dir: Path  # state, removed by `down`
    cache: Path  # survives `down`: the compiled NVML library, environments for the hosts

    @property
    def keys(self) -> Path:
        return self.dir / "home" / ".ssh"

    @property
    def home(self) -> Path:
        """HOME of programs that run in the lab, with its own .ssh."""
        return self.dir / "home"

    @property
    def gpu_dirs(self) -> Path:
        return self.dir / "gpu"

    @property
    def run_dir(self) -> Path:
        """A tmpfs that exists only in the lab's mount namespace: root file systems of the hosts."""
        return self.dir / "run"

    @property
    def log_dir(self) -> Path:
        return self.dir / "log"

    @property
    def site_file(self) -> Path:
        """The tidy site file, which a program in the lab finds in OPSCTL_SITE."""
        return self.dir / "opsctl.yaml"

    @property
    def corners_file(self) -> Path:
        """The site file with the odd corners: hosts that refuse, a stopped container, wrong GPUs."""
        return self.dir / "corners.yaml"

    @property
    def bin_dir(self) -> Path:
        """Programs that are on PATH in the lab: this checkout's opsctl."""
        return self.dir / "bin"

    @property
    def api_file(self) -> Path:
        """The site file that reaches the node through its API."""
        return self.dir / "api.yaml"

    @property
    def ssh_config(self) -> Path:
        return self.keys / "config"

    @property
    def cgroup(self) -> str:
        """Top cgroup of the lab in every hierarchy; the path's hash keeps two checkouts apart."""
        return f"opsctl-{self.name}-{hashlib.sha256(str(self.dir).encode()).hexdigest()[:6]}"

    @property
    def _record_file(self) -> Path:
        return self.dir / "state.json"

    def read_record(self) -> Record | None:
        """Return what is written down, whether or not it still runs."""
        try:
            return Record(**json.loads(self._record_file.read_text()))
        except (FileNotFoundError, json.JSONDecodeError, TypeError):
            return None

    def write_record(self, record: Record) -> None:
        """Write the record in one piece."""
        self.dir.mkdir(parents=True, exist_ok=True)
        temporary = self._record_file.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(record), indent=1))
        temporary.replace(self._record_file)

    def ready_record(self) -> Record | None:
        """Return the record if the lab is up and whole, else None."""
        record = self.read_record()
        if record is None or record.phase != "ready" or record.boot_id != read_boot_id():
            return None
        if self.is_inside():
            return record
        for pid, ticks in (
            (record.keeper_pid, record.keeper_ticks),
            (record.sshd_pid, record.sshd_ticks),
        ):
            if pid is not None and not processes.is_alive(pid, ticks):
                return None
        return record

    def is_inside(self) -> bool:
        """Say whether this process already runs inside this lab's namespaces."""
        return os.environ.get("OPSCTL_LAB_INSIDE") == str(self.dir)

    @contextlib.contextmanager
    def locked(self, why: str) -> Iterator[None]:
        """Hold the instance's lock; a second caller is refused with one sentence naming the first.

        The lock is the kernel's, so it is free again when its holder dies, however it dies. Its file
        goes when the lab is down.
        """
        self.dir.parent.mkdir(parents=True, exist_ok=True)
        with self._locked_file() as file:
            clock = time.strftime("%H:%M:%S")
            file.truncate(0)
            file.write(f"pid {os.getpid()} runs `{why}` since {clock} ({' '.join(sys.argv)})\n")
            file.flush()
            try:
                yield
            finally:
                if not self.dir.exists():
                    self._lock_path.unlink(missing_ok=True)

    @property
    def _lock_path(self) -> Path:
        return self.dir.parent / f"{self.name}.lock"

    @contextlib.contextmanager
    def _locked_file(self) -> Iterator[TextIO]:
        while True:
            with self._lock_path.open("a+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    file.seek(0)
                    raise LabError(f"the lab {self.name} is busy: {file.read().strip()}") from None
                try:
                    current = self._lock_path.stat().st_ino
                except FileNotFoundError:
                    continue
                if current == os.fstat(file.fileno()).st_ino:  # else its last holder removed it
                    yield file
                    return


def hash_sources() -> str:
    """Return a hash of what the hosts are made of, so that `up` after a change builds them anew."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    files = [here / f"{name}.py" for name in BUILT_BY]
    files += [path for folder in INSTALLED for path in (here / folder).rglob("*")]
    for path in sorted(files):
        if path.suffix in (".py", ".c", ".h", ".json"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def read_boot_id() -> str:
    """Return the boot id of this kernel."""
    return BOOT_ID.read_text().strip()


def find_instance(name: str | None = None) -> Instance:
    """Return the instance that the environment names.

    ``OPSCTL_LAB`` is its name (default opsctl-lab), ``OPSCTL_LAB_DIR`` the folder that holds the
    labs (default .lab of the checkout), ``OPSCTL_LAB_CACHE`` what survives `down` and is shared by all
    checkouts (default /var/cache/opsctl-lab; without root ~/.cache/opsctl-lab).
    """
    chosen = name or os.environ.get("OPSCTL_LAB") or "opsctl-lab"
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", chosen):
        raise LabError(f"OPSCTL_LAB={chosen!r}: use up to 31 of a-z, 0-9 and -")
    parent = Path(os.environ.get("OPSCTL_LAB_DIR") or CHECKOUT / ".lab").resolve()
    return Instance(chosen, parent / chosen, _cache().resolve())


def _cache() -> Path:
    chosen = os.environ.get("OPSCTL_LAB_CACHE")
    if chosen:
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/var/cache/opsctl-lab")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opsctl-lab"
