"""The process that talks to NVML: started, asked with a deadline, given up when it hangs."""

from __future__ import annotations

import errno
import marshal
import os
import select
import sys
import threading
import time
import zlib

from opsctl.agent.ops import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

MAX_STUCK = 2  # children that hang in the driver and cannot even be killed

# pynvml imports ctypes.util and string for one function each (which it calls on Windows only, and for
# names of errors); with their own imports they are half of the child's start, so they get stand-ins.
CHILD = """\
import marshal,os,sys,types,zlib
os.umask(0o77)
i,o=os.dup(0),os.dup(1)
os.dup2(2,1)
def read(n):
 b=b""
 while len(b)<n:
  c=os.read(i,n-len(b))
  if not c: os._exit(0)
  b+=c
 return b
def receive(): return marshal.loads(read(int(read(10))))
def reply(value):
 data=marshal.dumps(value)
 data=b"%10d"%len(data)+data
 while data: data=data[os.write(o,data):]
def module(name,code):
 made=types.ModuleType(name)
 sys.modules[name]=made
 exec(code,made.__dict__)
 return made
def stand_in(name,**items):
 made=types.ModuleType(name)
 made.__dict__.update(items)
 sys.modules[name]=made
stand_in("ctypes.util",find_library=None)
stand_in("string",capwords=lambda s,sep: sep.join(w.capitalize() for w in s.split(sep)))
first=receive()
codes=first["code"] and marshal.loads(first["code"])
if not codes:
 codes=[compile(first[name],name,"exec") for name in ("pynvml","nvml")]
 data=marshal.dumps(codes)
 try:
  temporary=first["cache"]+".%d"%os.getpid()
  with open(temporary,"xb") as f: f.write(b"%12d"%zlib.crc32(data)+data)
  os.replace(temporary,first["cache"])
 except OSError: pass
module("pynvml",codes[0])
module("nvml",codes[1]).main(receive,reply)
"""


class Hung(Exception):
    """NVML did not answer in time; its process was given up."""


class Child:
    """The process that talks to NVML; made by exec, so no descriptor of the agent (a lock) lives on in it."""

    def __init__(self, sources: dict[str, Any]) -> None:
        self._lock = threading.Lock()
        self._sources = sources
        self._stuck: list[int] = []
        self._pid = 0
        self._in = self._out = -1

    @property
    def pid(self) -> int:
        """The child's pid, 0 while there is none; it has the devices open itself."""
        return self._pid

    def ask(self, message: tuple[Any, ...], timeout_s: float) -> dict[str, Any]:
        """Return the child's answer.

        Raises:
            Hung: nothing within ``timeout_s``, or earlier calls still hang.
        """
        with self._lock:
            deadline = time.monotonic() + timeout_s
            try:
                if not self._pid:
                    self._start()
                self._write(message)
                size = int(self._read(10, deadline))
                answer: dict[str, Any] = marshal.loads(self._read(size, deadline))
                return answer
            except BaseException:
                self._give_up()
                raise

    def _start(self) -> None:
        self._stuck = [pid for pid in self._stuck if not collected(pid)]
        if len(self._stuck) >= MAX_STUCK:
            raise Hung("%d earlier calls still hang in the driver" % len(self._stuck))
        in_read, self._in = os.pipe()
        self._out, out_write = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, in_read, 0), (os.POSIX_SPAWN_DUP2, out_write, 1)]
        argv = [sys.executable, "-I", "-S", "-c", CHILD]
        self._pid = os.posix_spawn(sys.executable, argv, os.environ, file_actions=actions)
        os.close(in_read)
        os.close(out_write)
        self._write(self._sources)

    def _write(self, message: Any) -> None:
        data = marshal.dumps(message)
        view = memoryview(b"%10d" % len(data) + data)
        while view:
            view = view[os.write(self._in, view) :]

    def _read(self, size: int, deadline: float) -> bytes:
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        data = b""
        while len(data) < size:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                raise Hung("NVML gave no answer in time")
            part = os.read(self._out, size - len(data))
            if not part:
                raise OSError(errno.EPIPE, "the process that asks NVML ended (%s)" % self._ending())
            data += part
        return data

    def _ending(self) -> str:
        try:
            _, status = os.waitpid(self._pid, 0)
        except ChildProcessError:
            return "unknown"
        self._pid = 0
        signal = status & 0x7F
        return "signal %d" % signal if signal else "exit %d" % (status >> 8)

    def _give_up(self) -> None:
        """Kill the child; one that hangs in the driver stays, and is counted."""
        for fd in (self._in, self._out):
            if fd >= 0:
                os.close(fd)
        self._in = self._out = -1
        if self._pid:
            os.kill(self._pid, 9)
            time.sleep(0.02)
            if not collected(self._pid):
                self._stuck.append(self._pid)
        self._pid = 0


def collected(pid: int) -> bool:
    """Collect a child that has ended; tell whether it has."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def child(context: Context) -> Child:
    """Return the agent's one child; its code comes from the cache, or from the client."""
    if "nvml" not in context.held:
        path = code_path(context)
        code = cached(path)
        if code is None:
            drop_older(path)
        sources = {
            "nvml": None if code else context.resource("opsctl.agent.nvml"),
            "pynvml": None if code else context.resource("pynvml"),
            "code": code,
            "cache": path,
        }
        context.held.setdefault("nvml", Child(sources))
    kept: Child = context.held["nvml"]
    return kept


def code_path(context: Context) -> str:
    return cache_path(context.digest("pynvml"), context.digest("opsctl.agent.nvml"))


def cache_path(*digests: str) -> str:
    """Return where the compiled code of these two sources is kept for this Python."""
    name = "nvml-%s.%s" % ("-".join(one[:12] for one in digests), sys.implementation.cache_tag)
    return os.path.join(procfs.runtime_directory(), name)


def cached(path: str) -> bytes | None:
    """Return code that was compiled before, None unless it is whole and nobody but we could write it."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with open(fd, "rb") as file:
        stat = os.fstat(fd)
        if stat.st_uid != os.geteuid() or stat.st_mode & 0o022:
            return None
        data = file.read()
    whole = data[:12].strip().isdigit() and int(data[:12]) == zlib.crc32(data[12:])
    return data[12:] if whole else None


def drop_older(path: str) -> None:
    """Remove the code of other versions: the folder holds one per Python."""
    folder, tail = os.path.dirname(path), os.path.splitext(path)[1]
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        if name.startswith("nvml-") and name.endswith(tail):
            try:
                os.unlink(os.path.join(folder, name))
            except OSError:
                pass


def library_is_missing(context: Context) -> bool:
    """Tell whether this host has no NVIDIA library at all: most of a fleet's hosts need no more than that.

    Where it had one before, the child says whether it still has: looking costs this process 8 ms.
    """
    if "nvml" in context.held or os.path.exists(code_path(context)):
        return False
    import ctypes

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return "cannot open shared object file: No such file" in str(error)
    return False


def ask(context: Context, message: tuple[Any, ...], timeout_s: float) -> dict[str, Any]:
    """Ask NVML; a hang and a crash of its process are states like any other."""
    if library_is_missing(context):
        return {"state": "no-library", "detail": "there is no libnvidia-ml.so.1", "gpus": []}
    try:
        return child(context).ask(message, timeout_s)
    except Hung as problem:
        return {"state": "timeout", "detail": "%s (%.1f s)" % (problem, timeout_s), "gpus": []}
    except OSError as problem:
        return {"state": "error", "detail": problem.strerror or str(problem), "gpus": []}
