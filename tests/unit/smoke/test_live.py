"""The live view, and the plain lines of CI."""

from __future__ import annotations

import io

from rich.console import Console

from opsctl.domain.report import LevelReport, Outcome
from opsctl.sglang.client import Ended, Exchange
from opsctl.sglang.info import ServerInfo
from opsctl.smoke.live import LiveView
from opsctl.smoke.load import RawLevel, Sign
from opsctl.smoke.report import PlainView


def events() -> list[tuple[str, dict[str, object]]]:
    exchange = Exchange(b"")
    exchange.sent_s, exchange.times, exchange.status = 1.0, [1.02], 200
    exchange.finish(Ended.COMPLETE, 1.1)
    raw = RawLevel("up5", 5, 15, [exchange], started_s=1.0)
    level = LevelReport(5, Outcome.CRASHED, "the port is closed", requests=15, failed=15)
    return [
        ("start", {"info": ServerInfo("chat", "sglang"), "levels": (1, 5), "tokens": 32}),
        ("level", {"concurrency": 5, "phase": "up", "requests": 15}),
        ("tick", {"raw": raw}),
        ("confirm", {"sign": Sign("http", 1.0, "connection reset")}),
        ("evidence", {}),
        ("level-end", {"level": level, "requests": []}),
    ]


def test_live_view_shows_progress_and_verdicts() -> None:
    """On a terminal: the level in hand with its counts, then its outcome in the table."""
    out = io.StringIO()
    view = LiveView(Console(file=out, force_terminal=True, width=100, _environ={"TERM": "xterm"}))

    for kind, payload in events():
        view._drawn_s = 0.0
        view(kind, payload)
    view.close()

    text = out.getvalue()
    assert "1/15" in text
    assert "20.0" in text
    assert "crashed" in text
    assert "connection reset" in text


def test_plain_lines_are_one_per_step() -> None:
    """In CI: no control characters, nothing redrawn."""
    lines: list[str] = []
    view = PlainView(lines.append)

    for kind, payload in events():
        view(kind, payload)

    assert lines[0] == "smoke: sglang server, chat route, levels 1, 5"
    assert lines[-1] == "C=5: crashed: the port is closed"
    assert not any("\x1b" in line for line in lines)
