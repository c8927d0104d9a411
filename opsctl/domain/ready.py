"""Tell a starting server's states apart: under way, ready, crashed, hung, slow, a stranger's port; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any

from opsctl.domain.crash.launch import read_stage
from opsctl.domain.launch import ranks_here
from opsctl.domain.launch_line import read_title
from opsctl.facts import Process, ProcessId
from opsctl.records import dataclass

STAGE_WORDS = {
    "launch": "started",
    "begin distributed": "joining ranks",
    "end distributed": "ranks joined",
    "begin weights": "loading weights",
    "end weights": "weights loaded",
    "begin kv-cache": "allocating KV cache",
    "end kv-cache": "KV cache allocated",
    "begin graph": "capturing CUDA graphs",
    "end graph": "CUDA graphs captured",
    "begin jit": "building kernels",
    "end jit": "kernels built",
    "begin warm-up": "warming up",
    "end warm-up": "warmed up",
    "open": "port open, warming up",
    "ready": "says it is ready",
}
# Lines that a probe or a stranger causes: they are no progress of the start.
_NO_PROGRESS = (
    '"GET /health',
    '"GET /v1/models',
    '"GET /model_info',
    '"GET /server_info',
    '"GET /ping',
)


@dataclass(slots=True)
class StartProgress:
    """What the log has said so far. Times are the clock's seconds at which we saw it."""

    begun_at: float
    stage: str | None = None  # as `read_stage` names it
    last_line: str = ""
    last_sign_at: float = 0.0
    ready_line_at: float | None = None
    open_at: float | None = None
    stages: list[tuple[str, float]] = field(default_factory=list)  # stage, seconds since the start

    def __post_init__(self) -> None:
        self.last_sign_at = self.begun_at

    def feed(self, lines: Sequence[str], now: float) -> None:
        """Take new lines in."""
        for line in lines:
            if not line.strip() or any(mark in line for mark in _NO_PROGRESS):
                continue
            self.last_line = line.strip()
            self.last_sign_at = now
            stage = read_stage(line)
            if stage is None or stage == self.stage:
                continue
            self.stage = stage
            self.stages.append((stage, round(now - self.begun_at, 3)))
            if stage == "ready" and self.ready_line_at is None:
                self.ready_line_at = now
            if stage == "open" and self.open_at is None:
                self.open_at = now

    @property
    def says_it_listens(self) -> bool:
        return self.open_at is not None or self.ready_line_at is not None

    def words(self, now: float) -> str:
        """Return the line of progress that a person reads."""
        stage = STAGE_WORDS.get(self.stage or "", "starting")
        return f"{now - self.begun_at:5.0f} s  {stage}  | {self.last_line[:80]}"


class StartState(StrEnum):
    """Where a start stands."""

    WAITING = "waiting"
    CRASHED = "crashed"
    HUNG = "hung"
    SLOW = "slow"
    STRANGER = "stranger"


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's own limits, in seconds."""

    timeout_s: float
    stall_s: float


def judge_start(
    found: Mapping[str, Any],
    progress: StartProgress,
    now: float,
    limits: Limits,
    stranger: str | None = None,
) -> tuple[StartState, str]:
    """Say where a start stands, and why in half a sentence.

    Args:
        found: the launch as the host sees it now (`launch.find`).
        progress: what the log has said.
        now: the clock.
        limits: the server's limits.
        stranger: who answers on the port, when it is not this server.
    """
    if found["state"] != "running":
        return StartState.CRASHED, describe_exit(found.get("exit"))
    if stranger is not None:
        return StartState.STRANGER, stranger
    quiet = now - progress.last_sign_at
    if quiet > limits.stall_s:
        stage = STAGE_WORDS.get(progress.stage or "", "starting")
        return StartState.HUNG, f"no progress for {quiet:.0f} s, at: {stage}"
    elapsed = now - progress.begun_at
    if elapsed > limits.timeout_s:
        return StartState.SLOW, f"not ready after {elapsed:.0f} s, still at work"
    return StartState.WAITING, progress.words(now)


