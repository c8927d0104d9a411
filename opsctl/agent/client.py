"""The client's side of an agent: starts it, calls its operations, keeps it alive, tells when it is lost."""

from __future__ import annotations

import collections
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from opsctl.agent import boot
from opsctl.agent.ops import PROVIDERS
from opsctl.agent.shipping import missing_frames, resource_frame
from opsctl.agent.startup import explain_start, read_marker, write_source
from opsctl.errors import AgentError, OpsctlError, TransportError
from opsctl.transport.base import Channel, Transport

SILENCE_S = 30.0
PING_S = 5.0
PONG_TIMEOUT_S = 15.0
START_TIMEOUT_S = 20.0
_PONG = b'{"pong":'
_SLICE_S = 1.0  # a blocked reader looks this often whether the agent was given up meanwhile

OnEvent = Callable[[dict[str, Any]], None]
_Frames = collections.deque[dict[str, Any]]  # what arrived for one call and was not looked at yet


class Agent(Protocol):
    """What a step needs of an agent; see ``RemoteAgent``."""

    @property
    def name(self) -> str: ...

    def call(
        self,
        operation: str,
        request: dict[str, Any] | None = None,
        *,
        timeout_s: float = 10.0,
        on_event: OnEvent | None = None,
    ) -> dict[str, Any]: ...


@contextmanager
def connect(
    transport: Transport,
    *,
    interpreter: str | None = None,
    silence_s: float = SILENCE_S,
    ping_s: float = PING_S,
    start_timeout_s: float = START_TIMEOUT_S,
) -> Iterator[RemoteAgent]:
    """Start an agent on the transport's host and end it afterwards.

    Args:
        transport: the way to the host.
        interpreter: the Python to use there, or None to look for one of 3.8 or newer.
        silence_s: how long the agent may hear nothing before it ends.
        ping_s: how often it is told that we live.
        start_timeout_s: how long it may take to answer first.

    Raises:
        TransportError: the host was not reached, or sudo or pct refused.
        AgentError: the host was reached, but no agent came up.
    """
    agent = start(
        transport,
        interpreter=interpreter,
        silence_s=silence_s,
        ping_s=ping_s,
        start_timeout_s=start_timeout_s,
    )
    try:
        yield agent
    finally:
        agent.close()


def start(
    transport: Transport,
    *,
    interpreter: str | None = None,
    silence_s: float = SILENCE_S,
    ping_s: float = PING_S,
    start_timeout_s: float = START_TIMEOUT_S,
    on_sent: Callable[[], None] = lambda: None,
) -> RemoteAgent:
    """Start an agent that the caller closes; see ``connect``.

    ``on_sent`` is called once its source is out: what follows is the host's work.
    """
    marker = "opsctl-agent-" + secrets.token_hex(16)
    channel = transport.open(boot.argv(marker, silence_s, interpreter))
    try:
        try:
            write_source(channel)
            on_sent()
            rest = read_marker(channel, marker, start_timeout_s)
        except OpsctlError as error:
            raise explain_start(transport, channel, error) from error
        agent = RemoteAgent(transport.name, channel, rest, silence_s=silence_s, ping_s=ping_s)
        agent.wait_hello(start_timeout_s)
    except BaseException:
        channel.close()
        raise
    return agent


