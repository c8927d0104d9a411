"""`opsctl patch list|check|new|test`: the library of patches itself, without any server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from opsctl.cli.app import App, command, emit
from opsctl.cli.talk import Talk
from opsctl.errors import UsageError
from opsctl.output import Document, Finding

patches_option = click.option(
    "--patches",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Another folder of patches than the site's; one there hides the shipped one of its name.",
)


@command("list")
@patches_option
def list_command(app: App, folder: Path | None) -> int:
    """List the patches that are known, with their versions and status.

    \b
    Example:
      opsctl patch list
    """
    from opsctl.patch_library import load_library
    from opsctl.site import load_site

    library = load_library(folder or load_site(app.site_path).patch_folder)
    rows: list[dict[str, Any]] = [
        {
            "id": one.id,
            "title": one.title,
            "status": one.status.value,
            "reason": one.reason,
            "package": one.package,
            "versions": [variant.versions for variant in one.variants],
            "superseded": [{"versions": s.versions, "by": s.by} for s in one.superseded],
            "upstream": list(one.upstream),
        }
        for _, one in sorted(library.items())
    ]

    def text() -> str:
        lines = []
        for row in rows:
            versions = ", ".join(row["versions"])
            lines.append(f"{row['id']}  [{row['status']}]  {row['package']} {versions}")
            lines.append(f"    {row['title']}")
            lines += [f"    known-bad: {row['reason']}"] if row["reason"] else []
            lines += [f"    not needed in {s['versions']}: {s['by']}" for s in row["superseded"]]
        return "\n".join(lines) or "the library is empty"

    return emit(app, Document("patch list", "shown", data={"patches": rows}), text)


@command("check")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@patches_option
def check_command(app: App, ids: tuple[str, ...], folder: Path | None) -> int:
    """Check the library: format, pinned hashes, diffs, references, code that compiles.

    \b
    Example:
      opsctl patch check
    """
    from opsctl.patch_library import check_patch, find_patch, load_library
    from opsctl.site import load_site

    library = load_library(folder or load_site(app.site_path).patch_folder, anew=True)
    chosen = [find_patch(library, one) for one in ids] or list(library.values())
    findings = [
        Finding("patch-unsound", one.id, problem) for one in chosen for problem in check_patch(one)
    ]
    outcome, code = ("unsound", 10) if findings else ("sound", 0)
    data = {"patches": [one.id for one in chosen]}
    document = Document("patch check", outcome, code, findings=findings, data=data)
    return emit(app, document, lambda: f"{len(chosen)} patches: {outcome}")


@command("new")
@click.argument("patch_id", metavar="ID")
@click.option("--version", required=True, help="Version of the package that the two folders hold.")
@click.option(
    "--old",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="The package's folder as it was shipped.",
)
@click.option(
    "--new",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="The same folder with the change in it.",
)
@click.option(
    "--package", default="sglang", show_default=True, help="Distribution and module name."
)
@click.option("--into", type=click.Path(path_type=Path, file_okay=False), help="Folder of patches.")
def new_command(
    app: App, patch_id: str, version: str, old: Path, new: Path, package: str, into: Path | None
) -> int:
    """Make a patch (or its part for one version) from two package folders, OLD as shipped and NEW.

    Writes VERSION.diff, the added files, and prints the variant for patch.yaml; a new patch gets a
    patch.yaml to fill in.

    \b
    Example:
      opsctl patch new my-fix --version 0.5.9 --old shipped/sglang --new changed/sglang
    """
    from opsctl.patch_author import write_variant
    from opsctl.resources import folder as shipped

    place = (into or shipped("patches")) / patch_id
    variant = write_variant(place, patch_id, package, version, old, new)
    data: dict[str, Any] = {"folder": str(place), "variant": variant.data}
    document = Document("patch new", "written" if variant.new else "variant", data=data)
    return emit(app, document, lambda: variant.text)


@command("test")
@click.argument("patch_id", metavar="ID")
@click.option(
    "--version", "versions", multiple=True, help="Version to try; default: all it is for."
)
@click.option(
    "--wheels",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to keep downloaded wheels in. Default: one that is removed afterwards.",
)
@click.option(
    "--python", help="Interpreter to import with, where the package's needs are installed."
)
@patches_option
def test_command(
    app: App,
    patch_id: str,
    versions: tuple[str, ...],
    wheels: Path | None,
    python: str | None,
    folder: Path | None,
) -> int:
    """Try a patch on fresh wheels: download, unpack, apply, compile, import, revert, compare bytes.

    \b
    Example:
      opsctl patch test spec-disable-v2 --version 0.5.9
    """
    from opsctl.patch_library import find_patch, load_library
    from opsctl.patch_trial import exact_versions, try_patch
    from opsctl.site import load_site

    library = load_library(folder or load_site(app.site_path).patch_folder)
    one = find_patch(library, patch_id)
    chosen = versions or exact_versions(one)
    if not chosen:
        raise UsageError(
            f"{patch_id} is for ranges of versions", next_step="name one with --version"
        )
    talk, results = Talk(quiet=app.as_json), []
    for version in chosen:
        with talk.ticking(f"trying {patch_id} on {one.package} {version}"):
            results.append(try_patch(library, one, version, wheels, python))
    findings = [Finding("patch-test", r.version, r.problem) for r in results if r.problem]
    data = {"results": [r.row() for r in results]}
    outcome, code = ("failed", 20) if findings else ("passed", 0)
    document = Document("patch test", outcome, code, findings=findings, data=data)

    def text() -> str:
        return "\n".join(f"{one.package} {r.version}: {r.summary()}" for r in results)

    return emit(app, document, text)
