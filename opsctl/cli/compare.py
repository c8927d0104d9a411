"""`opsctl compare`: smoke runs side by side, with a verdict that knows its noise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opsctl.cli.app import App, command, emit

if TYPE_CHECKING:
    from opsctl.smoke.compare import Side


@command("compare")
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@click.option(
    "--metric",
    default="throughput",
    show_default=True,
    help="What to compare: throughput, p50_ttft_ms, p99_itl_ms, ...",
)
@click.option(
    "--html",
    "html_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write one HTML file with the curves.",
)
def compare_command(app: App, runs: tuple[str, ...], metric: str, html_path: Path | None) -> int:
    """Compare smoke runs with the first one, level by level.

    RUN is a run's id, a part of it that is unique, `last`, or a file that --json wrote. Repeats of one
    side go together, with a name: baseline=RUN,RUN,RUN. A difference within the noise is no
    difference; with one run a side its noise is guessed from its requests.

    \b
    Examples:
      opsctl compare baseline=a1b2,c3d4 eagle=e5f6,a7b8
      opsctl compare a1b2 last --metric p99_ttft_ms
    """
    from opsctl.output import Document, Finding
    from opsctl.smoke.compare import compare, other_way, sentences
    from opsctl.smoke.gates import check_metric

    check_metric(metric)
    sides = read_sides(app, runs)
    result = compare(sides, metric)
    lines = sentences(result)
    findings = [Finding("comparison", "", line, advice(result)) for line in lines]
    caution = other_way([run for side in sides for run in side.runs])
    if caution is not None:
        findings.append(Finding("other-way", "", caution, "measure all with the same --from"))
    outcome = (
        result["against_first"][0]["verdict"] if len(result["against_first"]) == 1 else "compared"
    )
    if html_path is not None:
        _write_html(html_path, sides, lines)
    document = Document("compare", outcome, findings=findings, data=result)
    return emit(app, document, lambda: _text(result))


def read_sides(app: App, words: tuple[str, ...]) -> list[Side]:
    """Return the sides that the arguments name.

    Raises:
        UsageError: fewer than two, or a run that does not exist.
    """
    from opsctl.cli.smoke_record import load_run
    from opsctl.errors import UsageError
    from opsctl.smoke.compare import Side

    sides: list[Side] = []
    for word in words:
        name, sign, rest = word.partition("=")
        ids = (rest if sign else word).split(",")
        loaded = tuple(load_run(app, one) for one in ids)
        label = name if sign else str(loaded[0].get("label") or loaded[0].get("run") or word)
        if any(side.label == label for side in sides):
            label = str(loaded[0].get("run") or word)
        sides.append(Side(label, loaded))
    if len(sides) < 2:
        raise UsageError(
            "a comparison needs two runs at least",
            next_step="name two of `opsctl history`; several runs of one side: name=run,run other=run",
        )
    return sides


def advice(result: dict[str, Any]) -> str:
    """Return what a crossing means for a server that speculates; empty without one."""
    if result["metric"] not in ("throughput", "output_tok_s", "steady_tok_s"):
        return ""
    for other in result["against_first"]:
        for crossing in other["crossings"]:
            if crossing["to"] == "worse":
                return (
                    f"if {other['label']} speculates and {result['labels'][0]} does not: "
                    f"set disable_above: {crossing['last']}"
                )
    return ""


def _text(result: dict[str, Any]) -> str:
    from opsctl.smoke.report import table

    labels = result["labels"]
    head = ["C", labels[0]]
    for label in labels[1:]:
        head += [label, "ratio", "±", "verdict"]
    rows = [head]
    for level in result["levels"]:
        row = [str(level["concurrency"])]
        for index, value in enumerate(level["values"]):
            row.append("-" if value is None else f"{value:.1f}")
            if index == 0:
                continue
            ratio = level["ratios"][index]
            row += (
                ["-", "-", "-"]
                if ratio is None
                else [f"{ratio['ratio']:.3f}", f"{ratio['noise']:.3f}", ratio["verdict"]]
            )
        rows.append(row)
    return "\n".join([f"{result['metric']}, against {labels[0]}", "", *table(rows)])


def _write_html(path: Path, sides: list[Side], lines: list[str]) -> None:
    from opsctl.errors import UsageError
    from opsctl.smoke.html import html_report

    runs = [{**side.runs[0], "label": side.label} for side in sides]
    try:
        path.write_text(html_report(runs, lines), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
