"""The report as one HTML file that needs no network: plots, timelines, evidence, compared runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from opsctl.smoke.svg import Curve, line_plot, timeline

Run = Mapping[str, Any]

STYLE = """
:root{color-scheme:light dark;--bg:#fbfbfa;--fg:#1d2024;--quiet:#62686f;--line:#dfe1e4;--card:#fff;
--good:#2b7a4b;--bad:#b3261e;--warn:#8a5a00;--wait:#c9cdd2;
--c0:#2563a8;--c1:#c2570c;--c2:#5b7f1f;--c3:#8a3fa0;--c4:#0f7f86;--c5:#9a3b4f}
@media(prefers-color-scheme:dark){:root{--bg:#16181b;--fg:#e7e9ec;--quiet:#9aa1a9;--line:#33373d;
--card:#1e2125;--good:#6cc08b;--bad:#f2857d;--warn:#e0b050;--wait:#4a4f57;
--c0:#6fa8e8;--c1:#f0995a;--c2:#a5c760;--c3:#c98adb;--c4:#5cc4ca;--c5:#e38a9c}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1080px;padding:20px 16px 60px;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:1.35rem;margin:0 0 2px;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:32px 0 8px}
.quiet,small{color:var(--quiet)}.badge{font-weight:650}
.passed{color:var(--good)}.failed,.crashed,.hung{color:var(--bad)}.not-measured{color:var(--warn)}
.verdict{border-left:4px solid currentColor;padding:8px 14px;margin:14px 0;background:var(--card)}
.verdict p{margin:2px 0;color:var(--fg)}
.scroll{overflow-x:auto;border:1px solid var(--line);background:var(--card)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.92rem}
th,td{padding:6px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th{color:var(--quiet);font-weight:550}th:nth-child(-n+2),td:nth-child(-n+2){text-align:left}
tr:last-child td{border-bottom:0}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(290px,1fr));gap:14px}
figure{margin:0;padding:10px 12px;border:1px solid var(--line);background:var(--card)}
figcaption{font-weight:550;font-size:.95rem;margin-bottom:4px}figcaption small{font-weight:400}
svg{display:block;width:100%;height:auto}
.grid{stroke:var(--line)}.tick{fill:var(--quiet);font-size:12px}
polyline{fill:none;stroke-width:2}
rect.wait{fill:var(--wait)}rect.good{fill:var(--c0)}rect.bad{fill:var(--bad)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 16px;margin:6px 0 0;padding:0;font-size:.88rem}
.legend i{display:inline-block;width:18px;border-top:3px solid;margin-right:6px;vertical-align:middle}
.legend i.dashed{border-top-style:dashed}
pre{overflow:auto;max-height:420px;padding:10px 12px;border:1px solid var(--line);background:var(--card);
font:13px/1.45 ui-monospace,Menlo,monospace;margin:6px 0}
details{margin:8px 0}summary{cursor:pointer}
"""
COLOURS = 6


def html_report(runs: Sequence[Run], comparison: Sequence[str] = ()) -> str:
    """Return the page for one run, or for several with the first as the one reported on.

    Args:
        runs: saved results (see ``store``).
        comparison: sentences of the comparison, shown above the plots.
    """
    main = runs[0]
    labels = [_label(run) for run in runs]
    body = [
        _head(main),
        _verdict(main),
        _sentences(comparison),
        f'<div class="plots">{_plots(runs, labels)}</div>',
        _tables(runs, labels),
        _findings(main),
        _evidence(main),
        _timelines(main),
    ]
    title = f"smoke of {main.get('url', '')}: {main.get('outcome', '')}"
    colours = "".join(
        f".c{i}{{color:var(--c{i});border-color:var(--c{i})}}"
        f"polyline.c{i}{{stroke:var(--c{i})}}circle.c{i}{{fill:var(--c{i})}}"
        for i in range(COLOURS)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{colours}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _label(run: Run) -> str:
    return str(run.get("label") or run.get("run") or "run")


def _head(run: Run) -> str:
    server = run.get("server") or {}
    parts = [server.get("kind"), server.get("version"), server.get("model")]
    what = " ".join(str(part) for part in parts if part)
    facts = [
        run.get("at"),
        f"{run.get('api')} route",
        f"{run.get('profile')} profile",
        "closed loop",
        f"seed {run.get('seed')}",
        f"run {run.get('run')}",
    ]
    line = ", ".join(str(fact) for fact in facts if fact)
    return (
        f"<h1>{escape(str(run.get('url', '')))}</h1>"
        f'<div class="quiet">{escape(what)}<br>{escape(line)}</div>'
    )


def _verdict(run: Run) -> str:
    outcome = str(run.get("outcome"))
    lines = []
    bracket = run.get("bracket")
    if bracket:
        good = bracket.get("last_good")
        lines.append(
            f"last good C={good if good is not None else 'none'}, "
            f"first bad C={bracket['first_bad']}"
        )
    bisection = run.get("bisection")
    if bisection:
        how = {True: "every time", False: "not every time", None: "not repeated"}
        lines.append(
            f"exact first bad C={bisection['first_bad']}, it fails "
            f"{how[bisection.get('deterministic')]}"
        )
    bad = next((level for level in _levels(run) if level["outcome"] != "passed"), None)
    if bad is not None:
        lines.append(str(bad.get("reason")))
    diagnosis = run.get("diagnosis") or {}
    if diagnosis.get("category"):
        lines.append(f"diagnosis: {diagnosis['category']}. {diagnosis.get('explanation') or ''}")
        if diagnosis.get("next"):
            lines += [f"next: {step}" for step in diagnosis["next"]]
    text = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return (
        f'<div class="verdict {escape(outcome)}"><span class="badge">{escape(outcome)}</span>'
        f"{text}</div>"
    )


def _sentences(comparison: Sequence[str]) -> str:
    if not comparison:
        return ""
    lines = "".join(f"<li>{escape(line)}</li>" for line in comparison)
    return f"<h2>Comparison</h2><ul>{lines}</ul>"


def _levels(run: Run) -> list[Mapping[str, Any]]:
    mixed = run.get("mixed")
    return [*run["levels"], *([mixed] if mixed else []), *(run.get("down") or [])]


def _points(run: Run, name: str, part: str | None = None) -> tuple[tuple[float, float | None], ...]:
    points: list[tuple[float, float | None]] = []
    for level in run["levels"]:
        value = level.get(name)
        if part is not None:
            value = value.get(part) if isinstance(value, Mapping) else None
        good = level["outcome"] == "passed" and isinstance(value, int | float)
        points.append((float(level["concurrency"]), float(value) if good else None))
    return tuple(points)


def _plots(runs: Sequence[Run], labels: Sequence[str]) -> str:
    def curves(name: str, parts: Sequence[str | None]) -> list[Curve]:
        found = []
        for index, (run, label) in enumerate(zip(runs, labels, strict=True)):
            for number, part in enumerate(parts):
                said = " ".join(word for word in (label if len(runs) > 1 else "", part) if word)
                found.append(
                    Curve(said or label, _points(run, name, part), index % COLOURS, number > 0)
                )
        return found

    return "".join(
        [
            line_plot("Throughput", "output tokens/s", curves("output_tok_s", [None])),
            line_plot("Time to first token", "ms", curves("ttft_ms", ["p50", "p99"])),
            line_plot("Time per token (ITL)", "ms", curves("itl_ms", ["p50", "p99"])),
        ]
    )


def _cell(level: Mapping[str, Any], name: str, part: str | None = None) -> str:
    value = level.get(name)
    if part is not None:
        value = value.get(part) if isinstance(value, Mapping) else None
    return "" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def _tables(runs: Sequence[Run], labels: Sequence[str]) -> str:
    head = "".join(
        f"<th>{name}</th>"
        for name in (
            "C",
            "outcome",
            "requests",
            "failed",
            "tok/s",
            "TTFT p50",
            "TTFT p99",
            "ITL p50",
            "ITL p99",
            "accept",
            "in flight",
            "client lag",
        )
    )
    found = []
    for run, label in zip(runs, labels, strict=True):
        rows = []
        for level in _levels(run):
            phase = "" if level.get("phase") == "up" else f" {level.get('phase')}"
            outcome = escape(level["outcome"])
            lag = ((level.get("client") or {}).get("lag_ms") or {}).get("p90")
            cells = [
                f"{level['concurrency']}{escape(phase)}",
                f'<span class="badge {outcome}">{outcome}</span>',
                _cell(level, "requests"),
                _cell(level, "failed"),
                _cell(level, "output_tok_s"),
                _cell(level, "ttft_ms", "p50"),
                _cell(level, "ttft_ms", "p99"),
                _cell(level, "itl_ms", "p50"),
                _cell(level, "itl_ms", "p99"),
                _cell(level, "accept_length"),
                _cell(level, "in_flight", "mean"),
                "" if lag is None else f"{lag:.1f}",
            ]
            rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        caption = f" of {escape(label)}" if len(runs) > 1 else ""
        found.append(
            f'<h2>Levels{caption} <small>times in ms</small></h2><div class="scroll"><table><thead>'
            f"<tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        )
    return "".join(found)


def _findings(run: Run) -> str:
    findings = run.get("findings") or []
    if not findings:
        return ""
    lines = []
    for finding in findings:
        tail = f"<br><small>next: {escape(finding['next'])}</small>" if finding.get("next") else ""
        lines.append(f"<li>{escape(finding['subject'])}: {escape(finding['text'])}{tail}</li>")
    return f"<h2>Findings</h2><ul>{''.join(lines)}</ul>"


def _evidence(run: Run) -> str:
    evidence = run.get("evidence") or {}
    parts = []
    for exit_ in evidence.get("exits") or []:
        code = exit_.get("exit_code")
        how = "" if code is None else f", signal {-code}" if code < 0 else f", exit {code}"
        parts.append(f"<p>{escape(str(exit_.get('name')))} ended{how}</p>")
    if evidence.get("last_batch"):
        parts.append(f"<p>last batch</p><pre>{escape(evidence['last_batch'])}</pre>")
    log = evidence.get("log") or {}
    if log.get("window"):
        window = "\n".join(log["window"])
        parts.append(
            f"<details open><summary>log ({escape(str(log.get('path')))})</summary>"
            f"<pre>{escape(window)}</pre></details>"
        )
    for process in evidence.get("alive") or []:
        stacks = [process.get("python_stack"), process.get("kernel_stack"), process.get("wchan")]
        said = "\n".join(str(stack) for stack in stacks if stack) or "no stack could be read"
        name = escape(f"{process.get('title')} (state {process.get('state')})")
        parts.append(f"<details><summary>{name}</summary><pre>{escape(said)}</pre></details>")
    if evidence.get("kernel"):
        parts.append(f"<p>kernel log</p><pre>{escape(chr(10).join(evidence['kernel']))}</pre>")
    if evidence.get("gpu"):
        dump = json.dumps(evidence["gpu"], indent=1, default=str)
        parts.append(f"<details><summary>GPUs</summary><pre>{escape(dump)}</pre></details>")
    return f"<h2>Evidence</h2>{''.join(parts)}" if parts else ""


def _timelines(run: Run) -> str:
    parts = []
    for level in _levels(run):
        phase = "" if level.get("phase") == "up" else f" ({level.get('phase')})"
        drawn = timeline(level.get("timeline") or [], f"C={level['concurrency']}{phase}")
        if drawn:
            open_ = " open" if level["outcome"] != "passed" else ""
            parts.append(
                f"<details{open_}><summary>C={level['concurrency']}{escape(phase)}: "
                f"{escape(level['outcome'])}</summary>{drawn}</details>"
            )
    if not parts:
        return ""
    legend = '<p class="quiet">One bar per request: grey until its first token, then blue; red failed.</p>'
    return f"<h2>Requests over time</h2>{legend}{''.join(parts)}"
