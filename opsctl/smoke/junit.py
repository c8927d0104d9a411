"""The report as JUnit XML: one test per level. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from opsctl.output import Finding

_FORBIDDEN = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_report(run: Mapping[str, Any], gates: Sequence[Finding] = ()) -> str:
    """Return the XML document; levels that were never run are skipped tests.

    Args:
        run: a result as data.
        gates: findings of the gates that failed; each is a test of its own.
    """
    levels = [*run["levels"]]
    if run.get("mixed"):
        levels.append(run["mixed"])
    levels += run.get("down") or []
    suite = ElementTree.Element("testsuite", name=f"opsctl smoke {run.get('url', '')}")
    failures = errors = skipped = 0
    for level in levels:
        case = _case(suite, _name(level), level.get("seconds") or 0.0)
        outcome, reason = level["outcome"], _clean(str(level.get("reason") or ""))
        if outcome == "failed":
            failures += 1
            _add(case, "failure", outcome, reason)
        elif outcome in ("crashed", "hung"):
            errors += 1
            _add(case, "error", outcome, reason)
        elif outcome == "not-measured":
            skipped += 1
            _add(case, "skipped", outcome, reason)
        rate, ttft = level.get("output_tok_s"), level.get("ttft_ms") or {}
        out = ElementTree.SubElement(case, "system-out")
        out.text = (
            f"output_tok_s={rate} ttft_p50_ms={ttft.get('p50')} ttft_p99_ms={ttft.get('p99')}"
        )
    done = {level["concurrency"] for level in run["levels"]}
    for concurrency in run.get("wanted_levels") or []:
        if concurrency not in done:
            skipped += 1
            case = _case(suite, f"C={concurrency}", 0.0)
            _add(case, "skipped", "not run", "a lower level ended the climb")
    for finding in gates:
        failures += 1
        case = _case(suite, f"gate {finding.subject}: {finding.code}", 0.0)
        _add(case, "failure", finding.code, _clean(finding.text))
    suite.set("tests", str(len(suite.findall("testcase"))))
    suite.set("failures", str(failures))
    suite.set("errors", str(errors))
    suite.set("skipped", str(skipped))
    suite.set("time", f"{run.get('seconds') or 0:.3f}")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _name(level: Mapping[str, Any]) -> str:
    phase = level.get("phase")
    return f"C={level['concurrency']}" + ("" if phase in (None, "up") else f" {phase}")


def _case(suite: ElementTree.Element, name: str, seconds: float) -> ElementTree.Element:
    return ElementTree.SubElement(
        suite, "testcase", classname="opsctl.smoke", name=_clean(name), time=f"{seconds:.3f}"
    )


def _add(case: ElementTree.Element, tag: str, kind: str, message: str) -> None:
    if tag == "skipped":
        ElementTree.SubElement(case, tag, message=message)
    else:
        ElementTree.SubElement(case, tag, type=kind, message=message)


def _clean(text: str) -> str:
    """Return text without the characters that XML 1.0 does not allow."""
    return _FORBIDDEN.sub("\ufffd", text)
