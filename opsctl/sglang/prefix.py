"""Strip what carriers put before a line: the journal, containers, Ray, PyTorch, the kernel, SGLang."""

from __future__ import annotations

import re

from opsctl.records import dataclass

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RANK_WORDS = r"(?:ATTN_|MOE_)?(?:TP|DP|EP|PP|CP)\d+"
_LEVELS = "ERROR|WARNING|INFO|CRITICAL|DEBUG"
_NO_MORE = r"(?! \d\d-\d\d )(?::(?! +Exception in ASGI) *)?"  # vLLM's level stands before its stamp
_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_LOCAL = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?[+-]\d\d:?\d\d"  # journalctl, rsyslog
_KIBANA = r"[A-Z][a-z]{2} \d{1,2}, \d{4} @ \d\d:\d\d:\d\d\.\d+"
_SYSLOG = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?"

_CARRIERS: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?P<time>{_ISO}) (?:stdout|stderr) [FP] ",
        rf"(?:\d{{13}}\t)?(?P<time>{_ISO})\t",  # exports of log stores: an indentation follows
        rf"(?P<time>{_KIBANA}) {{4}}",
        rf"(?P<time>{_SYSLOG}|{_LOCAL}) (?P<host>[\w.-]+) (?P<source>[\w@.:/ ()-]{{1,60}}?(?:\[\d+\])?): ?",
        # Docker's stamps look alike and are followed by anything: here the pid must be there
        rf"(?P<time>{_ISO}) (?P<host>[\w.-]+) (?P<source>[\w@.:/-]{{1,60}}\[\d+\]): ?",
        r"\[ *\d+\.\d{1,6}\] (?P<host>[\w.-]+) (?P<source>[\w@.:/-]+\[\d+\]): ",
        r"\[ *\d{1,9}\.\d{3,6}\] ?",
        r"\((?P<source>[\w:./-]+ pid=\d+(?:, ip=[\d.]+)?)\) ?",
        r"\[pod/[^\]]+\] ",
        r"(?P<source>(?=[\d.-]{0,60}[A-Za-z_])[\w.-]{1,80}) +\| (?![-+ ]*--)",
        r"\[?(?P<source>rank\d+)\]?: ?(?=\S)",
        rf"\[(?P<time>TIME|{_ISO}|\d\d:\d\d:\d\d(?:\.\d+)?)?(?P<rank>(?: ?{_RANK_WORDS})*)\] ?",
        rf"(?P<level>{_LEVELS}) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?) \[[^\]]+\] ?",
        rf"(?P<time>{_ISO})(?: ?[-|]? ?(?P<level>{_LEVELS}){_NO_MORE})?(?: [-|])? ?",
        rf"(?P<level>{_LEVELS})(?::|  ?-|\]) +(?!Exception in ASGI)",
        r"│ ?",
        r'\{(?:\w+="[^"]*",? ?)+\} ',
    )
)
_ZONE_S = 1.5  # clocks that differ by more are not the same clock
_CLIENT = re.compile(r"(?:---? )?client(?: summary)?: ", re.IGNORECASE)
_NOTE = re.compile(r"--- (?!ps:)")
_RANK_IN_SOURCE = re.compile(r"(?:scheduler|Worker|EngineCore)\w*?_((?:(?:TP|DP|EP|PP)\d+_?)+)")
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_CLOCK = re.compile(r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_MONTH = re.compile(r"([A-Z][a-z]{2}) +(\d+)(?:, (\d{4}) @)? ")
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}
_SHORT = re.compile(r"(\d\d)-(\d\d) ")


@dataclass(frozen=True, slots=True)
class Prefix:
    """A line taken apart."""

    body: str
    time: str | None = None
    time_s: float | None = None
    rank: str | None = None
    source: str | None = None
    client: bool = False


