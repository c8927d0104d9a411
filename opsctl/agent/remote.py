"""The agent's core: it runs on the host, gets this source over stdin, measures and signals, decides nothing.

Standard library only, Python 3.8 or newer. The client (``client.py``) starts it with ``BOOT`` and speaks JSON
objects with it, one per line:

- to the agent: ``{"load": NAME, "z": base64 of zlib}`` a module or a resource (or only its ``"digest"``: it
  can be asked for with ``{"need": NAME}``); a module comes compiled where both sides run the same Python;
  ``{"id", "op", "module", "request", "timeout_s"}`` an operation; ``{"cancel": ID}``; ``{"ping": ID}``.
- from the agent, after one marker line: ``{"protocol": 1, "id", "ok": true, "facts": {...}}``, or ``"ok":
  false, "error": {"kind", "detail"}``; ``{"id", "event": {...}}`` during an operation; ``{"pong": ID}``.

It ends when its stdin ends, and when no frame came for ``silence_s``: a client that stood still must find
that its agent is gone and its locks are free. What is in hand then is finished first; nothing new is begun.
"""

from __future__ import annotations

import binascii
import json
import marshal
import os
import select
import sys
import threading
import time
import types
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any, NoReturn

PROTOCOL = 1
FINISH_S = 10.0  # how long an operation in hand may take to finish after the end was seen
FETCH_S = 10.0
PING, PONG = b'{"ping":', b'{"pong":'
READ_BYTES = 1 << 16  # larger ones are mapped anew for each read, which costs 13 microseconds
CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def clock_s() -> float:
    """Return seconds that go on while the host is suspended."""
    return time.clock_gettime(CLOCK) if CLOCK is not None else time.monotonic()


