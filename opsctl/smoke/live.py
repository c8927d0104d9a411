"""The live view on a terminal: a table that grows, and the level in hand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from opsctl.agent.ops.load_level import progress_of
from opsctl.domain.report import LevelReport
from opsctl.smoke.report import COLUMNS, level_cells

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from opsctl.smoke.load import RawLevel

REFRESH_S = 0.2
STYLES = {
    "passed": "green",
    "failed": "bold red",
    "crashed": "bold red",
    "hung": "bold red",
    "not-measured": "yellow",
}


class LiveView:
    """Draws on stderr, so that stdout stays the result."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console(stderr=True)
        self._levels: list[LevelReport] = []
        self._now: list[str] | None = None
        self._note = ""
        self._drawn_s = 0.0
        self._seen = 0
        self._bytes = 0
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def __call__(self, kind: str, payload: dict[str, Any]) -> None:
        if kind == "tick":
            if time.monotonic() - self._drawn_s < REFRESH_S:
                return
            self._now = self._progress(payload["raw"], payload.get("progress"))
        elif kind == "start":
            self._note = f"{payload['info'].kind} server, {payload['info'].api} route; warming up"
        elif kind == "level":
            self._note = ""
            self._now = [str(payload["concurrency"]), "running", "0", "0", "-", "-", "-", "-", "-"]
        elif kind == "level-end":
            self._levels.append(payload["level"])
            self._now = None
        elif kind == "confirm":
            self._note = f"sign of trouble: {payload['sign'].detail}; looking whether it lives"
        elif kind == "evidence":
            self._note = "collecting evidence"
        self._draw()

    def close(self) -> None:
        """Take the view away; the final table is the command's result."""
        self._live.stop()

    def _progress(self, raw: RawLevel, told: dict[str, Any] | None) -> list[str]:
        now = progress_of(raw) if told is None else told
        ttft = "-" if now["ttft_ms"] is None else f"{now['ttft_ms']:.1f}"
        rate = f"~{now['chunks'] / now['seconds']:.0f}" if now["seconds"] > 0.5 else "-"
        return [
            str(raw.concurrency),
            f"{now['in_flight']} running",
            f"{now['ended']}/{raw.jobs}",
            str(now["failed"]),
            rate,
            ttft,
            "-",
            "-",
            "-",
        ]

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        self._live.update(self._table(), refresh=True)

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, caption=self._note or None, caption_justify="left")
        for index, name in enumerate(COLUMNS):
            table.add_column(name, justify="left" if index < 2 else "right")
        for level in self._levels:
            cells = level_cells(level)
            style = STYLES.get(level.outcome.value, "")
            table.add_row(*(Text(cell, style if i == 1 else "") for i, cell in enumerate(cells)))
        if self._now is not None:
            table.add_row(*(Text(cell, "dim") for cell in self._now))
        return table