class PrefixReader:
    """Takes lines apart; remembers the year and the day for stamps that lack them."""

    def __init__(self) -> None:
        self._year = 1970
        self._day_s = 0.0
        self._outer: re.Pattern[str] | None = None  # the carrier whose clock is in another zone
        self._shift_s = 0.0

    def read(self, line: str) -> Prefix:
        """Return the line without its prefixes (five at most), and what they said."""
        if "\x1b" in line:
            line = _ANSI.sub("", line)
        line = line.rstrip()
        if line[:1] in " \t" or not line:
            return Prefix(line)
        line = line.lstrip("\ufeff")
        if line[:1] == line[-1:] == "\u2502":  # copied out of a terminal's pane
            line = line[:-1].rstrip()
        client = False
        if (note := _NOTE.match(line)) is not None:
            line = line[note.end() :]
        if (found := _CLIENT.match(line)) is not None:
            line, client = line[found.end() :], True
        stamps: list[tuple[re.Pattern[str], str]] = []
        rank = source = None
        for _ in range(5):
            found = self._carrier(line)
            if found is None:
                break
            groups = found.groupdict()
            if groups.get("time"):
                stamps.append((found.re, groups["time"]))
            rank = (groups.get("rank") or "").strip() or rank
            source = groups.get("source") or source
            line = line[found.end() :]
        if not client and (found := _CLIENT.match(line)) is not None:
            line, client = line[found.end() :], True
        if rank is None and source is not None:
            rank = _rank_of(source)
        stamp = stamps[-1][1] if stamps else None
        return Prefix(line, stamp, self._comparable(stamps), rank, source, client)

    def _comparable(self, stamps: list[tuple[re.Pattern[str], str]]) -> float | None:
        """Return the innermost stamp's seconds; a carrier's own clock is put on the writer's.

        A log store writes UTC around a server's local time: a traceback's lines have the one, its first
        line has both.
        """
        if not stamps:
            return None
        outer, inner = stamps[0], stamps[-1]
        inner_s = self.seconds(inner[1])
        if inner_s is None:
            return None
        if outer is inner:
            return inner_s + self._shift_s if outer[0] is self._outer else inner_s
        outer_s = self.seconds(outer[1])
        inner_s = self.seconds(inner[1]) or inner_s  # each may have told the other its day
        if outer_s is not None:
            shift_s = inner_s - outer_s
            self._outer, self._shift_s = outer[0], shift_s if abs(shift_s) > _ZONE_S else 0.0
        return inner_s

    @staticmethod
    def _carrier(line: str) -> re.Match[str] | None:
        if line[:1] in " \t":
            return None
        for pattern in _CARRIERS:
            found = pattern.match(line)
            if found is not None and found.end() > 0:
                return found
        return None

    def seconds(self, stamp: str) -> float | None:
        """Return a stamp as seconds that can be compared inside one log; time zones are not applied."""
        if (found := _DATE.match(stamp)) is not None:
            year, month, day = int(found[1]), int(found[2]), int(found[3])
            self._year, self._day_s = year, _days(year, month, day) * 86400.0
            return self._day_s + _clock(found[4], found[5], found[6], found[7])
        clock = _CLOCK.search(stamp)
        if clock is None:
            return None
        if (month_day := _MONTH.match(stamp)) is not None and month_day[1] in _MONTHS:
            self._year = int(month_day[3] or self._year)
            day_s = _days(self._year, _MONTHS[month_day[1]], int(month_day[2])) * 86400.0
        elif (short := _SHORT.match(stamp)) is not None:
            day_s = _days(self._year, int(short[1]), int(short[2])) * 86400.0
        else:
            day_s = self._day_s
        return day_s + _clock(*clock.groups())


def _rank_of(source: str) -> str | None:
    if source.startswith("rank"):
        return source
    found = _RANK_IN_SOURCE.search(source)
    return found[1].strip("_").replace("_", " ") if found is not None else None


def _days(year: int, month: int, day: int) -> int:
    return year * 372 + month * 31 + day  # monotonic; true calendar days are not needed


def _clock(hours: str, minutes: str, seconds: str, fraction: str | None) -> float:
    value = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    return value + (float(f"0.{fraction}") if fraction else 0.0)
