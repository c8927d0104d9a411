"""The page: summary, servers, signatures, and every run as a line that opens. Pure; everything is escaped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape

from opsctl.domain.counted import counted
from opsctl.report.content import TREND, Content, Group, Run, Server, kind_of
from opsctl.report.details import details
from opsctl.smoke.html import COLOURS, STYLE
from opsctl.smoke.svg import Curve, line_plot

CURVES = 4  # newest smokes of a server in one plot
OWN_STYLE = """
.good{color:var(--good)}.bad{color:var(--bad)}.unsure{color:var(--warn)}.open{color:var(--quiet)}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,320px),1fr));gap:14px}
.card{border:1px solid var(--line);background:var(--card);padding:12px 14px;min-width:0}
.card h3{font-size:1rem;margin:0 0 4px;overflow-wrap:anywhere}.card p{margin:3px 0;overflow-wrap:anywhere}
.card figure{border:0;padding:0;margin-top:8px}
.marks{display:flex;gap:2px;margin:8px 0 4px;height:22px}
.marks a{flex:1 1 0;max-width:9px;background:currentColor}
.marks a.good{opacity:.75}.marks a.open{opacity:.45}
details.run{border:1px solid var(--line);border-bottom:0;background:var(--card);margin:0;
content-visibility:auto;contain-intrinsic-size:auto 46px}
details.run:last-of-type{border-bottom:1px solid var(--line)}
details.run>summary{padding:8px 12px;display:grid;gap:0 12px;list-style:none;
grid-template-columns:minmax(9.5em,max-content) minmax(0,1.2fr) minmax(0,1.4fr) minmax(0,1fr)}
details.run>summary::-webkit-details-marker{display:none}
details.run>summary:hover,details.run[open]>summary{background:var(--bg)}
details.run span{overflow-wrap:anywhere;min-width:0}
.inside{padding:2px 12px 12px;min-width:0}.inside h4{font-size:.92rem;margin:14px 0 4px}
.inside p,.inside li{overflow-wrap:anywhere}
.inside ul{margin:4px 0;padding-left:20px}
.bars{display:grid;grid-template-columns:max-content max-content minmax(0,1fr);gap:1px 10px;font-size:.88rem}
.bars i{display:block;height:9px;margin-top:6px;background:currentColor;min-width:2px;opacity:.7}
.bars b{font-weight:400;font-variant-numeric:tabular-nums;text-align:right}
.bars small{overflow-wrap:anywhere}
pre{white-space:pre-wrap;overflow-wrap:anywhere}
input{font:inherit;width:100%;padding:8px 12px;margin:0 0 10px;color:inherit;background:var(--card);
border:1px solid var(--line)}
:focus-visible{outline:2px solid var(--c0);outline-offset:1px}
@media(max-width:640px){details.run>summary{grid-template-columns:minmax(0,1fr) max-content}
details.run>summary span:nth-child(n+3){grid-column:1/-1}}
"""
# Narrows the list while one types, and opens the run that a link leads to. Without it the page is whole.
SCRIPT = """
const box=document.getElementById("find"),runs=[...document.querySelectorAll("details.run")];
box.hidden=false;
box.addEventListener("input",()=>{const words=box.value.toLowerCase().split(/\\s+/).filter(Boolean);let n=0;
for(const run of runs){const text=run.firstElementChild.textContent.toLowerCase();
run.hidden=!words.every(word=>text.includes(word));n+=!run.hidden}
document.getElementById("found").textContent=words.length?n+" of "+runs.length+" runs":""});
const open=()=>{const run=document.getElementById(location.hash.slice(1));
if(run&&run.matches("details")){run.open=true;run.scrollIntoView()}};
addEventListener("hashchange",open);open();
"""
POLICY = "default-src 'none';style-src 'unsafe-inline';script-src 'unsafe-inline'"


def history_page(content: Content) -> str:
    """Return the whole page."""
    colours = "".join(
        f".c{i}{{color:var(--c{i});border-color:var(--c{i})}}"
        f"polyline.c{i}{{stroke:var(--c{i})}}circle.c{i}{{fill:var(--c{i})}}"
        for i in range(COLOURS)
    )
    body = [_head(content), _servers(content.servers), _groups(content.groups), _runs(content)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>opsctl: runs of {counted(len(content.servers), 'server')}</title>"
        f"<style>{STYLE}{colours}{OWN_STYLE}</style></head>"
        f"<body>{''.join(body)}<script>{SCRIPT}</script></body></html>\n"
    )


def _head(content: Content) -> str:
    shown, total = len(content.runs), content.total
    kinds = [kind_of(run.row) for run in content.runs]
    said = [f"{shown} runs" if shown == total else f"the newest {shown} of {total} runs"]
    said += [content.question] if content.question else []
    words = {"good": "good", "bad": "bad", "unsure": "refused, cut or not told", "open": "open"}
    counts = ", ".join(
        f'<b class="{kind}">{kinds.count(kind)} {word}</b>'
        for kind, word in words.items()
        if kind in kinds
    )
    more = "" if shown == total else " Show more with -n N or --all."
    if content.detailed < shown:
        more += f" Steps, curves and evidence are here for {content.detailed} of them, the newest; "
        more += "the rest with <code>opsctl show RUN</code>."
    return (
        f"<h1>{escape(', '.join(said))}</h1>"
        f'<div class="quiet">{escape(content.source)}, written {_when(content.at_s)} UTC.{more}</div>'
        f"<p>{counts or 'nothing has run yet'}</p>"
    )


def _servers(servers: Sequence[Server]) -> str:
    if not servers:
        return ""
    return f'<h2>Servers</h2><div class="cards">{"".join(_server(one) for one in servers)}</div>'


def _server(server: Server) -> str:
    last = server.runs[0].row
    counts = server.outcomes
    failed = counts["bad"] + counts["unsure"]
    proven = server.last_proven
    lines = [
        (
            f'last: <b class="{kind_of(last)}">{escape(last.playbook)} {escape(_outcome(last.outcome))}</b>'
            f" {_when(last.started_s)}"
        ),
        f"last proven {_when(proven.row.started_s)}" if proven else "never proven in these runs",
        f"{counted(len(server.runs), 'run')}, {failed} not good",
    ]
    marks = "".join(
        f'<a class="{kind_of(run.row)}" href="#{_anchor(run)}" '
        f'title="{escape(run.row.id)} {escape(_outcome(run.row.outcome))}" '
        f'aria-label="{escape(run.row.id)} {escape(_outcome(run.row.outcome))}"></a>'
        for run in reversed(server.runs[:TREND])
    )
    text = "".join(f"<p>{line}</p>" for line in lines)
    return (
        f'<div class="card"><h3>{escape(server.name)}</h3><div class="marks">{marks}</div>'
        f"{text}{_curves(server)}</div>"
    )


def _curves(server: Server) -> str:
    found = server.smokes(CURVES)
    if not found:
        return ""
    curves = [
        Curve(f"{_when(run.row.started_s)} {run.row.playbook}", _points(run), number % COLOURS)
        for number, run in enumerate(found)
    ]
    if not any(y is not None for curve in curves for _, y in curve.points):
        return ""
    return line_plot(f"Throughput of {server.name}", "output tokens/s", curves)


def _points(run: Run) -> tuple[tuple[float, float | None], ...]:
    points: list[tuple[float, float | None]] = []
    for level in (run.smoke or {}).get("levels") or []:
        rate = level.get("output_tok_s")
        good = level.get("outcome") == "passed" and isinstance(rate, int | float)
        points.append((float(level["concurrency"]), float(rate) if good else None))
    return tuple(points)


def _groups(groups: Sequence[Group]) -> str:
    if not groups:
        return ""
    cards = []
    for group in groups:
        first, last = group.runs[-1], group.runs[0]
        servers = ", ".join(sorted({run.row.server for run in group.runs}))
        links = ", ".join(
            f'<a href="#{_anchor(run)}">{escape(run.row.id)}</a>' for run in group.runs[:6]
        )
        more = f" and {len(group.runs) - 6} more" if len(group.runs) > 6 else ""
        cards.append(
            f'<div class="card"><h3 class="bad">{escape(group.signature)}</h3>'
            f"<p>{counted(len(group.runs), 'run')} of {escape(servers)}, first {_when(first.row.started_s)}, "
            f"last {_when(last.row.started_s)}</p><p>{escape(group.explanation)}</p>"
            f"<p><small>{links}{more}</small></p></div>"
        )
    return f'<h2>Crash signatures</h2><div class="cards">{"".join(cards)}</div>'


def _runs(content: Content) -> str:
    if not content.runs:
        return ""
    lines = "".join(_run(run) for run in content.runs)
    return (
        '<h2>Runs</h2><input id="find" hidden type="search" aria-label="narrow the list" '
        'placeholder="server, outcome, date, name ..."><p class="quiet" id="found"></p>' + lines
    )


def _run(run: Run) -> str:
    row = run.row
    outcome = _outcome(row.outcome) + (f" (exit {row.exit_code})" if row.exit_code else "")
    signature = f" {row.signature}" if row.signature else ""
    reason = f"{row.who}" + (f": {row.reason}" if row.reason else "")
    cells = (
        f"<span>{_when(row.started_s)}</span>"
        f"<span>{escape(row.server)} <small>{escape(row.playbook)}</small></span>"
        f'<span class="{kind_of(row)}"><b>{escape(outcome)}</b>{escape(signature)}</span>'
        f'<span class="quiet">{escape(reason)}</span>'
    )
    return (
        f'<details class="run" id="{_anchor(run)}"><summary>{cells}</summary>'
        f'<div class="inside">{details(run)}</div></details>'
    )


def _outcome(outcome: str | None) -> str:
    return outcome or "open"


def _anchor(run: Run) -> str:
    return "run-" + "".join(c if c.isalnum() or c in "-_" else "-" for c in run.row.id)


def _when(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at_s))
