"""`opsctl gpu`: what the GPUs hold, whether that is proven free, and whether they still compute."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from opsctl.cli.app import App, command, emit
from opsctl.cli.gpu_probe import probe
from opsctl.cli.gpu_target import Target, open_target
from opsctl.domain.counted import counted
from opsctl.output import Document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opsctl.domain.gpu import MemoryVerdict
    from opsctl.output import Finding


@click.group("gpu")
def gpu() -> None:
    """Show, verify, wait for and probe the GPUs of a server or of a host.

    `opsctl gpu verify HOST --json` exits 0 only when every GPU is proven free: memory at its idle
    baseline plus a margin by NVML's v2 count, and no compute process. 20: seen in use. 21: could
    not be told.

    \b
    Examples:
      opsctl gpu status gpu1
      opsctl gpu wait glm5 --timeout 60
    """


def _expect_option(function: Any) -> Any:
    return click.option(
        "--expect",
        type=click.IntRange(min=1),
        metavar="N",
        help="How many GPUs there must be; fewer is exit 21, more is a finding. "
        "Default: the server's gpus.expect.",
    )(function)


@command("status")
@click.argument("target", metavar="SERVER|HOST")
@click.option(
    "--learn",
    is_flag=True,
    help="Record what these cards use now as their idle baseline. Only for cards without a compute "
    "process; memory up to 1 GiB without an owner is taken for reserved (old drivers count it).",
)
@_expect_option
def status(app: App, target: str, learn: bool, expect: int | None) -> int:
    """Show memory, holders, baseline and health of each GPU; exit 21 when they could not be read.

    \b
    Example:
      opsctl gpu status gpu1
    """
    from opsctl.domain.gpu_health import judge_health
    from opsctl.steps.gpu_memory import health_data, memory_data

    with open_target(app, target, expect) as cards:
        learned, not_kept = _learn(cards) if learn else ([], [])
        verdict = cards.judge(cards.report)
        health = judge_health(cards.report, cards.uuids)
        data = {**memory_data(verdict), "health": health_data(health), "learned": learned}
        data["driver_version"] = cards.report.driver_version
        code = 21 if verdict.exit_code == 21 else 0
        seen = [finding for finding in verdict.all_findings if finding.code != "held"]
        findings = [*seen, *(item.finding for item in health), *not_kept]
        document = Document("gpu status", verdict.outcome, code, findings=findings, data=data)
        return emit(app, document, lambda: "\n".join(_status_lines(target, data)))


def _learn(cards: Target) -> tuple[list[str], list[Finding]]:
    from opsctl.domain.gpu import LARGEST_RESERVED_BYTES
    from opsctl.domain.gpu_health import learn_baselines
    from opsctl.steps.baselines import load_baselines, save_baselines

    known = load_baselines(cards.state_dir)
    learned = learn_baselines(cards.report, cards.residents, known, LARGEST_RESERVED_BYTES)
    learned = {uuid: value for uuid, value in learned.items() if uuid in cards.uuids}
    not_kept = save_baselines(cards.state_dir, cards.agent.name, learned)
    return ([] if not_kept else sorted(learned)), not_kept


@command("verify")
@click.argument("target", metavar="SERVER|HOST")
@_expect_option
def verify(app: App, target: str, expect: int | None) -> int:
    """Exit 0 only when every GPU is proven free; 20 when one is in use; 21 when it could not be told.

    Each idle card that is proven free teaches its baseline to the state folder.

    \b
    Example:
      opsctl gpu verify glm5 --json
    """
    from opsctl.domain.gpu import IDLE_MARGIN_BYTES
    from opsctl.domain.gpu_health import learn_baselines
    from opsctl.steps.baselines import load_baselines, save_baselines

    with open_target(app, target, expect) as cards:
        verdict = cards.judge(cards.report)
        free = {card.uuid for card in verdict.gpus if card.state == "free"}
        known = load_baselines(cards.state_dir)
        learned = learn_baselines(cards.report, cards.residents, known, IDLE_MARGIN_BYTES)
        kept = {uuid: value for uuid, value in learned.items() if uuid in free}
        not_kept = save_baselines(cards.state_dir, cards.agent.name, kept)
        return _emit_verdict(app, cards, "gpu verify", verdict, more=not_kept)


@command("wait")
@click.argument("target", metavar="SERVER|HOST")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.0),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Longest wait, in seconds.",
)
@_expect_option
def wait(app: App, target: str, timeout: float, expect: int | None) -> int:
    """Wait until every GPU is proven free, at most --timeout seconds; exit codes as for verify.

    \b
    Example:
      opsctl gpu wait glm5 --timeout 60
    """
    from opsctl.steps.watching import MemoryPoll

    with open_target(app, target, expect) as cards:
        begun = time.monotonic()
        first = cards.judge(cards.report)
        limits = {card.uuid: card.limit_bytes for card in first.gpus}
        if first.exit_code == 0 or not limits:
            return _emit_verdict(app, cards, "gpu wait", first, first, {}, 0.0)
        poll = MemoryPoll(
            cards.agent, cards.report, limits, cards.judge, timeout, waits_for_foreign=True
        )
        poll.start()
        poll.processes_are_gone(timeout)
        verdict = poll.wait()
        return _emit_verdict(
            app, cards, "gpu wait", verdict, first, poll.free_after_s, time.monotonic() - begun
        )


def _emit_verdict(
    app: App,
    cards: Target,
    name: str,
    verdict: MemoryVerdict,
    before: MemoryVerdict | None = None,
    free_after_s: dict[str, float] | None = None,
    waited_s: float | None = None,
    more: Sequence[Finding] = (),
) -> int:
    from opsctl.cli.gpu_lines import gpu_lines
    from opsctl.steps.gpu_memory import memory_data, memory_summary

    data = memory_data(verdict, before, free_after_s)
    data |= cards.machine.to_json() if cards.machine else {}
    if waited_s is not None:
        data["waited_s"] = round(waited_s, 3)
    findings = [*verdict.all_findings, *more]
    document = Document(name, verdict.outcome, verdict.exit_code, findings=findings, data=data)
    lines = [memory_summary(verdict), *gpu_lines(data["gpus"])]
    if cards.machine is not None:
        lines.append(f"{cards.where}: {cards.machine.describe()}")
    return emit(app, document, lambda: "\n".join(lines))


def _status_lines(target: str, data: dict[str, Any]) -> list[str]:
    from opsctl.cli.render import columns, mib

    rows = []
    for card in data["gpus"]:
        rows.append(
            (
                "?" if card["index"] is None else str(card["index"]),
                card["uuid"][:12],
                card["state"],
                mib(card["used_bytes"]),
                mib(card["reserved_bytes"]),
                "not learned" if card["baseline_bytes"] is None else mib(card["baseline_bytes"]),
                _holders(card["holders"]),
                card["name"] or "unknown",
            )
        )
    head = ("gpu", "uuid", "state", "used", "reserved", "baseline", "holders", "name")
    lines = [f"{target}: driver {data['driver_version'] or 'unknown'}", *columns(rows, head)]
    if data["learned"]:
        lines.append(f"learned the idle baseline of {counted(len(data['learned']), 'GPU')}")
    return lines


def _holders(found: list[dict[str, Any]]) -> str:
    """Return who holds a card, by what is known best: the site's server, else the class."""
    words = (
        f"{h['pid']} ({(h['server'] and 'server ' + h['server']) or h['class'] or '?'})"
        for h in found
    )
    return ", ".join(words) or "nobody"


for _command in (status, verify, wait, probe):
    gpu.add_command(_command)
