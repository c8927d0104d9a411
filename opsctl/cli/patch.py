"""`opsctl patch`: known changes of installed packages: their state, apply, revert, proof, record."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from opsctl.cli.app import App, command, emit
from opsctl.cli.patch_library import check_command, list_command, new_command, test_command
from opsctl.cli.patch_view import change_rows, package_rows, patch_rows, render, shown
from opsctl.cli.talk import Talk
from opsctl.errors import CheckFailed
from opsctl.output import Document, Finding
from opsctl.records import dataclass


@click.group("patch")
def patch() -> None:
    """Apply, prove and revert source patches of installed packages.

    A patch is pinned content: exact replacements in files that are known by their SHA-256, plus files of
    its own. All files change or none; a proof that fails takes everything back.

    \b
    Examples:
      opsctl patch list
      opsctl patch status glm5                      (the server's own series)
      opsctl patch apply glm5 --dry-run
      opsctl patch apply glm5 spec-disable-v2
      opsctl patch revert glm5 spec-disable-v2
      opsctl patch test spec-disable-v2 --version 0.5.9
    """


patches_option = click.option(
    "--patches",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Another folder of patches than the site's; one there hides the shipped one of its name.",
)
ids_argument = click.argument("ids", nargs=-1, metavar="[ID]...")


@dataclass(slots=True)
class Work:
    """One server's patches: library, series, and the agent on its host."""

    agent: Any
    target: Any
    library: Mapping[str, Any]
    series: tuple[str, ...]  # the ids asked for, else the server's
    name: str
    talk: Talk

    def look(self, before: Sequence[Any] = (), **options: Any) -> list[Any]:
        """Look once per package that the series touches; at the shipped patches' package without a series.

        ``before``: what an earlier look of this command returned.
        """
        from opsctl.steps.patch import look

        ids = self.series or tuple(self.library)
        packages = list(
            dict.fromkeys((self.library[i].package, self.library[i].module) for i in ids)
        )
        known = {(one.package, one.module): one for one in before}
        where = (self.agent, self.target, self.library)
        with self.talk.ticking("looking at the installed package"):
            return [
                look(*where, package, first=self.series, before=known.get(package), **options)
                for package in packages
            ]


@contextmanager
def open_work(app: App, server: str, ids: Sequence[str], folder: Path | None) -> Iterator[Work]:
    """Read site and library, and connect to the server's host for as long as the block runs."""
    from opsctl.session import open_hosts
    from opsctl.site_cache import load_site
    from opsctl.steps.patch import target_of

    site = load_site(app.site_path)
    entry = site.server(server)
    target = target_of(entry, server)
    with open_hosts(site) as hosts:
        hosts.begin([entry.host])
        # while the host starts the agent
        from opsctl.patch_library import find_patch, load_library, unknown_patches

        library = load_library(folder or site.patch_folder)
        series = tuple(ids) or tuple(entry.patches)
        if not ids and not folder:
            for error in unknown_patches(site, [server]):
                raise error
        for one in series:
            find_patch(library, one)
        talk = Talk(quiet=app.as_json)
        yield Work(hosts.agent(entry.host), target, library, series, server, talk)


@command("status")
@click.argument("server")
@ids_argument
@click.option(
    "--all-files", is_flag=True, help="Compare every installed file of the package with its RECORD."
)
@patches_option
def status(
    app: App, server: str, ids: tuple[str, ...], all_files: bool, folder: Path | None
) -> int:
    """Say for each patch of the server: applied, absent, drifted, conflict, superseded.

    Exit 20 when a patch of the series is not applied (or, with IDs, is drifted or in conflict).

    \b
    Example:
      opsctl patch status glm5 --all-files
    """
    from opsctl.steps.patch import findings_of

    with open_work(app, server, ids, folder) as work:
        seen = work.look(verify_all=all_files)
    reports = shown(seen, work.series)
    findings = [finding for one in seen for finding in findings_of(one, others=True)]
    bad = [r for r in reports if r.state.value in ("drifted", "conflict")]
    if not ids:
        bad += [r for r in reports if r.patch.id in work.series and r.state.value == "absent"]
    for report in bad:
        text = report.detail or f"it is {report.state.value}, and the server's series asks for it"
        next_step = (
            f"opsctl patch apply {server}" if report.can_apply else f"opsctl patch diff {server}"
        )
        if report.patch.status.value == "known-bad" and report.can_apply:
            next_step = (
                "it is known to be bad: take it out of the series, or reproduce the failure with "
            )
            next_step += f"opsctl patch apply {server} --allow-known-bad"
        code = f"patch-{report.state.value}"
        findings.append(Finding(code, report.patch.id, text, next_step))
    data = {"server": server, "patches": patch_rows(reports), "packages": package_rows(seen)}
    outcome, exit_code = ("not-as-asked", CheckFailed.exit_code) if bad else ("as-asked", 0)
    document = Document("patch status", outcome, exit_code, findings=findings, data=data)
    return emit(app, document, lambda: render(seen, reports))


@command("diff")
@click.argument("server")
@ids_argument
@patches_option
def diff(app: App, server: str, ids: tuple[str, ...], folder: Path | None) -> int:
    """Show what an apply would change in the host's files, as a unified diff; changes nothing.

    \b
    Example:
      opsctl patch diff glm5 spec-disable-v2
    """
    from opsctl.domain.hunks import unified
    from opsctl.steps.patch_plan import plan_apply

    with open_work(app, server, ids, folder) as work:
        seen = work.look(recover=False)
    text, rows = [], []
    for one in seen:
        mine = [i for i in work.series if work.library[i].package == one.package]
        for change in plan_apply(one, work.library, mine, allow_known_bad=True).changes:
            old = one.standing(change.path) or b""
            body = unified(f"{one.module}/{change.path}", old, change.content or b"")
            text.append(body.decode("utf-8", "replace"))
            rows.append({"path": change.path, "before": change.before, "after": change.after})
    document = Document("patch diff", "shown", data={"changes": rows, "diff": "".join(text)})
    return emit(app, document, lambda: "".join(text).rstrip("\n") or "nothing to change")


@command("apply", changes=True)
@click.argument("server")
@ids_argument
@click.option("--allow-known-bad", is_flag=True, help="To reproduce a failure on purpose.")
@patches_option
def apply(
    app: App, server: str, ids: tuple[str, ...], allow_known_bad: bool, folder: Path | None
) -> int:
    """Apply the server's patches (or those named): all files or none, proven in a fresh process.

    \b
    Examples:
      opsctl patch apply glm5 --dry-run
      opsctl patch apply glm5 spec-disable-v2 --yes
    """
    from opsctl.steps.patch_plan import plan_apply

    with open_work(app, server, ids, folder) as work:
        seen = work.look(recover=not app.dry_run)
        plans = []
        for one in seen:
            mine = [i for i in work.series if work.library[i].package == one.package]
            plans.append(plan_apply(one, work.library, mine, allow_known_bad=allow_known_bad))
        return _carry_out(app, work, seen, plans, "apply")


@command("revert", changes=True)
@click.argument("server")
@ids_argument
@patches_option
def revert(app: App, server: str, ids: tuple[str, ...], folder: Path | None) -> int:
    """Take the server's patches (or those named) away, byte for byte.

    \b
    Example:
      opsctl patch revert glm5 spec-disable-v2 --dry-run
    """
    from opsctl.steps.patch_plan import plan_revert

    with open_work(app, server, ids, folder) as work:
        seen = work.look(recover=not app.dry_run)
        plans = []
        for one in seen:
            mine = [i for i in work.series if work.library[i].package == one.package]
            plans.append(plan_revert(one, mine))
        return _carry_out(app, work, seen, plans, "revert")


def _carry_out(app: App, work: Work, seen: Sequence[Any], plans: Sequence[Any], action: str) -> int:
    """Show the plan, ask, do it, look again, and tell."""
    from opsctl.steps.patch import execute_all, findings_of, restart_finding

    findings = [finding for one in seen for finding in findings_of(one)]
    busy = [plan for plan in plans if plan.changes]
    data: dict[str, Any] = {"server": work.name, "changes": change_rows(busy), "transactions": []}
    if not busy:
        data |= {"patches": patch_rows(shown(seen, work.series)), "packages": package_rows(seen)}
        document = Document(f"patch {action}", "unchanged", findings=findings, data=data)
        return emit(app, document, lambda: _nothing(action, work))
    lines = [line for plan in busy for line in plan.lines()]
    if app.dry_run:
        data |= {"patches": patch_rows(shown(seen, work.series)), "packages": package_rows(seen)}
        document = Document(f"patch {action}", "planned", findings=findings, data=data)
        return emit(app, document, lambda: "\n".join([*lines, "(dry run: nothing was changed)"]))
    if not app.yes:
        click.echo("\n".join(lines), err=True)
    app.confirm("go on?")
    with work.talk.ticking(f"{action}: proving the files in a fresh process"):
        data["transactions"] = execute_all(work.agent, busy)
        after = work.look(before=seen)
    findings += [found for one in after if (found := restart_finding(one, work.name))]
    reports = shown(after, work.series)
    data |= {"patches": patch_rows(reports), "packages": package_rows(after)}
    outcome = "applied" if action == "apply" else "reverted"
    document = Document(f"patch {action}", outcome, findings=findings, data=data)
    seconds = sum((one["proof"] or {}).get("seconds", 0.0) for one in data["transactions"])
    proven = f"proven in a fresh process in {seconds:.1f} s" if seconds else "nothing left to prove"
    return emit(app, document, lambda: f"{render(after, reports)}\n{outcome}, {proven}")


def _nothing(action: str, work: Work) -> str:
    word = "applied" if action == "apply" else "absent"
    return f"nothing to do: {', '.join(work.series) or 'an empty series'} is {word} already"


@command("verify")
@click.argument("server")
@ids_argument
@patches_option
def verify(app: App, server: str, ids: tuple[str, ...], folder: Path | None) -> int:
    """Prove in a fresh process that the patches of the server stand and import; changes nothing.

    \b
    Example:
      opsctl patch verify glm5
    """
    from opsctl.steps.patch import findings_of, prove
    from opsctl.steps.patch_plan import plan_apply

    with open_work(app, server, ids, folder) as work:
        seen = work.look()
        reports = shown(seen, work.series)
        findings = [finding for one in seen for finding in findings_of(one)]
        proofs = []
        with work.talk.ticking("proving in a fresh process"):
            for one in seen:
                mine = [i for i in work.series if i in one.applied]
                proofs.append(prove(work.agent, plan_apply(one, work.library, mine)))
    wrong = [r for r in reports if r.patch.id in work.series and r.state.value != "applied"]
    for report in wrong:
        text = report.detail or f"it is {report.state.value}"
        findings.append(Finding(f"patch-{report.state.value}", report.patch.id, text))
    failed = [proof for proof in proofs if not proof["ok"]]
    findings += [Finding("proof-failed", server, proof["detail"]) for proof in failed]
    data = {"server": server, "patches": patch_rows(reports), "proofs": proofs}
    good = not wrong and not failed
    document = Document(
        "patch verify",
        "proven" if good else "failed",
        0 if good else 20,
        findings=findings,
        data=data,
    )
    return emit(app, document, lambda: f"{render(seen, reports)}\n{document.outcome}")


@command("log")
@click.argument("server")
@patches_option
def log(app: App, server: str, folder: Path | None) -> int:
    """Show what was applied and reverted on the server's host, by whom, and what was rolled back.

    \b
    Example:
      opsctl patch log glm5
    """
    with open_work(app, server, (), folder) as work:
        records = work.agent.call("patch.log", work.target.request(), timeout_s=30.0)["records"]

    def lines() -> str:
        rows = [
            f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(one['at']))}Z  {one['action']:<6}  "
            f"{one['outcome']:<11}  {', '.join(one['patches'])}  by {one['who']}  in {one['root']}"
            for one in records
        ]
        return "\n".join(rows) or "nothing was patched on this host"

    return emit(app, Document("patch log", "shown", data={"records": records}), lines)


for member in (
    status,
    diff,
    apply,
    revert,
    verify,
    log,
    list_command,
    check_command,
    new_command,
    test_command,
):
    patch.add_command(member)
