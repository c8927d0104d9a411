"""Before the first signal: a proof that cannot succeed refuses the run, and one that may succeed does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from opsctl.domain.gpu import MIB
from opsctl.errors import SafetyRefusal
from opsctl.steps import make_step
from opsctl.steps.base import StepContext, StepOutcome, StepResult
from opsctl.steps.gpu_memory import ProveGpuMemory
from tests.unit.domain.tables import gpu, proc, report, system
from tests.unit.steps.test_picture import SITE, OneHost, agent, gpu_reply
from tests.unit.test_runner import Ticks, context

STRANGER = proc(5000, 1, "python train.py")
CARD = gpu(used=4096 * MIB, holders=[(5000, 4096 * MIB)])


def ahead(*names: str) -> tuple[Any, ...]:
    return tuple(make_step(name, {}) for name in names)


def before_ask(*names: str, later: Any = None) -> StepContext:
    """Return a context with a stranger on the card, which is ``later`` when it is read once more."""
    fake = agent(*system(STRANGER))
    replies = [CARD, later or CARD]
    fake.operations["gpu.read"] = lambda _: gpu_reply(
        report(replies.pop(0) if len(replies) > 1 else replies[0])
    )
    session = OneHost(fake, SITE)
    return context(
        server=SITE, server_name="glm5", session=session, ahead=ahead(*names), clock=Ticks()
    )


@pytest.mark.parametrize(
    "names", [("stop", "gpu-memory", "launch"), ("gpu-memory", "launch")], ids=["restart", "launch"]
)
def test_a_run_that_launches_is_refused_with_the_holder_s_name(names: tuple[str, ...]) -> None:
    """Exit 50, after a second look."""
    ctx = before_ask(*names)

    with pytest.raises(SafetyRefusal) as refused:
        ProveGpuMemory().preview(ctx)

    assert refused.value.code == "held-by-others"
    assert "foreign pid 5000 (python train.py) holds 4096 MiB on GPU 0" in refused.value.message
    assert "opsctl stop glm5 --evict 5000" in (refused.value.next_step or "")
    assert ctx.clock.now() == 1.0


def test_a_run_that_only_stops_is_not_refused() -> None:
    """`opsctl run free-gpus` is there to end the server; what is left is told by the proof."""
    assert ProveGpuMemory().preview(before_ask("stop", "gpu-memory", "sweep"))


def test_who_is_gone_a_second_later_is_in_nobody_s_way() -> None:
    """A job that is just ending."""
    assert ProveGpuMemory().preview(before_ask("stop", "gpu-memory", "launch", later=gpu(used=0)))


def test_a_run_that_has_launched_is_past_this() -> None:
    """On resume its own server may hold the cards."""
    ctx = before_ask("stop", "gpu-memory", "launch")
    ctx.results["look"] = StepResult(StepOutcome.DONE, data={"launched": {"pid": 7}})

    assert ProveGpuMemory().preview(ctx)


def test_holders_of_another_machine_refuse_nothing() -> None:
    """They cannot be told from the server's own."""
    ctx = before_ask("stop", "gpu-memory", "launch")
    ctx.session = replace(ctx.session, one_machine=False)

    assert ProveGpuMemory().preview(ctx)