class Error(Exception):
    """A named failure of an operation: ``kind`` for programs, ``detail`` for people."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class Cancelled(threading.Event):
    """Set when the call was withdrawn, when its time is up, and when the client went silent.

    The clock is looked at each time, so an agent that stood still in the middle of an operation knows.
    """

    def __init__(self, agent: Agent, deadline_s: float) -> None:
        super().__init__()
        self._agent = agent
        self._deadline_s = deadline_s

    def is_set(self) -> bool:
        return super().is_set() or clock_s() > self._deadline_s or self._agent.is_silent()

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(timeout) or self.is_set()


class Context:
    """What an operation gets besides its request; ``cancelled`` is asked before everything irrevocable."""

    Error = Error

    def __init__(self, agent: Agent, request_id: int, timeout_s: float) -> None:
        self._agent = agent
        self._id = request_id
        self.cancelled = Cancelled(agent, clock_s() + timeout_s)

    def emit(self, event: dict[str, Any]) -> None:
        """Send one event to the caller of this operation."""
        self._agent.send({"id": self._id, "event": event})

    def resource(self, name: str) -> bytes:
        """Return a file that the client sends along under ``name``, asking for it where it has not."""
        return self._agent.fetch(name)

    def digest(self, name: str) -> str:
        """Return the sha256 of a resource, which need not have been sent."""
        return self._agent.digests[name]

    @property
    def held(self) -> dict[str, Any]:
        """What operations keep between calls of this agent (locks, a child process), by name."""
        return self._agent.held


class Agent:
    """Reads frames, runs each operation in a thread, and watches that the client still lives."""

    def __init__(self, marker: str, silence_s: float, stdin: int, stdout: int) -> None:
        self.digests: dict[str, str] = {}
        self._resources: dict[str, bytes] = {}
        self._arrived = threading.Condition()
        self.held: dict[str, Any] = {}
        self._silence_s = silence_s
        self._in, self._out = stdin, stdout
        self._poll = select.poll()
        self._poll.register(stdin, select.POLLIN)
        self._write_lock = threading.Lock()
        self._running: dict[int, tuple[Context, threading.Thread]] = {}
        self._operations: dict[str, dict[str, Any]] = {}
        self._load_errors: dict[str, str] = {}
        self._last_frame_s = clock_s()
        self._ended = False
        self._write(("\n%s\n" % marker).encode())
        self.send({"protocol": PROTOCOL, "hello": self._hello()})

    def send(self, frame: dict[str, Any]) -> None:
        self._write(json.dumps(frame, separators=(",", ":")).encode("ascii") + b"\n")

    def fetch(self, name: str) -> bytes:
        """Return a resource, waiting for it where it must still be sent; called by operations only."""
        with self._arrived:
            if name not in self._resources:
                self.send({"need": name})
                self._arrived.wait_for(lambda: name in self._resources, FETCH_S)
            if name not in self._resources:
                raise Error("no-resource", "the client did not send %s" % name)
            return self._resources[name]

    def serve(self) -> None:
        """Read frames until the end of stdin or of the client's life."""
        threading.Thread(target=self._watch_silence, daemon=True).start()
        buffer = b""
        while True:
            data = self._read()
            if not data or self.is_silent():
                return
            self._last_frame_s = clock_s()
            if not buffer and data.startswith(PING) and data.find(b"\n") == len(data) - 1:
                self._write(PONG + data[len(PING) :])  # the heartbeat, as lightly as can be
                continue
            lines = (buffer + self._read_rest(data)).split(b"\n")
            buffer = lines.pop()
            self._handle([json.loads(line) for line in lines if line])

    def _read(self) -> bytes:
        try:
            return os.read(self._in, READ_BYTES)
        except OSError:
            return b""

    def _read_rest(self, data: bytes) -> bytes:
        """Return everything that has arrived, so that a withdrawal is seen before what it withdraws."""
        parts = [data]
        while parts[-1] and self._poll.poll(0):
            parts.append(self._read())
        return b"".join(parts)

    def finish(self) -> None:
        """Begin nothing new, let what is in hand come to its end, within bounds."""
        self._ended = True
        deadline = time.monotonic() + FINISH_S
        for context, _ in list(self._running.values()):
            context.cancelled.set()
        for _, thread in list(self._running.values()):
            thread.join(max(0.0, deadline - time.monotonic()))

    def leave(self) -> NoReturn:
        """Finish, and end the process: its locks are free then, its child process gets end of file.

        Lock files go first, as in ``lock.drop``; they stay where something is still in hand.
        """
        self.finish()
        if not self._running:
            for path in self.held.get("locks", ()):
                try:
                    os.unlink(path)
                except OSError:
                    pass
        os._exit(0)

    def _hello(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "uid": os.getuid(),
            "python": "%d.%d.%d" % sys.version_info[:3],
            "executable": sys.executable,
            "silence_s": self._silence_s,
            "magic": sys.modules["_frozen_importlib_external"].MAGIC_NUMBER.hex(),
        }

    def _write(self, data: bytes) -> None:
        with self._write_lock:
            try:
                while data:
                    data = data[os.write(self._out, data) :]
            except OSError:  # nobody reads any more
                if not self._ended:
                    threading.Thread(target=self.leave, daemon=True).start()
                self._ended = True

    def is_silent(self) -> bool:
        """Tell whether the client, or this agent, stood still for longer than a lease."""
        return clock_s() - self._last_frame_s > self._silence_s

    def _watch_silence(self) -> None:
        while not self.is_silent():
            time.sleep(min(1.0, self._silence_s / 10.0))
        self.leave()

    def _handle(self, frames: list[dict[str, Any]]) -> None:
        withdrawn = {frame["cancel"] for frame in frames if "cancel" in frame}
        for frame in frames:
            if "load" in frame:
                self._load(frame)
            elif "cancel" in frame:
                if frame["cancel"] in self._running:
                    self._running[frame["cancel"]][0].cancelled.set()
            elif "ping" in frame:
                self.send({"pong": frame["ping"]})
            elif frame["op"] == "agent.noop":
                self._reply(frame["id"], frame["request"])
            elif frame["id"] not in withdrawn:
                self._start(frame)

    def _load(self, frame: dict[str, Any]) -> None:
        name = frame["load"]
        if "digest" in frame:
            self.digests[name] = frame["digest"]
            return
        source = zlib.decompress(binascii.a2b_base64(frame["z"]))
        if frame.get("resource"):
            with self._arrived:
                self._resources[name] = source
                self._arrived.notify_all()
            return
        full = "opsctl.agent.ops." + name
        module = types.ModuleType(full)
        sys.modules[full] = module
        try:
            if "magic" in frame:
                code = marshal.loads(source)
            else:
                code = compile(source, "opsctl-agent:" + name, "exec")
            exec(code, module.__dict__)
        except Exception as error:  # noqa: BLE001 - told to the caller of its operations
            self._load_errors[name] = "%s: %s" % (type(error).__name__, error)
            return
        setattr(sys.modules["opsctl.agent.ops"], name, module)
        self._operations[name] = getattr(module, "OPERATIONS", {})

    def _start(self, frame: dict[str, Any]) -> None:
        request_id, module = frame["id"], frame["module"]
        verb = frame["op"].partition(".")[2]
        function = self._operations.get(module, {}).get(verb)
        if function is None:
            why = self._load_errors.get(module, "this agent has no such operation")
            self._reply_error(request_id, "unknown-operation", why)
            return
        context = Context(self, request_id, frame["timeout_s"])
        work = (function, frame["request"], context, request_id)
        thread = threading.Thread(target=self._run, args=work, daemon=True)
        self._running[request_id] = (context, thread)
        thread.start()

    def _run(
        self, function: Any, request: dict[str, Any], context: Context, request_id: int
    ) -> None:
        try:
            if self._ended:
                return
            self._reply(request_id, function(request, context))
        except Error as error:
            self._reply_error(request_id, error.kind, error.detail)
        except Exception as error:  # noqa: BLE001 - the agent outlives a failed operation
            self._reply_error(request_id, "internal", describe(error))
        finally:
            self._running.pop(request_id, None)

    def _reply(self, request_id: int, facts: dict[str, Any]) -> None:
        self.send({"protocol": PROTOCOL, "id": request_id, "ok": True, "facts": facts})

    def _reply_error(self, request_id: int, kind: str, detail: str) -> None:
        error = {"kind": kind, "detail": detail}
        self.send({"protocol": PROTOCOL, "id": request_id, "ok": False, "error": error})


def describe(error: BaseException) -> str:
    """Return an unexpected error with the place that it came from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = ""
    if trace is not None:
        where = " at %s:%d" % (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return "%s: %s%s" % (type(error).__name__, error, where)


def private_streams() -> tuple[int, int]:
    """Take stdin and stdout for the frames alone: a child or a print must not get at them."""
    stdin, stdout = os.dup(0), os.dup(1)  # not inheritable (PEP 446)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return stdin, stdout


def main(marker: str, silence_s: float) -> NoReturn:
    """Serve one client; called by BOOT with this module's source compiled and run."""
    if not sys.executable:  # an odd argv[0] or PATH leaves it empty; children of ours need it
        sys.executable = os.path.realpath("/proc/self/exe")
    for name in ("opsctl", "opsctl.agent", "opsctl.agent.ops"):
        package = types.ModuleType(name)
        package.__path__ = []
        sys.modules[name] = package
    agent = Agent(marker, silence_s, *private_streams())
    agent.serve()
    agent.leave()
