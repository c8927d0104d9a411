"""Patches of one server on its host: look, prove, apply, revert. What to do is decided in ``patch_plan``."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from opsctl.domain.patch import Patch, PatchReport, PatchState, earlier_forms, evaluate
from opsctl.errors import AgentError, CheckFailed, ConfigError, OpsctlError, SafetyRefusal
from opsctl.output import Finding
from opsctl.steps.base import Agent
from opsctl.steps.patch_plan import PROOF_TIMEOUT_S, Look, PatchPlan, Target

LOOK_TIMEOUT_S = 60.0
_REFUSALS = ("locked",)
_FAILURES = {
    "proof-failed": "nothing was changed; mend the patch, then look with `opsctl patch status SERVER`",
    "changed-meanwhile": "nothing was changed; look again with `opsctl patch status SERVER`",
    "no-space": "nothing was changed; make room, then run it again",
    "not-permitted": "nothing was changed; run it as the owner of the files (become: sudo in the site file)",
    "no-interpreter": "set the server's python to the interpreter that launches it",
    "interpreter-failed": "run that interpreter by hand and see what it says",
    "interrupted": "run it as the user that was patching, or as root",
    "io": "look at the host's file system",
}


def target_of(server: Any, name: str) -> Target:
    """Return the patching target of a site's server. Raises ConfigError when it has no interpreter."""
    if server.python is None:
        raise ConfigError(
            f"{name} has no python: opsctl patches what a launch interpreter imports",
            next_step="give the server `python` (with model and args) instead of `command`",
            subject=name,
        )
    env = {key: value for key, value in server.env.items() if isinstance(value, str)}
    return Target(server.python, server.cwd, env, server.state_dir)


def look(
    agent: Agent,
    target: Target,
    library: Mapping[str, Patch],
    package: tuple[str, str] = ("sglang", "sglang"),
    *,
    first: Sequence[str] = (),
    recover: bool = True,
    verify_all: bool = False,
    before: Look | None = None,
) -> Look:
    """Find the package, hash its files, and compute the state of every known patch of it.

    Args:
        agent: the agent on the server's host.
        target: the launch interpreter and its surroundings.
        library: all known patches; those of other packages are left out.
        package: distribution and module.
        first: ids in the order in which they are applied; the other patches follow by name.
        recover: finish or undo a transaction that was cut; False only reports it.
        verify_all: compare every file of the package with its RECORD too.
        before: an earlier look of the same command at the same package, whose place is taken over.

    Raises:
        CheckFailed: exit 20, when the interpreter imports no such package.
        AgentError, TransportError: when it could not be looked at.
    """
    distribution, module = package
    found = before.found if before is not None else _locate(agent, target, distribution, module)
    if found["root"] is None or found["version"] is None:
        raise CheckFailed(
            f"{target.interpreter} imports no installed {distribution}",
            next_step=_where_else(found),
            code="package-missing",
            subject=target.interpreter,
        )
    ordered = _ordered(library, distribution, first)
    paths = sorted(
        {file.path for p in ordered if (v := p.variant(found["version"])) for file in v.files}
    )
    seen = _call(
        agent,
        "patch.look",
        {
            **target.request(),
            "root": found["root"],
            "info": found["info"],
            "module": module,
            "interpreter": found["interpreter"],
            "files": {path: [] for path in paths},
            "recover": recover,
            "verify_all": verify_all,
        },
        LOOK_TIMEOUT_S,
    )
    contents = {one["path"]: _unpack(one.get("content")) for one in seen["files"]}
    recorded = [one for one, last in seen["records"].items() if last["action"] == "apply"]
    shipped = {one["path"]: one["shipped"] for one in seen["files"] if one["shipped"]}
    origins = {
        one["path"]: _unpack(one["origin"]["content"]) for one in seen["files"] if "origin" in one
    }
    older = earlier_forms(ordered, found["version"], contents, origins)
    earlier = {path: contents[path] for path in older}
    contents |= older
    reports = [
        _as_earlier(report, earlier)
        for report in evaluate(
            ordered, found["version"], contents, recorded=recorded, shipped=shipped
        )
    ]
    return Look(
        target,
        distribution,
        module,
        found["root"],
        found["version"],
        found["editable"],
        tuple(found["others"]),
        tuple(reports),
        contents,
        seen,
        found,
        earlier,
    )


def _as_earlier(report: PatchReport, earlier: Mapping[str, Any]) -> PatchReport:
    """Say of a patch whose earlier form stands there that it does: an apply brings the present one."""
    if report.state is not PatchState.DRIFTED or not report.can_apply:
        return report
    paths = [file.path for file in report.files if file.path in earlier]
    if not paths:
        return report
    detail = f"an earlier form of it stands in {', '.join(paths)}; an apply brings the present one"
    return replace(report, detail=detail)


def _locate(agent: Agent, target: Target, distribution: str, module: str) -> Mapping[str, Any]:
    request = {**target.request(), "distribution": distribution, "module": module}
    return _call(agent, "patch.locate", request, LOOK_TIMEOUT_S)


def _where_else(found: Mapping[str, Any]) -> str:
    others = ", ".join(found["others"])
    return (
        f"it is installed at {others}; which interpreter launches it?" if others else "install it"
    )


