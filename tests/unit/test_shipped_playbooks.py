"""The playbooks that ship: sound, and in the order that keeps a running server untouched."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from opsctl.plan import Plan, build
from opsctl.playbook import find, load, shipped
from opsctl.steps import STEPS, step_class
from opsctl.steps.base import Effect


def plan(name: str, **given: str) -> Plan:
    return build(load(find(name)), given)


def test_all_that_ship_are_sound() -> None:
    """Each file loads, and each of its steps can be made."""
    assert {"evidence", "free-gpus", "launch", "restart", "restart-hung", "stop"} <= set(shipped())
    for name in shipped():
        assert plan(name).steps


@pytest.mark.parametrize("name", [name for name in shipped() if name != "evidence"])
def test_nothing_is_destroyed_before_the_question(name: str) -> None:
    """Before `ask` only the lock changes anything, and a stopped container's start, which asks itself."""
    made = plan(name)
    before = [item for item in made.steps if made.is_before_ask(item)]

    launches = "launch" in {item.name for item in made.steps}
    first = ["container", "lock"] if launches else ["lock"]
    assert [item.name for item in before[: len(first)]] == first
    assert [item.name for item in before if item.step.effect is not Effect.READ] == first


def test_evidence_only_looks() -> None:
    """The playbook for a look before the act changes nothing, not even a lock."""
    assert {item.step.effect for item in plan("evidence").steps} == {Effect.READ}


def test_a_hung_server_is_restarted_in_the_order_of_a_restart_without_grace() -> None:
    """The same steps at the same places; the stop begins with KILL."""
    hung = plan("restart-hung")

    assert [item.name for item in hung.steps] == [item.name for item in plan("restart").steps]
    assert [getattr(item.step, "hard", None) for item in hung.steps if item.name == "stop"] == [
        True
    ]


def test_restart_keeps_the_order_of_the_design() -> None:
    """What can fail without the stop stands before it; evidence before the first signal; then the record."""
    names = [item.name for item in plan("restart").steps]

    assert names == [
        "container", "lock", "look", "preflight", "stage", "known-failure", "ask", "snapshot",
        "collect", "stop", "gpu-memory", "sweep", "patch", "launch", "ready", "smoke", "settle", "record",
    ]  # fmt: skip


def test_record_and_settle_are_done_after_a_failure_too() -> None:
    """A crash is what the record is for."""
    always = [item.name for item in plan("restart").steps if item.always]

    assert always == ["settle", "record"]


def test_inputs_switch_steps_off() -> None:
    """--no-smoke and --no-patch leave their steps out."""
    wanted = {item.name for item in plan("restart", smoke="no", patch="no").steps if item.wanted}

    assert not wanted & {"smoke", "patch", "stage"}


@pytest.mark.parametrize("name", sorted(STEPS))
def test_each_step_keeps_the_contract(name: str) -> None:
    """Name, effect and description are there, and a step cannot be changed once it is made."""
    step = step_class(name)()

    assert step.name == name
    assert isinstance(step.effect, Effect)
    assert step.describe()
    assert step.describe()[0].islower() or step.describe().startswith("NVML")
    with pytest.raises(FrozenInstanceError):
        step.name = "another"
