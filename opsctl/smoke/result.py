"""What decides a smoke run, and what it found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from opsctl.domain.report import LevelReport, Outcome, bracket_of
from opsctl.output import Finding
from opsctl.records import dataclass
from opsctl.sglang.endpoint import Endpoint
from opsctl.sglang.info import ServerInfo
from opsctl.smoke.judge import Answer
from opsctl.smoke.prompts import Prompt


@dataclass(slots=True)
class Options:
    """Everything that decides a run; two runs with equal options send the same requests."""

    endpoint: Endpoint
    api: str | None = None
    model: str | None = None
    levels: tuple[int, ...] | None = None
    profile: str = "quick"
    requests: int | None = None
    tokens: int | None = None
    seconds: float = 0.0
    prompt_kind: str | None = None
    prompt_tokens: int = 64
    own_prompts: tuple[Prompt, ...] = ()
    seed: int = 1
    stall_s: float = 30.0
    startup_s: float = 120.0
    allow_live: bool = False
    drift: float = 0.5
    slo: Mapping[str, float] = field(default_factory=dict)
    shapes: tuple[str, ...] = ()  # mix these into every level instead of the one mixed level
    down: bool | None = None
    mixed: bool | None = None
    idle_s: float | None = None
    threshold: int | None = None  # disable_above of the speculation, where known
    reference: Mapping[str, Answer] | None = None
    go_on: bool = False  # climb on after a failed (not crashed) level


@dataclass(slots=True)
class SmokeReport:
    """What one run found."""

    options: Options
    info: ServerInfo
    levels: list[LevelReport] = field(default_factory=list)
    down: list[LevelReport] = field(default_factory=list)
    mixed: LevelReport | None = None
    wanted: tuple[int, ...] = ()
    answers: dict[str, Answer] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    diagnosis: dict[str, Any] | None = None
    bisection: dict[str, Any] | None = None
    findings: list[Finding] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0
    warmup_s: float | None = None
    load: dict[str, Any] = field(default_factory=dict)  # where the requests came from

    @property
    def all_levels(self) -> list[LevelReport]:
        mixed = [self.mixed] if self.mixed is not None else []
        return [*self.levels, *mixed, *self.down]

    @property
    def bracket(self) -> dict[str, int | None] | None:
        """Return last good and first bad level; a bisection's where there was one."""
        if self.bisection is not None:
            return {name: self.bisection[name] for name in ("last_good", "first_bad")}
        return bracket_of(self.levels)

    @property
    def outcome(self) -> str:
        """Return the worst of the levels, in the order of their exit codes."""
        outcomes = {level.outcome for level in self.all_levels}
        for bad in (Outcome.CRASHED, Outcome.HUNG, Outcome.FAILED):
            if bad in outcomes:
                return bad.value
        if self.interrupted:
            return "interrupted"
        if Outcome.NOT_MEASURED in outcomes or not self.levels:
            return Outcome.NOT_MEASURED.value
        return Outcome.PASSED.value

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return 130
        return {"crashed": 60, "hung": 60, "failed": 70, "not-measured": 75}.get(self.outcome, 0)