def _ordered(library: Mapping[str, Patch], package: str, first: Sequence[str]) -> list[Patch]:
    names = [*first, *sorted(set(library) - set(first))]
    return [library[name] for name in names if library[name].package == package]


def _unpack(text: str | None) -> bytes | None:
    return None if text is None else zlib.decompress(base64.b64decode(text))


def _pack(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(zlib.compress(content, 6)).decode()


def execute(agent: Agent, plan: PatchPlan, run_id: str | None = None) -> dict[str, Any]:
    """Do the transaction, with its proof; a failed proof has been rolled back when this raises.

    Returns:
        The agent's reply: transaction id, proof with its seconds, folder of the backups.

    Raises:
        SafetyRefusal: exit 50, when somebody else is changing the package.
        CheckFailed: exit 20, with nothing changed.
    """
    request = {
        **plan.look.target.request(),
        "root": plan.look.root,
        "action": plan.action,
        "patches": list(plan.patches),
        "removed": list(plan.removed),
        "version": plan.look.version,
        "run": run_id,
        "files": [
            {"path": c.path, "before": c.before, "after": c.after, "content": _pack(c.content)}
            for c in plan.changes
        ],
        "proof": plan.proof if plan.provable else None,
    }
    return _call(agent, "patch.apply", request, PROOF_TIMEOUT_S + 30)


def execute_all(
    agent: Agent, plans: Sequence[PatchPlan], run_id: str | None = None
) -> list[dict[str, Any]]:
    """Do one transaction per package; when a later one fails, the earlier ones are taken back.

    Raises:
        SafetyRefusal, CheckFailed: as ``execute``; every package is then as it was.
    """
    done: list[tuple[PatchPlan, dict[str, Any]]] = []
    try:
        for plan in plans:
            done.append((plan, execute(agent, plan, run_id)))
    except OpsctlError:
        for plan, _ in reversed(done):
            execute(agent, plan.reversed(), run_id)
        raise
    return [{"root": plan.look.root, **reply} for plan, reply in done]


def prove(agent: Agent, plan: PatchPlan, *, staged: bool = False) -> dict[str, Any]:
    """Prove what stands, or, staged, what would stand after the plan; nothing of the package changes."""
    request = dict(plan.proof)
    if staged:
        request["stage"] = {change.path: _pack(change.content) for change in plan.changes}
    return _call(agent, "patch.prove", request, PROOF_TIMEOUT_S + 30)


def findings_of(seen: Look, *, others: bool = False) -> list[Finding]:
    """Return what is worth telling about the package itself; ``others``: where else it is installed."""
    found: list[Finding] = []
    recovered = seen.raw.get("recovered")
    if recovered:
        text = f"a {recovered['action']} that was cut ({recovered['tx']}) is {recovered['outcome']}"
        found.append(Finding("patch-recovered", seen.root, text))
    if seen.raw.get("interrupted"):
        cut = seen.raw["interrupted"]
        text = f"a {cut['action']} by {cut['who']} was cut; files may be half changed"
        found.append(Finding("patch-interrupted", seen.root, text, "run it without --dry-run"))
    if seen.raw.get("busy"):
        found.append(Finding("patch-busy", seen.root, seen.raw["busy"]))
    if others and seen.others:
        text = f"also installed at {', '.join(seen.others)}; {seen.target.interpreter} imports this one"
        found.append(Finding("package-others", seen.root, text))
    if seen.editable:
        found.append(Finding("package-editable", seen.root, "an editable installation: a checkout"))
    package = seen.raw.get("package")
    if package and package["changed"]:
        found.append(_altered(seen, package["changed"]))
    return found


def _altered(seen: Look, changed: Sequence[str]) -> Finding:
    patched = {f.path for r in seen.reports if r.patch.id in seen.applied for f in r.files}
    strange = [path for path in changed if path not in patched]
    text = (
        f"{len(changed)} files differ from their RECORD, {len(strange)} of them by no known patch"
    )
    more = f": {', '.join(strange[:5])}" if strange else ""
    return Finding("package-altered", seen.root, text + more)


def restart_finding(seen: Look, server: str) -> Finding | None:
    """Say which processes still run the files as they were."""
    pids = [str(one["pid"]) for one in seen.raw.get("running", ())]
    if not pids:
        return None
    text = f"pid {', '.join(pids)} still runs the files as they were when it started"
    return Finding(
        "restart-needed", seen.root, text, f"restart the server: opsctl restart {server}"
    )


def _call(
    agent: Agent, operation: str, request: dict[str, Any], timeout_s: float
) -> dict[str, Any]:
    try:
        return agent.call(operation, request, timeout_s=timeout_s)
    except AgentError as error:
        detail = error.message.split(f"{operation}: ", 1)[-1]
        if error.code in _REFUSALS:
            raise SafetyRefusal(
                detail,
                next_step="wait until it is done, then look with `opsctl patch status SERVER`",
                code="patch-locked",
                subject=error.subject,
            ) from error
        if error.code in _FAILURES:
            raise CheckFailed(
                detail, next_step=_FAILURES[error.code], code=error.code, subject=error.subject
            ) from error
        raise
