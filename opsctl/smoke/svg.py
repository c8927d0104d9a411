"""Plots as inline SVG: curves over concurrency, and a level's requests over time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from opsctl.records import dataclass

WIDTH, HEIGHT = 420, 230
BAR_WIDTH = 800
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 40
ROW_LIMIT = 120  # bars in one timeline; more are left out evenly, and said to be


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot; points with None are gaps."""

    label: str
    points: tuple[tuple[float, float | None], ...]
    colour: int = 0  # index of the palette in the style sheet
    dashed: bool = False


def line_plot(title: str, unit: str, curves: Sequence[Curve]) -> str:
    """Return a plot over concurrency (logarithmic) from zero up, with a legend below."""
    xs = sorted({x for curve in curves for x, _ in curve.points})
    ys = [y for curve in curves for _, y in curve.points if y is not None]
    if not xs or not ys:
        return f'<p class="quiet">{escape(title)}: nothing was measured</p>'
    top = nice_top(max(ys))
    ticks = [top * i / 4 for i in range(5)]
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
    ]
    for value in ticks:
        y = _y(value, top)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4}" text-anchor="end">')
        parts.append(f"{short(value)}</text>")
    for x in _thin(xs):
        at = _x(x, xs)
        parts.append(f'<text class="tick" x="{at}" y="{HEIGHT - 22}" text-anchor="middle">')
        parts.append(f"{x:g}</text>")
    parts.append(
        f'<text class="tick" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}" '
        'text-anchor="middle">requests in flight</text>'
    )
    for curve in curves:
        parts.append(_polyline(curve, xs, top, unit))
    parts.append("</svg>")
    legend = "".join(
        f'<li><i class="c{curve.colour}{" dashed" if curve.dashed else ""}"></i>'
        f"{escape(curve.label)}</li>"
        for curve in curves
    )
    return (
        f"<figure><figcaption>{escape(title)} <small>{escape(unit)}</small></figcaption>"
        f'{"".join(parts)}<ul class="legend">{legend}</ul></figure>'
    )


def _polyline(curve: Curve, xs: Sequence[float], top: float, unit: str) -> str:
    dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
    segments: list[list[tuple[float, float]]] = [[]]
    marks: list[str] = []
    for x, y in curve.points:
        if y is None:
            segments.append([])
            continue
        at, height = _x(x, xs), _y(y, top)
        segments[-1].append((at, height))
        tip = escape(f"{curve.label}: {y:.4g} {unit} at C={x:g}")
        marks.append(
            f'<circle class="c{curve.colour}" cx="{at}" cy="{height}" r="3.5">'
            f"<title>{tip}</title></circle>"
        )
    lines = [
        f'<polyline class="c{curve.colour}"{dash} points="{" ".join(f"{a},{b}" for a, b in part)}"/>'
        for part in segments
        if len(part) > 1
    ]
    return "".join(lines + marks)


def timeline(rows: Sequence[Sequence[Any]], title: str) -> str:
    """Return one bar per request: waiting, streaming, and how it ended.

    Args:
        rows: sent, first token, end (seconds since the level began), tokens, failure or None.
    """
    whole = [row for row in rows if row[0] is not None and row[2] is not None]
    if not whole:
        return ""
    step = max(1, math.ceil(len(whole) / ROW_LIMIT))
    shown = whole[::step]
    last = max(float(row[2]) for row in whole) or 1.0
    height = 6
    total = len(shown) * height + 26

    def x(seconds: float) -> float:
        return round(6 + seconds / last * (BAR_WIDTH - 12), 1)

    parts = [f'<svg viewBox="0 0 {BAR_WIDTH} {total}" role="img" aria-label="{escape(title)}">']
    for number, (sent, first, end, tokens, failure) in enumerate(shown):
        y = number * height + 2
        middle = end if first is None else first
        tip = f"sent {sent:.3f} s, end {end:.3f} s"
        tip += "" if first is None else f", first token after {(first - sent) * 1e3:.1f} ms"
        tip += "" if tokens is None else f", {tokens} tokens"
        tip += "" if failure is None else f", {failure}"
        kind = "bad" if failure else "good"
        parts.append(f"<g><title>{escape(tip)}</title>")
        parts.append(_bar("wait", x(sent), x(middle), y, height))
        parts.append(_bar(kind, x(middle), x(end), y, height))
        parts.append("</g>")
    for share in (0.0, 0.5, 1.0):
        anchor = {0.0: "start", 0.5: "middle", 1.0: "end"}[share]
        parts.append(
            f'<text class="tick" x="{x(last * share)}" y="{total - 6}" text-anchor="{anchor}">'
            f"{last * share:.2f} s</text>"
        )
    parts.append("</svg>")
    note = "" if step == 1 else f" <small>every {step}. of {len(whole)} requests</small>"
    return f"<figure><figcaption>{escape(title)}{note}</figcaption>{''.join(parts)}</figure>"


def _bar(kind: str, start: float, end: float, y: float, height: float) -> str:
    width = round(max(0.6, end - start), 1)
    return f'<rect class="{kind}" x="{start}" y="{y}" width="{width}" height="{height - 1.5}"/>'


def nice_top(value: float) -> float:
    """Return a round number at or above a value, as the top of an axis."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 4, 5, 8, 10) if step * power >= value * 0.9999)


def short(value: float) -> str:
    """Return an axis value with few characters."""
    if value >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.4g}"


def _x(value: float, xs: Sequence[float]) -> float:
    low, high = math.log(xs[0]), math.log(xs[-1])
    share = 0.5 if high == low else (math.log(value) - low) / (high - low)
    return round(LEFT + 10 + share * (WIDTH - LEFT - RIGHT - 20), 1)


def _y(value: float, top: float) -> float:
    return round(HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM), 1)


def _thin(xs: Sequence[float]) -> list[float]:
    """Return the values whose labels do not overlap."""
    kept: list[float] = []
    for x in xs:
        if not kept or _x(x, xs) - _x(kept[-1], xs) >= 26:
            kept.append(x)
    return kept