class RemoteAgent:
    """A live agent. Any thread may call; whoever waits first reads for all, so no thread stands between.

    Attributes:
        hello: what the agent said of itself: pid, uid, python, executable, silence_s.
    """

    def __init__(
        self, name: str, channel: Channel, received: bytes, *, silence_s: float, ping_s: float
    ) -> None:
        self.name = name
        self.hello: dict[str, Any] = {}
        self._channel = channel
        self._silence_s = silence_s
        self._ping_s = ping_s
        self._buffer = received
        self._state = threading.Condition()
        self._calls: dict[int, _Frames] = {}
        self._reading = False
        self._failure: OpsctlError | None = None
        self._next_id = 0
        self._send_lock = threading.Lock()
        self._loaded: set[str] = set()
        self._last_sent_s = _clock_s()
        self._closed = threading.Event()

    def call(
        self,
        operation: str,
        request: dict[str, Any] | None = None,
        *,
        timeout_s: float = 10.0,
        on_event: OnEvent | None = None,
    ) -> dict[str, Any]:
        """Run one operation on the host and return its facts.

        Args:
            operation: ``module.verb``, e.g. ``process.scan``.
            request: its arguments; each operation documents them.
            timeout_s: how long the whole operation may take; past it the operation is withdrawn.
            on_event: called in this thread for each event of the operation.

        Raises:
            AgentError: ``code`` is the operation's own kind, ``operation-timeout``, or ``agent-lost``.
        """
        deadline = time.monotonic() + timeout_s
        call: _Frames = collections.deque()
        with self._state:
            self._next_id += 1
            call_id = self._next_id
            self._calls[call_id] = call
        try:
            self._send(call_id, operation, request or {}, timeout_s)
            return self._wait(call, operation, deadline, timeout_s, on_event)
        except BaseException:
            self._withdraw(call_id)
            raise
        finally:
            with self._state:
                self._calls.pop(call_id, None)

    def load(self, operations: Iterable[str]) -> None:
        """Send ahead the modules of operations that will be called, while there is time.

        Raises:
            OpsctlError: the agent is lost, or the way to it is.
        """
        with self._send_lock:
            if self._failure is not None:
                raise self._failure
            self._check_pulse()
            lines, loaded = self._missing([_module_of(one) for one in operations])
            if lines:
                self._write(b"\n".join(lines) + b"\n")
                self._loaded = loaded

    def wait_hello(self, timeout_s: float) -> None:
        """Wait for the agent's first frame, then begin to ping."""
        deadline = time.monotonic() + timeout_s
        self._dispatch(b"")
        while not self.hello:
            data = self._channel.read(max(0.0, deadline - time.monotonic()))
            if not data:
                raise self._lost("the agent broke off as it started")
            self._dispatch(data)
        threading.Thread(target=self._keep_alive, daemon=True, name="agent-ping").start()

    def close(self) -> None:
        """End the agent by closing its stdin; safe to call twice."""
        if not self._closed.is_set():
            self._closed.set()
            with self._state:
                self._failure = self._failure or self._lost("this agent was closed")
                self._state.notify_all()
            self._channel.close()

    def _send(
        self, call_id: int, operation: str, request: dict[str, Any], timeout_s: float
    ) -> None:
        with self._send_lock:
            if self._failure is not None:
                raise self._failure
            self._check_pulse()
            if operation == "agent.noop" and not request:
                self._write(b'{"ping":%d}\n' % call_id)
                return
            module = _module_of(operation)
            frame = {"id": call_id, "op": operation, "module": module, "request": request}
            frame["timeout_s"] = timeout_s
            lines, loaded = self._missing([module])
            lines.append(json.dumps(frame, separators=(",", ":")).encode())
            self._write(b"\n".join(lines) + b"\n")
            self._loaded = loaded

    def _missing(self, modules: list[str]) -> tuple[list[bytes], set[str]]:
        """Return the frames of what the host still lacks, and what it has once they are sent."""
        loaded, magic = set(self._loaded), self.hello.get("magic")
        return [line for one in modules for line in missing_frames(one, loaded, magic)], loaded

    def _write(self, data: bytes) -> None:
        """Send frames; where that fails, a part of them may be out, so nothing can follow."""
        try:
            self._channel.write(data)
        except TransportError as error:
            self._fail(self._ended(error))
            raise self._ended(error) from error
        self._last_sent_s = _clock_s()

    def _check_pulse(self) -> None:
        """Refuse to send once this process stood still for as long as an agent waits."""
        still_s = _clock_s() - self._last_sent_s
        if still_s > self._silence_s:
            self._fail(
                self._lost(
                    f"opsctl stood still for {still_s:.0f} s, and its agent has ended; nothing was sent"
                )
            )
            assert self._failure is not None
            raise self._failure

    def _wait(
        self,
        call: _Frames,
        operation: str,
        deadline: float,
        timeout_s: float,
        on_event: OnEvent | None,
    ) -> dict[str, Any]:
        while True:
            frame = self._next_frame(call, deadline)
            if frame is None:
                raise AgentError(
                    f"{self.name}: {operation} gave no answer within {timeout_s:g} s",
                    next_step="is the host overloaded or hung? try again, or look by hand",
                    code="operation-timeout",
                    subject=self.name,
                )
            if "event" in frame:
                if on_event is not None:
                    on_event(frame["event"])
                continue
            if frame["ok"]:
                facts: dict[str, Any] = frame["facts"]
                return facts
            problem = frame["error"]
            raise AgentError(
                f"{self.name}: {operation}: {problem['detail']}",
                code=problem["kind"],
                subject=self.name,
            )

    def _next_frame(self, call: _Frames, deadline: float) -> dict[str, Any] | None:
        """Return the next frame of ``call``, None at the deadline; read for everybody where nobody does."""
        while True:
            with self._state:
                while self._reading and not call and self._failure is None:
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        return None
                    self._state.wait(left_s)
                if call:
                    return call.popleft()
                if self._failure is not None:
                    raise self._failure
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return None
                self._reading = True
            try:
                self._dispatch(self._channel.read(min(left_s, _SLICE_S)))
            finally:
                with self._state:
                    self._reading = False
                    if len(self._calls) > 1:
                        self._state.notify_all()

    def _dispatch(self, data: bytes | None) -> None:
        """Hand what was read to the calls that wait for it; b"" from the channel is its end."""
        if data is None:
            return
        if data == b"" and self.hello:
            self._fail(self._ended(None))
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            if line.startswith(_PONG):
                self._deliver(int(line[len(_PONG) : -1]), {"ok": True, "facts": {}})
                continue
            try:
                frame = json.loads(line)
            except ValueError:
                text = line[:80].decode("ascii", "backslashreplace")
                self._fail(self._lost(f"the agent's reply is damaged: {text}"))
                return
            if "hello" in frame:
                self.hello = frame["hello"]
                continue
            if "need" in frame:
                self._supply(frame["need"])
                continue
            self._deliver(frame["id"], frame)

    def _deliver(self, call_id: int, frame: dict[str, Any]) -> None:
        call = self._calls.get(call_id)
        if call is not None:  # else it was withdrawn meanwhile
            call.append(frame)

    def _supply(self, name: str) -> None:
        """Send a resource that an operation asks for."""
        with self._send_lock:
            try:
                self._channel.write(resource_frame(name) + b"\n")
            except TransportError as error:
                self._fail(self._ended(error))

    def _keep_alive(self) -> None:
        while not self._closed.wait(self._ping_s):
            try:
                self.call("agent.noop", timeout_s=PONG_TIMEOUT_S)
            except AgentError as error:
                if error.code == "operation-timeout":
                    self._fail(
                        self._lost(f"the host did not answer a ping for {PONG_TIMEOUT_S:g} s")
                    )
                return
            except OpsctlError as error:
                self._fail(error)
                return

    def _withdraw(self, call_id: int) -> None:
        """Tell the agent that nobody waits for this call any more; best effort."""
        with self._send_lock:
            if self._failure is not None or self._closed.is_set():
                return
            try:
                self._channel.write(b'{"cancel":%d}\n' % call_id)
            except OpsctlError as error:
                self._fail(error)

    def _fail(self, error: OpsctlError) -> None:
        with self._state:
            self._failure = self._failure or error
            self._state.notify_all()

    def _ended(self, error: TransportError | None) -> OpsctlError:
        """Return why nothing comes any more: the agent ended by itself, or the way to it broke."""
        code = self._channel.exit_code(0.5)
        if code is not None:
            return self._lost(f"the agent ended (exit {code})")
        return error or TransportError(
            f"{self.name}: the connection broke",
            next_step="run the command again; it looks first at what was done",
            code="cut",
            subject=self.name,
        )

    def _lost(self, what: str) -> AgentError:
        said = self._channel.stderr_tail().decode("utf-8", "replace").strip().splitlines()
        return AgentError(
            f"{self.name}: {what}" + (f" ({said[-1]})" if said else ""),
            next_step="run the command again; it looks first at what was done",
            code="agent-lost",
            subject=self.name,
        )


def _module_of(operation: str) -> str:
    return PROVIDERS.get(operation, operation.partition(".")[0])


def _clock_s() -> float:
    """Return seconds that go on while this machine sleeps, so that a closed lid counts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
