"""Keep one server where there is no systemd: python3 -I -S supervise.py RUN_DIR.

Standard library only, Python 3.8, sent to the host and executed there as a program of its own: it outlives
the agent, the ssh connection and the terminal. It reads RUN_DIR/spec.json, starts the server in a session of
its own with all three streams away from us, writes RUN_DIR/run.json (who it is) as soon as the exec has
succeeded, and RUN_DIR/exit.json (how it ended) whatever happens. Both appear whole or not at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pwd
import resource
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

PR_SET_CHILD_SUBREAPER = (
    36  # prctl(2): orphans of the server come to us, not to pid 1, and keep their tree
)


def read_start_ticks(pid: int) -> int:
    """Return field 22 of /proc/PID/stat; the name may hold blanks and brackets, so cut at the last one."""
    with open("/proc/%d/stat" % pid) as stat:
        text = stat.read()
    return int(text[text.rindex(")") + 2 :].split()[19])


def read_boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as boot:
        return boot.read().strip()


def write_whole(path: str, body: dict[str, Any]) -> None:
    """Write a JSON file that a reader sees whole or not at all, also after a power cut."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "w") as out:
        json.dump(body, out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def become(user: str) -> None:
    """Give root up for good, groups first."""
    entry = pwd.getpwnam(user)
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


def raise_descriptor_limit(wanted: int) -> None:
    """Set RLIMIT_NOFILE to what is wanted, or to the hard limit where that may not be raised."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or wanted <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
    except (ValueError, OSError):  # not root, or a container without CAP_SYS_RESOURCE
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def exec_server(spec: dict[str, Any], log: int, failed: int) -> NoReturn:
    """In the child: limits, user, folder, streams, exec. What goes wrong is written to ``failed``."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        raise_descriptor_limit(spec["nofile"])
        if os.geteuid() == 0:
            with contextlib.suppress(ValueError, OSError):  # a container may forbid it
                resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY,) * 2)
        os.umask(0o022)
        if spec.get("user"):
            become(spec["user"])
        os.chdir(spec.get("cwd") or "/")
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except (OSError, KeyError, ValueError) as error:
        os.write(failed, ("%s: %s" % (type(error).__name__, error)).encode()[:4000])
    os._exit(127)


def keep(run_dir: str, spec: dict[str, Any]) -> int:
    """Start the server, say who it is, wait for its end and for that of everything it leaves behind."""
    log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    reading, writing = os.pipe()  # close-on-exec: it reads as ended when the exec has succeeded
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        exec_server(spec, log, writing)
    os.close(writing)
    os.close(log)
    problem = b""
    while True:
        piece = os.read(reading, 4096)
        if not piece:
            break
        problem += piece
    os.close(reading)
    identity = {"run": spec["run"], "pid": pid, "boot_id": read_boot_id(), "at_s": time.time()}
    if problem:
        os.waitpid(pid, 0)
        identity["error"] = problem.decode(errors="replace")
        write_whole(os.path.join(run_dir, "exit.json"), identity)
        return 1
    identity.update(start_ticks=read_start_ticks(pid), supervisor_pid=os.getpid())
    try:
        write_whole(os.path.join(run_dir, "run.json"), identity)
    except OSError:
        end_unrecorded(pid)
        raise
    signal.signal(signal.SIGTERM, lambda number, frame: forward(pid))
    wait_for_all(run_dir, pid)
    return 0


def end_unrecorded(pid: int) -> None:
    """End a server that cannot be written down: nobody would know of it, and the launch counts as failed.

    It leads a session of its own with all that it has started so far, and is not collected yet.
    """
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def forward(pid: int) -> None:
    """Hand a TERM on to the server; it is ours and not collected yet, so the pid is its own."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def wait_for_all(run_dir: str, pid: int) -> None:
    """Collect every child; the server's own end is written down at once."""
    while True:
        try:
            ended, status, usage = os.wait3(0)
        except ChildProcessError:
            return
        if ended != pid:
            continue
        body = {
            "pid": pid,
            "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "core_dumped": os.WCOREDUMP(status),
            "max_rss_bytes": usage.ru_maxrss * 1024,
            "at_s": time.time(),
        }
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        write_whole(os.path.join(run_dir, "exit.json"), body)


def main(argv: list[str]) -> int:
    """Detach, then keep the server."""
    run_dir = argv[1]
    if os.fork():
        os._exit(0)  # the agent collects this one at once; the other belongs to pid 1
    os.setsid()
    os.chdir("/")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with open(os.path.join(run_dir, "spec.json")) as spec_file:
        spec = json.load(spec_file)
    os.unlink(os.path.join(run_dir, "spec.json"))  # it held the environment, secrets included
    try:
        return keep(run_dir, spec)
    except OSError as error:  # the log's disk is full, the folder is read-only, no more processes
        body = {"run": spec["run"], "error": "%s" % error, "at_s": time.time()}
        write_whole(os.path.join(run_dir, "exit.json"), body)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
