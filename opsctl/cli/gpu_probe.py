"""`opsctl gpu probe`: does each GPU compute, asked through the server's own interpreter."""

from __future__ import annotations

from typing import Any

import click

from opsctl.cli.app import App, command, emit
from opsctl.errors import UsageError
from opsctl.output import Document


@command("probe")
@click.argument("server")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1.0),
    default=90.0,
    show_default=True,
    metavar="S",
    help="For one run of the check, torch's import included; a card that hangs costs one run.",
)
def probe(app: App, server: str, timeout: float) -> int:
    """Compute on each GPU of SERVER with the server's own interpreter and torch, in a child.

    Allocates 64 MiB, multiplies two matrices of small integers (the CPU's product must be met
    exactly), and copies between neighbours, in the server's own environment. Finds the card that
    answers NVML and does not compute.
    Exit 0: all compute; 20: one does not; 21: not measured (no torch, CUDA, GPU, or
    no room on it).

    \b
    Example:
      opsctl gpu probe glm5
    """
    from dataclasses import asdict

    from opsctl.cli.gpu_target import open_target
    from opsctl.domain.gpu_compute import compute_findings, exit_code_of
    from opsctl.session import open_session
    from opsctl.site_cache import load_site
    from opsctl.steps.gpu_compute import ComputeProbe

    site = load_site(app.site_path)
    entry = site.server(server)
    if entry.python is None:
        raise UsageError(
            f"server '{server}' has a command and no python, so there is no torch to ask",
            next_step=f"name its interpreter as `python:`, or use `opsctl gpu verify {server}`",
            subject=server,
        )
    with open_target(app, server) as cards:
        uuids, report_findings = cards.uuids, cards.judge(cards.report).findings
    with open_session(site, server) as session:
        env = {name: value for name, value in entry.env.items() if isinstance(value, str)}
        run = ComputeProbe(session.agent, [entry.python], uuids, timeout, entry.cwd, env)
        found = run.run()
    findings = [*report_findings, *compute_findings(found, run.copies)]
    code = exit_code_of(found, run.copies)
    outcome = {0: "computes", 20: "does-not-compute", 21: "unknown"}[code]
    data = {
        "gpus": [asdict(card) for card in found],
        "copies": [{"from": a, "to": b, "error": error} for a, b, error in run.copies],
    }
    document = Document("gpu probe", outcome, code, findings=findings, data=data)
    return emit(app, document, lambda: "\n".join(_probe_lines(data)))


def _probe_lines(data: dict[str, Any]) -> list[str]:
    lines = []
    for card in data["gpus"]:
        took = "" if card["seconds"] is None else f" in {card['seconds']:.2f} s"
        lines.append(f"  {card['state']:<13} {card['uuid']}{took} {card['detail']}".rstrip())
    good = [copy for copy in data["copies"] if not copy["error"]]
    if data["copies"]:
        lines.append(f"  {len(good)} of {len(data['copies'])} copies between GPUs are good")
    return lines or ["  no GPU was probed"]
