"""Watch a server's processes and log through its agents, and keep what explains a crash."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from opsctl.agent.client import Agent
from opsctl.domain.launch_line import read_title
from opsctl.domain.process import shorten
from opsctl.errors import OpsctlError
from opsctl.facts import Process
from opsctl.records import dataclass
from opsctl.smoke.load import Sign

WATCH_S = 86_400.0
LOG_POLL_S = 0.2
LOG_LIMIT_CHARS = 4 << 20
WINDOW_LINES = 120
LINES_BEFORE = 15
DUST_S = 0.5  # what a dying server still writes
STACKS_S = 5.0
KERNEL_BEFORE_S = 10.0  # an Xid or the OOM killer speaks shortly before the process is gone

# Ends of a healthy life that a log may show; retractions and "pool is full" lines are none of them.
CRASH_LINE = re.compile(
    r"Scheduler hit an exception|DetokenizerManager hit an exception|TokenizerManager hit an exception"
    r"|[Rr]eceived sigquit|SIGQUIT received|Triggering SIGQUIT|kill_process_tree called"
    r"|device-side assert|Assertion `.*` failed|CUDA error: |CUDA out of memory"
    r"|Fatal Python error|Segmentation fault|terminate called after|watchdog timeout"
    r"|Watchdog caught collective operation timeout"
)
LOGGED_REQUEST = ("Receive: obj=", "Finish: obj=", "Received request ")  # --log-requests
KERNEL_TIME = re.compile(r"\[\s*(\d+\.\d+)\]")
BATCH_LINE = re.compile(r"(Decode|Prefill) batch")


def first_crash_line(lines: Sequence[str]) -> int | None:
    """Return the number of the first line that tells of an end; a logged prompt may say anything."""
    for number, line in enumerate(lines):
        if CRASH_LINE.search(line) and not any(mark in line for mark in LOGGED_REQUEST):
            return number
    return None


def describe_process(process: Process) -> str:
    """Return the process's title, or its command line in short."""
    return read_title(process.argv) or shorten(process.argv) or process.comm


def vital(members: Sequence[Process]) -> list[Process]:
    """Return the members whose end is the server's end: its roots, schedulers and detokenizers.

    Compile workers and resource trackers come and go in a healthy server.
    """
    pids = {member.pid for member in members}
    found = [
        m
        for m in members
        if not m.is_dead and (m.ppid not in pids or read_title(m.argv) is not None)
    ]
    return found or [m for m in members if not m.is_dead]


