"""Reading /proc: bytes in, values out. Absent is None; a process that vanishes meanwhile is no error."""

from __future__ import annotations

import os
import re  # json has it already

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PF_KTHREAD = 0x00200000
READ_BYTES = 1 << 16
# names of flags and variables whose value is a secret; of SGLang's also what argparse takes as short for them
SECRET = re.compile(
    r"(?i)(?:^|[-_])(?:token|secret|password|passwd|api[-_]?key|key)$|^--(?:admin-)?api|^--ssl-keyfile-p"
)


class Stat:
    """The fields of one /proc/PID/stat that identify a process and say how it is."""

    __slots__ = ("comm", "kernel_thread", "ppid", "session", "start_ticks", "state", "threads")

    def __init__(
        self,
        comm: str,
        state: str,
        ppid: int,
        session: int,
        start_ticks: int,
        threads: int,
        kernel_thread: bool,
    ) -> None:
        self.comm = comm
        self.state = state
        self.ppid = ppid
        self.session = session
        self.start_ticks = start_ticks
        self.threads = threads
        self.kernel_thread = kernel_thread


def text(data: bytes) -> str:
    """Return bytes of any encoding as text that turns into the same bytes again."""
    return data.decode("utf-8", "surrogateescape")


def read(path: str) -> bytes | None:
    """Return a file's bytes, or None when it is not there or not ours to read.

    Tables of many records (net/tcp, maps) come in reads of less than a page each; only an empty one ends.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    parts: list[bytes] = []
    try:
        while not parts or parts[-1]:
            parts.append(os.read(fd, READ_BYTES))
    except OSError:
        return None
    finally:
        os.close(fd)
    return b"".join(parts)


def read_record(path: str) -> bytes | None:
    """Return one of the files of a process that the kernel gives in a single read, as ``read`` does."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        data = os.read(fd, READ_BYTES)
    except OSError:
        return None
    finally:
        os.close(fd)
    return data if len(data) < READ_BYTES else read(path)


def readlink(path: str) -> str | None:
    """Return a link's target as text, or None when it is not there or not ours to read."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def parse_stat(data: bytes) -> Stat | None:
    """Return one /proc/PID/stat, None when it is damaged.

    The name may hold blanks and brackets: what follows the last ")" counts.

    Source: proc(5), fields 2, 3, 4, 6, 22, 20 and 9; PF_KTHREAD is in include/linux/sched.h.
    """
    open_at, close_at = data.find(b"("), data.rfind(b")")
    fields = data[close_at + 2 :].split()
    if open_at < 0 or close_at < open_at or len(fields) < 20:
        return None
    comm = text(data[open_at + 1 : close_at])
    state = fields[0].decode()
    kernel_thread = bool(int(fields[6]) & PF_KTHREAD)
    numbers = (int(fields[1]), int(fields[3]), int(fields[19]), int(fields[17]))
    return Stat(comm, state, *numbers, kernel_thread)


def parse_status(data: bytes) -> tuple[int | None, tuple[int, ...]]:
    """Return ``(uid, ns_pids)`` of one /proc/PID/status: the effective uid, and NSpid outermost first."""
    uid: int | None = None
    ns_pids: tuple[int, ...] = ()
    at = data.find(b"\nUid:")
    if at >= 0:
        uid = int(data[at + 5 : data.find(b"\n", at + 5)].split()[1])
    at = data.find(b"\nNSpid:")
    if at >= 0:
        ns_pids = tuple(int(word) for word in data[at + 7 : data.find(b"\n", at + 7)].split())
    return uid, ns_pids


def parse_cgroup(data: bytes) -> str:
    """Return the unified path, else the longest of the v1 paths ("" for none)."""
    best = ""
    for line in text(data).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers and path != "/":
            return path
        if len(path) > len(best):
            best = path
    return best


def parse_argv(data: bytes) -> list[str]:
    """Return argv; a title written over it (setproctitle) is one element."""
    words = text(data.rstrip(b"\0")).split("\0")
    return [] if words == [""] else words


def command_line(argv: list[str], width: int) -> str:
    """Return argv as text that may be kept and shown: values of keys, tokens and passwords are hidden."""
    words: list[str] = []
    hides_next = False
    for word in argv:
        name, equals, _ = word.partition("=")
        secret = bool(SECRET.search(name)) and (name.startswith("-") or bool(equals))
        words.append("***" if hides_next else name + "=***" if secret and equals else word)
        hides_next = secret and not equals and not hides_next
    return " ".join(words)[:width]


def unit_of(cgroup: str) -> str | None:
    """Return the innermost systemd unit in a cgroup path, None when there is none."""
    for part in reversed(cgroup.split("/")):
        if part.endswith((".service", ".scope")):
            return part
    return None


def pids() -> list[int]:
    """Return all pids of this namespace, ascending."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def boot_id() -> str:
    """Return the kernel's boot id: it names one running kernel, in each of its containers."""
    return text(read("/proc/sys/kernel/random/boot_id") or b"").strip()


def read_stat(pid: int) -> Stat | None:
    """Return what ``parse_stat`` reads of one process, None when there is no such process."""
    return parse_stat(read_record("/proc/%d/stat" % pid) or b"")


def living_face(pid: int, stat: Stat) -> tuple[str, str]:
    """Return the folder that shows a process, and its true state.

    A process whose first thread has exited while others run reads as a zombie without argv or descriptors,
    and still holds its memory (seen on Linux 6.18): then one of the living threads shows it.
    """
    base = "/proc/%d/" % pid
    if stat.state not in "ZX" or stat.threads < 2:
        return base, stat.state
    try:
        tids = os.listdir(base + "task")
    except OSError:
        return base, stat.state
    for tid in tids:
        thread = parse_stat(read(base + "task/" + tid + "/stat") or b"")
        if thread is not None and thread.state not in "ZX":
            return base + "task/" + tid + "/", thread.state
    return base, stat.state


def start_ticks(pid: int) -> int | None:
    """Return when the process started, in ticks since boot, None when there is no such process."""
    stat = read_stat(pid)
    return stat.start_ticks if stat else None


def runtime_directory() -> str:
    """Return this user's folder for what lives until the next boot: /run/opsctl as root, else its own."""
    if os.geteuid() == 0:
        return "/run/opsctl"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isabs(runtime):
        return os.path.join(runtime, "opsctl")
    return os.path.join(os.path.expanduser("~"), ".cache", "opsctl", "run")
