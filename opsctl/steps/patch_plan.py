"""What a transaction on a package's files will do, decided from what was seen; nothing is changed here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from opsctl.domain.patch import FileState, Patch, PatchReport, PatchState, PatchStatus
from opsctl.domain.patch_changes import FileChange, PatchConflictError, changes_for, order_series
from opsctl.domain.patch_way_out import better_than
from opsctl.errors import CheckFailed, SafetyRefusal
from opsctl.records import dataclass

PROOF_TIMEOUT_S = (
    240.0  # a fresh import of SGLang with its argument parser took 13 s on two busy cores
)


@dataclass(frozen=True, slots=True)
class Target:
    """Which package an interpreter would import at the launch: its path, folder, environment, records."""

    interpreter: str
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    state_dir: str | None = None

    def request(self) -> dict[str, Any]:
        state = f"{self.state_dir}/patches" if self.state_dir else None
        return {
            "interpreter": self.interpreter,
            "cwd": self.cwd,
            "env": dict(self.env),
            "state_dir": state,
        }


@dataclass(frozen=True, slots=True)
class Look:
    """What stands on the host, for the patches of one package."""

    target: Target
    package: str
    module: str
    root: str
    version: str
    editable: bool
    others: tuple[str, ...]
    reports: tuple[PatchReport, ...]
    contents: Mapping[
        str, bytes | None
    ]  # of an earlier form of a patch, what stood there before it
    raw: Mapping[str, Any]  # the agent's reply
    found: Mapping[
        str, Any
    ]  # where the interpreter imports it from: the agent's reply to patch.locate
    earlier: Mapping[str, bytes | None] = field(default_factory=dict)  # such forms, as they stand

    def standing(self, path: str) -> bytes | None:
        """Return what stands in a file now."""
        return self.earlier[path] if path in self.earlier else self.contents.get(path)

    def report(self, one: str) -> PatchReport | None:
        return next((report for report in self.reports if report.patch.id == one), None)

    @property
    def applied(self) -> tuple[str, ...]:
        return tuple(r.patch.id for r in self.reports if r.state is PatchState.APPLIED)


@dataclass(frozen=True, slots=True)
class PatchPlan:
    """What one transaction will do: from ``before`` to ``after``, in these files."""

    action: str  # apply or revert
    look: Look
    patches: tuple[str, ...]  # those that are added (apply) or taken away (revert)
    after: tuple[str, ...]  # all that stand afterwards
    changes: tuple[FileChange, ...]
    provable: bool = True  # False: the caller proves by itself
    removed: tuple[str, ...] = ()  # taken away by the same apply

    def summary(self) -> str:
        """Say which patches come and go, e.g. ``apply a and revert b``."""
        words = [f"{self.action} {', '.join(self.patches)}"] if self.patches else []
        words += [f"revert {', '.join(self.removed)}"] if self.removed else []
        return " and ".join(words)

    def lines(self) -> list[str]:
        """Say exactly what will change, for a person who is to agree."""
        head = f"{self.summary()} in {self.look.root} ({self.look.version})"
        kinds = {True: "add", False: "change"}
        return [head] + [
            f"  {'remove' if c.after is None else kinds[c.before is None]} {c.path}"
            for c in self.changes
        ]

    def reversed(self) -> PatchPlan:
        """Return the transaction that takes this one back, from the contents that were seen before it."""
        changes = tuple(
            FileChange(c.path, c.after, c.before, self.look.standing(c.path))
            for c in reversed(self.changes)
        )
        action = "revert" if self.action == "apply" else "apply"
        back = PatchPlan(action, self.look, self.patches, self.look.applied, changes)
        if not self.removed:
            return back
        return replace(back, action="apply", patches=self.removed, removed=self.patches)

    @property
    def proof(self) -> dict[str, Any]:
        """Return the agent's proof request for everything that stands afterwards."""
        proofs = [
            r.variant.proof for r in self.look.reports if r.variant and r.patch.id in self.after
        ]
        runs = {proof.help_run: proof.help_shows for proof in proofs if proof.help_run}
        words = {
            run: sorted({w for p in proofs if p.help_run == run for w in p.help_shows})
            for run in runs
        }
        return {
            **self.look.target.request(),
            "root": self.look.root,
            "imports": sorted({name for proof in proofs for name in proof.imports}),
            "help": [{"run": list(run), "shows": shows} for run, shows in words.items()],
            "timeout_s": PROOF_TIMEOUT_S / 2,
        }


def plan_apply(
    seen: Look,
    library: Mapping[str, Patch],
    wanted: Sequence[str],
    *,
    allow_known_bad: bool = False,
) -> PatchPlan:
    """Return the transaction that adds ``wanted`` (with their needs) to what stands.

    Raises:
        SafetyRefusal: exit 50, for a known-bad patch without the explicit word, or an exclusion.
        CheckFailed: exit 20, when the files or the version do not allow it: then nothing is planned.
    """
    series = _series(seen, library, wanted)
    try:
        order_series(library, [*seen.applied, *(one for one in series if one not in seen.applied)])
    except PatchConflictError as error:
        raise _excluded(error, seen) from error
    missing = [one for one in series if one not in seen.applied]
    for one in missing:
        refuse_known_bad(library, one, allow_known_bad)
    for one in missing:
        report = seen.report(one)
        if report is not None and not report.can_apply:
            raise _not_applicable(report)
    after = [*seen.applied, *missing]
    return PatchPlan("apply", seen, tuple(missing), tuple(after), _changes(seen, after, missing))


