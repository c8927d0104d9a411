"""The plan of a run: a playbook with its inputs filled in; pure."""

from __future__ import annotations

from collections.abc import Mapping

from opsctl.playbook import Playbook, Retry, Value, filled, holds
from opsctl.records import dataclass
from opsctl.steps import make_step
from opsctl.steps.base import Step

ASK = "ask"  # everything before it only looks; everything after it may change something
LAUNCH = "launch"


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step at its place. ``wanted`` False: its condition does not hold, and it is skipped."""

    position: int
    name: str
    step: Step
    wanted: bool = True
    always: bool = False
    retry: Retry | None = None
    fail_run: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of one run, in order."""

    playbook: str
    steps: tuple[PlannedStep, ...]
    values: Mapping[str, Value]

    def position_of(self, name: str) -> int | None:
        """Return where step ``name`` stands; None when the plan has none."""
        return next((item.position for item in self.steps if item.name == name), None)

    @property
    def only_stops(self) -> bool:
        """Say whether it ends a server and launches none: a stopped container is then in nobody's way."""
        return self.position_of("stop") is not None and self.position_of(LAUNCH) is None

    def is_before_ask(self, item: PlannedStep) -> bool:
        """Say whether ``item`` stands before the question, so that it may run in a dry run."""
        ask = self.position_of(ASK)
        return ask is not None and item.position < ask

    def is_before_launch(self, item: PlannedStep) -> bool:
        """Say whether ``item`` makes room for the launch: after the question, before the launch."""
        launch = self.position_of(LAUNCH)
        return launch is not None and not self.is_before_ask(item) and item.position < launch


def build(playbook: Playbook, given: Mapping[str, Value | str]) -> Plan:
    """Fill a playbook in. Raises UsageError for inputs that do not fit."""
    values = playbook.values(given)
    steps = tuple(
        PlannedStep(
            position=position,
            name=item.step,
            step=make_step(item.step, filled(item.options, values)),
            wanted=holds(item.when, values),
            always=item.always,
            retry=item.retry,
            fail_run=item.on_failure == "fail",
        )
        for position, item in enumerate(playbook.steps)
    )
    return Plan(playbook.name, steps, values)
