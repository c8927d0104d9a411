"""What a crashed or hung level means, by the server's log. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opsctl.domain.report import LevelReport, Outcome
from opsctl.sglang.info import ServerInfo

if TYPE_CHECKING:
    from opsctl.smoke.agent_watch import AgentWatch
    from opsctl.smoke.result import SmokeReport

CAUSE_CHARS = 160  # of the first abnormal record, in a level's reason


def diagnose_level(
    level: LevelReport,
    info: ServerInfo,
    log_text: str,
    threshold: int | None,
    *,
    last_good: int | None = None,
    exits: Sequence[Mapping[str, Any]] = (),
    log: str | None = None,
    server: str | None = None,
    way_out: str | None = None,
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
        server: the server's name in the site; None for a URL.
        way_out: what to do about a known-bad patch in place; None: there is none, or it is not known.
    """
    dead = level.outcome in (Outcome.CRASHED, Outcome.HUNG)
    found = None
    if log_text.strip():
        found = _of_log(level, info, log_text, threshold, server, last_good, way_out)
    if found is None and dead:
        from opsctl.smoke.outside import diagnose_outside

        found = diagnose_outside(level, info, threshold, last_good, exits, log)
        found["next"] = ([way_out] if way_out else []) + found["next"]
    return found


def _of_log(
    level: LevelReport,
    info: ServerInfo,
    log_text: str,
    threshold: int | None,
    server: str | None,
    last_good: int | None,
    way_out: str | None,
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
        graphs_disabled=True if info.raw.get("disable_cuda_graph") else None,
    )
    sign = level.sign or {}
    alive = sign.get("port_alive", sign.get("confirmed_by") == "generation" if sign else None)
    hung = level.outcome is Outcome.HUNG
    context = Context(
        level.concurrency,
        launch,
        hung=hung,
        port_alive=alive,
        server=server,
        exact=level.concurrency <= (last_good or 0) + 1,
        way_out=way_out,
    )
    found = diagnose(records_of(log_text), context)
    if found.category is None or (found.category == "unknown" and found.signature is None):
        return None
    return found.as_data() | {"basis": "log"}


def name_cause(level: LevelReport, found: Mapping[str, Any] | None) -> None:
    """Let a dead level's reason begin with the first abnormal record; which process ended comes second.

    The process whose end is seen first is often one that a dying scheduler took with it.
    """
    record = (found or {}).get("first_record")
    if found is None or not record or level.outcome not in (Outcome.CRASHED, Outcome.HUNG):
        return
    text = re.sub(r"^\[[^\]]*\] ", "", str(record).splitlines()[0])
    text = text if len(text) <= CAUSE_CHARS else text[: CAUSE_CHARS - 3] + "..."
    words = f"{found['rank']}: {text}" if found.get("rank") else text
    if not level.reason.startswith(words):
        level.reason = f"{words}; {level.reason}"


def explain(
    report: SmokeReport,
    bad: LevelReport,
    watch: AgentWatch | None,
    server: str | None = None,
    way_out: str | None = None,
) -> dict[str, Any] | None:
    """Return the diagnosis of a report's first bad level, from all that was seen of it.

    The level's reason and its finding name the cause then, and the finding's advice to look for one goes.
    """
    found = _explain(report, bad, watch, server, way_out)
    was = bad.reason
    name_cause(bad, found)
    code = f"level-{bad.outcome.value}"
    for index, finding in enumerate(report.findings):
        if found is not None and finding.code == code and finding.text == was:
            report.findings[index] = replace(finding, text=bad.reason, next="")
    return found


def _explain(
    report: SmokeReport,
    bad: LevelReport,
    watch: AgentWatch | None,
    server: str | None,
    way_out: str | None,
) -> dict[str, Any] | None:
    read = watch is not None and watch.log_path is not None and watch.problem is None
    return diagnose_level(
        bad,
        report.info,
        watch.text if watch is not None else "",
        report.options.threshold,
        last_good=(report.bracket or {}).get("last_good"),
        exits=watch.exits if watch is not None else (),
        log=watch.log_path if read and watch is not None else None,
        server=server,
        way_out=way_out,
    )
