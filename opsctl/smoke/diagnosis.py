"""What a crashed or hung level means, by the server's log. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opsctl.domain.report import LevelReport, Outcome
from opsctl.sglang.info import ServerInfo

if TYPE_CHECKING:
    from opsctl.smoke.agent_watch import AgentWatch
    from opsctl.smoke.result import SmokeReport


def diagnose_level(
    level: LevelReport,
    info: ServerInfo,
    log_text: str,
    threshold: int | None,
    *,
    last_good: int | None = None,
    exits: Sequence[Mapping[str, Any]] = (),
    log: str | None = None,
) -> dict[str, Any] | None:
    """Return the diagnosis of a level; None for failed answers that the log says nothing of.

    Args:
        level: the first bad level.
        info: what the server said of itself before: the sizes of the launch.
        log_text: what the log gained during the run; empty when nobody could read it.
        threshold: speculation is off above so many requests.
        last_good: the level before it that passed.
        exits: the ends of processes that the watch saw.
        log: the log that was read; None when nobody could read one.
    """
    dead = level.outcome in (Outcome.CRASHED, Outcome.HUNG)
    found = _of_log(level, info, log_text, threshold) if log_text.strip() else None
    if found is None and dead:
        from opsctl.smoke.outside import diagnose_outside

        return diagnose_outside(level, info, threshold, last_good, exits, log)
    return found


def _of_log(
    level: LevelReport, info: ServerInfo, log_text: str, threshold: int | None
) -> dict[str, Any] | None:
    # The rules are many: a run that ends well never loads them.
    from opsctl.domain.crash import Context, Launch, diagnose
    from opsctl.sglang.log import records_of

    launch = Launch(
        draft_tokens=info.draft_tokens,
        context_length=info.context_tokens,
        max_running_requests=info.max_running,
        graph_sizes=info.graph_sizes,
        threshold=threshold,
        tp=info.tp,
    )
    sign = level.sign or {}
    alive = sign.get("port_alive", sign.get("confirmed_by") == "generation" if sign else None)
    hung = level.outcome is Outcome.HUNG
    context = Context(level.concurrency, launch, hung=hung, port_alive=alive)
    found = diagnose(records_of(log_text), context)
    if found.category is None or (found.category == "unknown" and found.signature is None):
        return None
    return found.as_data() | {"basis": "log"}


def explain(
    report: SmokeReport, bad: LevelReport, watch: AgentWatch | None
) -> dict[str, Any] | None:
    """Return the diagnosis of a report's first bad level, from all that was seen of it."""
    read = watch is not None and watch.log_path is not None and watch.problem is None
    return diagnose_level(
        bad,
        report.info,
        watch.text if watch is not None else "",
        report.options.threshold,
        last_good=(report.bracket or {}).get("last_good"),
        exits=watch.exits if watch is not None else (),
        log=watch.log_path if read and watch is not None else None,
    )