def describe_exit(ended: Mapping[str, Any] | None) -> str:
    """Say how a process ended."""
    if not ended:
        return "it ended, and nobody saw how"
    if ended.get("error"):
        return f"it could not be executed: {ended['error']}"
    if ended.get("signal"):
        core = ", core dumped" if ended.get("core_dumped") else ""
        return f"it was ended by signal {ended['signal']}{core}"
    if ended.get("code") is not None:
        note = ": a server that ends is not a success" if ended["code"] == 0 else ""
        return f"it exited with {ended['code']}{note}"
    return str(ended.get("reason") or ended.get("result") or "it ended, and nobody saw how")


@dataclass(frozen=True, slots=True)
class Workers:
    """The server's processes by identity, and what is missing among them."""

    members: tuple[ProcessId, ...]
    titles: tuple[str, ...]
    missing: tuple[str, ...]


def find_workers(processes: Sequence[Process], root_pid: int, argv: Sequence[str]) -> Workers:
    """Find the tree below the launched process and compare it with what its arguments promise.

    One scheduler per rank (``sglang::scheduler``, with its rank in the title when there are several) and a
    detokenizer, for sglang 0.5.8 to 0.5.23. A server that is no SGLang only needs its root.
    """
    tree = _tree(processes, root_pid)
    alive = [process for process in tree if not process.is_dead]
    titles = sorted(title for process in alive if (title := read_title(process.argv)))
    missing = []
    if not any(process.pid == root_pid for process in alive):
        missing.append(f"the main process (pid {root_pid})")
    if "sglang.launch_server" in argv:
        ranks = ranks_here(argv)
        schedulers = [title for title in titles if title.startswith("sglang::scheduler")]
        if len(schedulers) < ranks:
            missing.append(f"{ranks - len(schedulers)} of {ranks} schedulers")
        if not any(title.startswith("sglang::detokenizer") for title in titles):
            missing.append("the detokenizer")
    return Workers(tuple(p.identity for p in alive), tuple(titles), tuple(missing))


def _tree(processes: Sequence[Process], root_pid: int) -> list[Process]:
    """Return the root, its descendants, and what its session still holds (schedulers get reparented)."""
    members = {root_pid}
    root = next((process for process in processes if process.pid == root_pid), None)
    if root is not None and root.session == root_pid:
        members |= {process.pid for process in processes if process.session == root_pid}
    grown = True
    while grown:
        more = {p.pid for p in processes if p.ppid in members} - members
        members |= more
        grown = bool(more)
    return [process for process in processes if process.pid in members]


@dataclass(frozen=True, slots=True)
class Answer:
    """One real generation: ``problem`` None means that it proves the server."""

    problem: str | None
    text: str = ""
    tokens: int | None = None
    seconds: float = 0.0
    not_understood: bool = (
        False  # a 4xx: our question does not fit this server, which says nothing about it
    )


def judge_generation(reply: Mapping[str, Any]) -> Answer:
    """Judge the reply to one request: text or token ids, a good finish reason, no error."""
    seconds = float(reply.get("seconds") or 0.0)
    if reply.get("error"):
        return Answer(f"no answer: {reply['error']}", seconds=seconds)
    body = reply.get("json")
    if reply["status"] != 200 or not isinstance(body, Mapping):
        problem = f"status {reply['status']}: {str(reply.get('text'))[:200]}"
        return Answer(problem, seconds=seconds, not_understood=400 <= reply["status"] < 500)
    if body.get("error"):
        return Answer(f"an error inside a 200: {str(body['error'])[:200]}", seconds=seconds)
    text, tokens, reason = _generated(body)
    if reason not in (None, "stop", "length"):
        return Answer(f"it finished with '{reason}'", text, tokens, seconds)
    if not text and not tokens:
        return Answer("it answered without text and without tokens", text, tokens, seconds)
    return Answer(None, text, tokens, seconds)


def _generated(body: Mapping[str, Any]) -> tuple[str, int | None, str | None]:
    """Read SGLang's own reply, or an OpenAI completion's."""
    if body.get("choices"):
        choice = body["choices"][0]
        usage = body.get("usage") or {}
        return (
            str(choice.get("text") or ""),
            usage.get("completion_tokens"),
            choice.get("finish_reason"),
        )
    meta = body.get("meta_info") or {}
    reason = meta.get("finish_reason") or {}
    ids = body.get("output_ids") or []
    kind = reason.get("type") if isinstance(reason, Mapping) else reason
    return str(body.get("text") or ""), meta.get("completion_tokens") or len(ids) or None, kind
