"""How patches are shown: rows of documents, and text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def shown(seen: Sequence[Any], series: Sequence[str]) -> list[Any]:
    """Return the reports to show: the series, and whatever else stands or stood there."""
    from opsctl.domain.patch import FileState

    return [
        report
        for one in seen
        for report in one.reports
        if report.patch.id in series
        or any(file.state is FileState.APPLIED for file in report.files)
        or report.state.value == "drifted"
    ]


def patch_rows(reports: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the contract's ``patches`` of a document."""
    return [
        {
            "id": report.patch.id,
            "state": report.state.value,
            "status": report.patch.status.value,
            "detail": report.detail,
            "files": [
                {"path": f.path, "state": f.state.value, "detail": f.detail} for f in report.files
            ],
        }
        for report in reports
    ]


def package_rows(seen: Sequence[Any]) -> list[dict[str, Any]]:
    """Return what a document says of each package: where it is, which version, what RECORD says."""
    return [
        {
            "name": one.package,
            "version": one.version,
            "location": one.root,
            "editable": one.editable,
            "others": list(one.others),
            "record": one.raw.get("package"),
        }
        for one in seen
    ]


def render(seen: Sequence[Any], reports: Sequence[Any]) -> str:
    """Return the text of a status."""
    lines = [f"{one.package} {one.version} at {one.root}" for one in seen]
    width = max((len(report.patch.id) for report in reports), default=0)
    for report in reports:
        mark = (
            "" if report.patch.status.value == "recommended" else f" ({report.patch.status.value})"
        )
        detail = f": {report.detail}" if report.detail else ""
        lines.append(f"  {report.patch.id:<{width}}  {report.state.value}{mark}{detail}")
    return "\n".join(lines) if reports else "\n".join([*lines, "  no patch is asked for or found"])


def change_rows(plans: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {"root": plan.look.root, "path": c.path, "before": c.before, "after": c.after}
        for plan in plans
        for c in plan.changes
    ]
