"""What opens under a run: steps, findings, diagnosis, levels, evidence, what was launched. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from opsctl.domain.process import masked
from opsctl.domain.runs import StepRow
from opsctl.report.content import Run
from opsctl.smoke.svg import timeline

LOG_LINES = 60  # of an old server's log
COLOUR = {"done": "good", "unchanged": "good", "failed": "bad", "refused": "unsure"}


def details(run: Run) -> str:
    """Return the inside of one run."""
    if run.detail is None:
        return f"<p>Run <code>opsctl show {escape(run.row.id)}</code> for its steps.</p>"
    parts = [
        _line(run),
        _diagnosis(run),
        _findings(run.document.get("findings") or []),
        _steps(run.detail.steps),
        _downtime(run.data.get("downtime") or {}),
        _levels(run),
        _evidence(run),
        _attempt(run),
    ]
    return "".join(parts)


def _line(run: Run) -> str:
    row = run.row
    took = "" if row.ended_s is None else f", took {row.ended_s - row.started_s:.1f} s"
    state = run.data.get("state")
    said = f"; {state}" if isinstance(state, str) and state else ""
    return f"<p><code>{escape(row.id)}</code>{took}{escape(said)}</p>"


def _diagnosis(run: Run) -> str:
    found = run.diagnosis
    if not found.get("category"):
        return ""
    rows = [
        f"<b>{escape(str(found['category']))}</b>: {escape(str(found.get('explanation') or ''))}"
    ]
    bracket = run.data.get("bracket") or (run.smoke or {}).get("bracket")
    if isinstance(bracket, Mapping):
        good = bracket.get("last_good")
        rows.append(
            f"last good C={'none' if good is None else good}, first bad C={bracket.get('first_bad')}"
        )
    rows += [f"next: {escape(str(step))}" for step in found.get("next") or []]
    first = found.get("first_record")
    quoted = f"<pre>{escape(str(first))}</pre>" if first else ""
    text = "".join(f"<p>{row}</p>" for row in rows)
    return f'<div class="verdict bad">{text}{quoted}</div>'


def _findings(findings: Sequence[Any]) -> str:
    lines = []
    for one in findings:
        if not isinstance(one, Mapping):
            continue
        subject = f"{one['subject']}: " if one.get("subject") else ""
        tail = f"<br><small>next: {escape(str(one['next']))}</small>" if one.get("next") else ""
        lines.append(f"<li>{escape(subject + str(one.get('text')))}{tail}</li>")
    return f"<h4>Findings</h4><ul>{''.join(lines)}</ul>" if lines else ""


def _steps(steps: Sequence[StepRow]) -> str:
    if not steps:
        return ""
    seconds = [(s.ended_s - s.started_s) if s.ended_s else 0.0 for s in steps]
    longest = max(seconds) or 1.0
    rows = []
    for step, took in zip(steps, seconds, strict=True):
        again = f" (turn {step.turn + 1})" if step.turn else ""
        outcome = step.outcome or "begun, its end was not seen"
        colour = COLOUR.get(outcome, "unsure")
        note = (step.body.get("data") or {}).get("summary") or ""
        rows.append(
            f'<span>{escape(step.name + again)} <small class="{colour}">{escape(outcome)}</small></span>'
            f"<b>{took:.2f} s</b><span><i class={colour!r} style='width:{took / longest * 100:.1f}%'></i>"
            f"<small>{escape(str(note))}</small></span>"
        )
    return f'<h4>Steps</h4><div class="bars">{"".join(rows)}</div>'


def _downtime(downtime: Mapping[str, Any]) -> str:
    if not downtime:
        return ""
    parts = ", ".join(
        f"{escape(str(name).removesuffix('_s'))} {value:.2f}"
        for name, value in downtime.items()
        if isinstance(value, int | float)
    )
    return f"<h4>Seconds without a server</h4><p>{parts}</p>"


def _levels(run: Run) -> str:
    levels = (run.smoke or {}).get("levels") or []
    if not levels:
        return ""
    rows = []
    for level in levels:
        outcome = str(level.get("outcome"))
        cells = [
            str(level.get("concurrency")),
            f'<span class="badge {escape(outcome)}">{escape(outcome)}</span>',
            _cell(level.get("requests")),
            _cell(level.get("failed")),
            _cell(level.get("output_tok_s")),
            *(_cell((level.get("ttft_ms") or {}).get(part)) for part in ("p50", "p99")),
            *(_cell((level.get("itl_ms") or {}).get(part)) for part in ("p50", "p99")),
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    names = ("C", "outcome", "requests", "failed", "tok/s", "TTFT p50", "p99", "ITL p50", "p99")
    head = "".join(f"<th>{name}</th>" for name in names)
    drawn = [
        timeline(level["timeline"], f"Requests at C={level['concurrency']}")
        for level in levels
        if level.get("timeline") and level.get("outcome") != "passed"
    ]
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return (
        f"<h4>Smoke <small>times in ms</small></h4>"
        f'<div class="scroll" tabindex="0">{table}</div>{"".join(drawn)}'
    )


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return "" if value is None else escape(str(value))


def _evidence(run: Run) -> str:
    parts = []
    evidence = (run.smoke or {}).get("evidence") or {}
    log = evidence.get("log") or {}
    batch = evidence.get("last_batch") or run.diagnosis.get("last_batch")
    if batch:
        parts.append(_quoted("last batch", str(batch)))
    if log.get("window"):
        parts.append(_quoted(f"log ({log.get('path')})", "\n".join(map(str, log["window"]))))
    for name, body in _collected(run):
        parts.append(_quoted(name, body))
    for process in evidence.get("alive") or []:
        stacks = [process.get("python_stack"), process.get("kernel_stack"), process.get("wchan")]
        said = "\n".join(str(stack) for stack in stacks if stack)
        if said:
            parts.append(_quoted(str(process.get("title")), said))
    if evidence.get("kernel"):
        parts.append(_quoted("kernel log", "\n".join(map(str, evidence["kernel"]))))
    return f"<h4>Evidence</h4>{''.join(parts)}" if parts else ""


def _collected(run: Run) -> list[tuple[str, str]]:
    """Return what the step ``collect`` has kept of the old server: the end of its log, the kernel's."""
    assert run.detail is not None
    found = []
    for step in run.detail.steps:
        if step.name != "collect":
            continue
        data = step.body.get("data") or {}
        if data.get("log"):
            lines = str(data["log"]).splitlines()[-LOG_LINES:]
            found.append(("end of the old server's log", "\n".join(lines)))
        if data.get("kernel"):
            found.append(("kernel log before the stop", "\n".join(map(str, data["kernel"]))))
    return found


def _quoted(name: str, text: str) -> str:
    return f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>"


def _attempt(run: Run) -> str:
    assert run.detail is not None
    content = run.detail.facts.get("content") or {}
    if not content:
        return ""
    patches = content.get("patches") or {}
    rows = [
        f"fingerprint {run.row.fingerprint}",
        (
            f"{content.get('package') or 'own command'} {content.get('package_version') or ''}"
            f" on {content.get('gpu_model') or 'no GPU'}"
        ),
        "patches: " + (", ".join(f"{k} {str(v)[:8]}" for k, v in patches.items()) or "none"),
        "arguments: " + " ".join(masked([str(one) for one in content.get("arguments") or []])),
    ]
    environment = content.get("environment") or {}
    if environment:
        rows.append("environment: " + " ".join(f"{k}={v}" for k, v in environment.items()))
    lines = "".join(f"<li>{escape(row)}</li>" for row in rows)
    return f"<h4>What was launched</h4><ul>{lines}</ul>"
