"""What a crashed or hung level means, by the server's log. Pure."""

from __future__ import annotations

from typing import Any

from opsctl.domain.report import LevelReport, Outcome
from opsctl.sglang.info import ServerInfo


def diagnose_level(
    level: LevelReport, info: ServerInfo, log_text: str, threshold: int | None
) -> dict[str, Any] | None:
    """Return the diagnosis of a level; None when there is no log to judge it by.

    Args:
        level: the first bad level.
        info: what the server said of itself before: the sizes of the launch.
        log_text: what the log gained during the run; empty when nobody could read it.
        threshold: speculation is off above so many requests.
    """
    hung = level.outcome is Outcome.HUNG
    if not log_text.strip() and not hung:
        return None
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
    confirmed_by = (level.sign or {}).get("confirmed_by")
    alive = None if confirmed_by is None else confirmed_by == "generation"
    context = Context(level.concurrency, launch, hung=hung, port_alive=alive)
    found = diagnose(records_of(log_text), context)
    if found.category is None and not hung:
        return None
    return found.as_data()