@dataclass(slots=True)
class AgentWatch:
    """Signs from the server's host, for as long as one smoke run lasts."""

    owner: Agent  # sees the processes by the numbers in ``members``
    members: Sequence[Process]
    log_agent: Agent | None = None
    log_path: str | None = None
    gpu_facts: Callable[[], Any] | None = None
    exits: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""  # what the log gained during the run
    problem: str | None = None  # why watching ended early
    _stop: threading.Event = field(default_factory=threading.Event)
    _on_sign: Callable[[Sign], None] = lambda sign: None
    _offset: int = 0
    _reading: threading.Lock = field(default_factory=threading.Lock)
    _level_text: str = ""
    _log_sign: bool = False
    _signed: bool = False

    def start(self, on_sign: Callable[[Sign], None]) -> None:
        """Begin: one thread for the processes, one for the log."""
        self._on_sign = on_sign
        threading.Thread(target=self._watch_processes, daemon=True, name="smoke-watch").start()
        if self.log_agent is not None and self.log_path is not None:
            try:
                end = self.log_agent.call("log_read.tail", {"path": self.log_path, "lines": 1})
                self._offset = end["size"]
            except OpsctlError as error:
                self.problem = error.message
                return
            threading.Thread(target=self._watch_log, daemon=True, name="smoke-log").start()

    def stop(self) -> None:
        """Let the threads end; the agent withdraws the watch when it is closed."""
        self._stop.set()

    def _watch_processes(self) -> None:
        targets = [
            {"pid": m.pid, "start_ticks": m.identity.start_ticks} for m in vital(self.members)
        ]
        try:
            self.owner.call(
                "process.watch",
                {"processes": targets, "timeout_s": WATCH_S},
                timeout_s=WATCH_S,
                on_event=self._take_event,
            )
        except OpsctlError as error:
            if not self._stop.is_set():
                self.problem = error.message

    def _take_event(self, event: dict[str, Any]) -> None:
        if "exit" not in event or self._stop.is_set():
            return
        process = next((m for m in self.members if m.pid == event["exit"]), None)
        name = describe_process(process) if process is not None else "a process"
        code = event.get("exit_code")
        how = "" if code is None else f" (signal {-code})" if code < 0 else f" (exit {code})"
        self.exits.append({"name": name, **event})
        if not self._signed:
            self._signed = True
            words = f"{name}, pid {event['exit']}, ended{how}"
            self._on_sign(Sign("process", time.monotonic(), words))

    def _watch_log(self) -> None:
        while not self._stop.wait(LOG_POLL_S):
            if not self._read_log():
                return

    def _read_log(self) -> bool:
        """Take what the log gained; return False when it cannot be read any more."""
        assert self.log_agent is not None
        with self._reading:
            try:
                piece = self.log_agent.call(
                    "log_read.since", {"path": self.log_path, "offset": self._offset}
                )
            except OpsctlError as error:
                self.problem = error.message
                return False
            self._offset = piece["offset"]
            text = piece["text"]
            self.text = (self.text + text)[-LOG_LIMIT_CHARS:]
            self._level_text = (self._level_text + text)[-LOG_LIMIT_CHARS:]
        if not text:
            return True
        told = None if self._log_sign else first_crash_line(text.splitlines())
        if told is not None:
            self._log_sign = True
            words = f"the log says: {text.splitlines()[told].strip()[:200]}"
            self._on_sign(Sign("log", time.monotonic(), words))
        return True

    def level_log(self) -> str:
        """Return what the log gained since the last call, read to its end now."""
        if self.log_agent is None or self.log_path is None or self.problem is not None:
            return ""
        self._read_log()
        with self._reading:
            piece, self._level_text = self._level_text, ""
        return piece

    def evidence(self) -> dict[str, Any]:
        """Return exits, the log's window and last batch line, what still lives does, GPUs, kernel log."""
        self._stop.wait(DUST_S)
        if self.log_agent is not None and self.log_path is not None and self.problem is None:
            self._read_log()
        lines = self.text.splitlines()
        batches = [line for line in lines if BATCH_LINE.search(line)]
        alive, kernel = self._look_at_the_living()
        self.text += "".join(f"\n{line}" for line in kernel)
        return {
            "exits": self.exits,
            "alive": alive,
            "log": {"path": self.log_path, "lines": len(lines), "window": _window(lines)},
            "last_batch": batches[-1].strip()[:500] if batches else None,
            "gpu": self._gpus(),
            "kernel": kernel,
            "problem": self.problem,
        }

    def _look_at_the_living(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return state, wait channel and stacks of what lives, and the kernel's words since the end."""
        gone = {entry["exit"] for entry in self.exits}
        mine = {m.pid for m in self.members} - gone
        request = {"roots": sorted(mine), "limit_s": STACKS_S}
        try:
            found = self.owner.call("evidence.collect", request, timeout_s=STACKS_S + 3.0)
        except OpsctlError as error:
            self.problem = self.problem or error.message
            return [], []
        alive = [p for p in found["processes"] if p["pid"] in mine and p["state"] != "Z"]
        died = [e["monotonic_s"] for e in self.exits if e.get("monotonic_s") is not None]
        kernel = found["kernel"] or []
        since = min(died) - KERNEL_BEFORE_S if died else None
        return alive, [] if since is None else kernel_since(kernel, since)

    def _gpus(self) -> Any:
        if self.gpu_facts is None:
            return None
        try:
            return self.gpu_facts()
        except OpsctlError as error:
            return f"not read: {error.message}"


def kernel_since(lines: Sequence[str], monotonic_s: float) -> list[str]:
    """Return the lines of dmesg at or after a moment of the host's monotonic clock."""
    found = []
    for line in lines:
        match = KERNEL_TIME.match(line)
        if match is not None and float(match.group(1)) >= monotonic_s:
            found.append(line)
    return found


def _window(lines: list[str]) -> list[str]:
    """Return the lines round the first crash record, endless ones cut; the last ones without a record."""
    first = first_crash_line(lines)
    if first is None:
        chosen = lines[-WINDOW_LINES:]
    else:
        begin = max(0, first - LINES_BEFORE)
        chosen = lines[begin : begin + WINDOW_LINES]
    return [line[:500] for line in chosen]