def _series(seen: Look, library: Mapping[str, Patch], wanted: Sequence[str]) -> list[str]:
    """Return ``wanted`` and what it needs here: a need that this version has by itself is met."""
    try:
        ordered = order_series(library, list(wanted))
    except PatchConflictError as error:
        raise _excluded(error, seen) from error
    met = [r.patch.id for r in seen.reports if r.state is PatchState.SUPERSEDED]
    return [one for one in ordered if one in wanted or one not in met]


def _excluded(error: PatchConflictError, seen: Look) -> SafetyRefusal:
    standing = ", ".join(seen.applied)
    return SafetyRefusal(
        str(error),
        next_step=f"{standing} stands there: revert what is in the way first" if standing else None,
        code="patch-excluded",
    )


def plan_exactly(
    seen: Look,
    library: Mapping[str, Patch],
    wanted: Sequence[str],
    *,
    allow_known_bad: bool = False,
) -> PatchPlan:
    """Return the one transaction after which ``wanted`` (with their needs) stand, and no other known patch.

    Raises:
        SafetyRefusal, CheckFailed: as ``plan_apply``.
    """
    series = _series(seen, library, wanted)
    missing = [one for one in series if one not in seen.applied]
    surplus = [one for one in seen.applied if one not in series]
    for one in series:  # also one that stands there: what follows is a launch with it
        refuse_known_bad(library, one, allow_known_bad, seen.version, one in seen.applied)
    for one in missing:
        report = seen.report(one)
        if report is not None and not report.can_apply:
            raise _not_applicable(report)
    changes = _changes(seen, series, [*missing, *surplus])
    if not missing:
        return PatchPlan("revert", seen, tuple(surplus), tuple(series), changes)
    return PatchPlan("apply", seen, tuple(missing), tuple(series), changes, removed=tuple(surplus))


def refuse_known_bad(
    library: Mapping[str, Patch],
    one: str,
    allowed: bool,
    version: str | None = None,
    stands: bool = False,
) -> None:
    """Refuse a patch that is known to break the server, unless that is wanted.

    Raises:
        SafetyRefusal: exit 50, with what is recommended in its stead.
    """
    patch = library[one]
    if patch.status is PatchStatus.KNOWN_BAD and not allowed:
        step = "to reproduce the failure on purpose, add --allow-known-bad"
        better = better_than(library, patch, version)
        if better is not None:
            step = f"in the site file, write {better.id} in its place (recommended for {version}); {step}"
        where = " and in place" if stands else ""
        raise SafetyRefusal(
            f"{patch.id} is known to be bad{where}: {patch.reason}",
            next_step=step,
            code="patch-known-bad",
            subject=patch.id,
        )


def _not_applicable(report: PatchReport) -> CheckFailed:
    superseded = report.state is PatchState.SUPERSEDED
    code = "patch-superseded" if superseded else f"patch-{report.state.value}"
    return CheckFailed(
        f"{report.patch.id} is not needed: {report.detail}"
        if superseded
        else f"{report.patch.id} does not apply: {report.detail}",
        next_step="take it out of the server's patches"
        if superseded
        else "put the package's own files back (pip install --force-reinstall), then run it again",
        code=code,
        subject=report.patch.id,
    )


def plan_revert(seen: Look, unwanted: Sequence[str]) -> PatchPlan:
    """Return the transaction that takes ``unwanted`` away; those that are absent already are left out.

    Raises:
        SafetyRefusal: exit 50, when a patch that stays needs one that goes.
        CheckFailed: exit 20, when the files are not what any known patch makes of them.
    """
    gone: list[str] = []
    for one in unwanted:
        report = seen.report(one)
        if report is None or report.state in (PatchState.ABSENT, PatchState.SUPERSEDED):
            continue
        if report.variant is None:
            continue
        if report.state is PatchState.CONFLICT or not (
            report.state is PatchState.APPLIED or report.can_apply
        ):
            raise _not_applicable(report)
        gone.append(one)
    after = [one for one in seen.applied if one not in gone]
    for one in after:
        report = seen.report(one)
        needed = [need for need in (report.patch.needs if report else ()) if need in gone]
        if needed:
            raise SafetyRefusal(
                f"{one} needs {', '.join(needed)}",
                next_step=f"revert {one} too",
                code="patch-needed",
                subject=one,
            )
    return PatchPlan("revert", seen, tuple(gone), tuple(after), _changes(seen, after, gone))


def _changes(seen: Look, after: Collection[str], moving: Collection[str]) -> tuple[FileChange, ...]:
    """Plan the files of the patches that come or go; a patch that stands half in one of them hinders."""
    paths = _paths(seen, moving)
    for report in seen.reports:
        one = report.patch.id
        half = report.state is PatchState.DRIFTED and one not in after and one not in moving
        if half and paths & _paths(seen, [one]) and FileState.APPLIED in _states(report):
            raise _not_applicable(report)
    contents = {path: content for path, content in seen.contents.items() if path in paths}
    earlier = {path: seen.earlier[path] for path in paths if path in seen.earlier}
    try:
        return tuple(changes_for(seen.reports, contents, after, earlier))
    except PatchConflictError as error:
        raise CheckFailed(str(error), code="patch-conflict", subject=seen.root) from error


def _paths(seen: Look, ids: Collection[str]) -> set[str]:
    chosen = [report for report in seen.reports if report.patch.id in ids]
    return {file.path for report in chosen for file in report.files}


def _states(report: PatchReport) -> set[FileState]:
    return {file.state for file in report.files}
