"""Try a patch on a wheel from the package index: apply, compile, import, revert, compare every byte."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from opsctl.domain.patch import Patch
from opsctl.domain.patch_changes import PatchConflictError, order_series
from opsctl.errors import AgentError, CheckFailed, ConfigError, OpsctlError
from opsctl.records import dataclass
from opsctl.steps.patch import execute, look, prove
from opsctl.steps.patch_plan import PatchPlan, Target, plan_apply, plan_revert

DOWNLOAD_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Trial:
    """How a patch fared on one version; ``problem`` is empty when it passed."""

    version: str
    files: int
    imports: str
    problem: str

    def row(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "outcome": "failed" if self.problem else "passed",
            "files": self.files,
            "imports": self.imports,
            "problem": self.problem or None,
        }

    def summary(self) -> str:
        if self.problem:
            return f"failed: {self.problem}"
        return f"applied, compiled, reverted byte for byte ({self.files} files); {self.imports}"


class HereAgent:
    """The patch operations called in this process: the same code that an agent runs on a host."""

    name = "here"

    class Error(Exception):
        """A named failure of an operation."""

        def __init__(self, kind: str, detail: str) -> None:
            super().__init__(detail)
            self.kind = kind

    def __init__(self, state: Path) -> None:
        self._state = str(state)
        self.cancelled = threading.Event()

    def emit(self, event: dict[str, Any]) -> None:
        """Nobody listens to the events of a trial."""

    def call(
        self,
        operation: str,
        request: dict[str, Any] | None = None,
        *,
        timeout_s: float = 60.0,
        on_event: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        from opsctl.agent.ops import patch

        run = patch.OPERATIONS[operation.split(".", 1)[1]]
        try:
            return run({**(request or {}), "state_dir": self._state}, self)
        except HereAgent.Error as error:
            raise AgentError(f"here: {operation}: {error}", code=error.kind) from error


def exact_versions(patch: Patch) -> tuple[str, ...]:
    """Return the versions that a patch's ranges name exactly, as ``==V``."""
    found = [re.fullmatch(r"==\s*([^,*]+)", variant.versions) for variant in patch.variants]
    return tuple(match[1] for match in found if match)


def try_patch(
    library: Mapping[str, Patch],
    patch: Patch,
    version: str,
    wheels: Path | None = None,
    python: str | None = None,
) -> Trial:
    """Try one patch (with what it needs) on one version, in folders of its own.

    Raises:
        ConfigError: when there is no wheel of that version for this machine.
    """
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="opsctl-trial-")))
        wheel = download(patch.package, version, wheels or work / "wheels")
        site = work / "site"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        before = _tree(site)
        agent = HereAgent(work / "state")
        target = Target(python or sys.executable, "/", {"PYTHONPATH": str(site)})
        try:
            files, imports = _there_and_back(agent, target, library, patch, site, version)
        except OpsctlError as error:
            return Trial(version, 0, "", error.message)
        changed = sorted(path for path, _ in set(before.items()) ^ set(_tree(site).items()))
        problem = f"after the revert {', '.join(changed[:5])} differ" if changed else ""
        return Trial(version, files, imports, problem)


def _there_and_back(
    agent: HereAgent,
    target: Target,
    library: Mapping[str, Patch],
    patch: Patch,
    site: Path,
    version: str,
) -> tuple[int, str]:
    package = (patch.package, patch.module)
    try:
        series = order_series(library, [patch.id])
    except PatchConflictError as error:
        raise ConfigError(str(error)) from error

    def see() -> Any:
        seen = look(agent, target, library, package, first=series)
        if seen.root != str((site / patch.module).resolve()) or seen.version != version:
            raise CheckFailed(f"the interpreter imports {seen.root} {seen.version}, not the wheel")
        return seen

    plan = plan_apply(see(), library, [patch.id], allow_known_bad=True)
    execute(agent, _unproven(plan))
    for change in plan.changes:
        if change.path.endswith(".py") and change.content is not None:
            compile(change.content, change.path, "exec")
    imports = _imports(agent, plan)
    execute(agent, _unproven(plan_revert(see(), plan.patches)))
    return len(plan.changes), imports


def _unproven(plan: PatchPlan) -> PatchPlan:
    return replace(plan, provable=False)


def _imports(agent: HereAgent, plan: PatchPlan) -> str:
    """Import what can be imported here; a missing third package is said, anything else is a failure."""
    proof = prove(agent, plan)
    if proof["ok"]:
        return "imports proven"
    missing = re.search(r"No module named '([\w.]+)'", proof["detail"])
    if missing and missing[1].split(".")[0] != plan.look.module:
        return f"not imported: {missing[1]} is not installed here"
    raise CheckFailed(proof["detail"], code="proof-failed")


def download(package: str, version: str, folder: Path) -> Path:
    """Return the wheel of a version, from ``folder`` or through pip's configured index."""
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    if not (found := sorted(folder.glob(pattern))):
        folder.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        done = subprocess.run(
            [*argv, str(folder), "--only-binary=:all:", f"{package}=={version}"],
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
        found = sorted(folder.glob(pattern))
        if not found:
            said = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            raise ConfigError(
                f"no wheel of {package} {version}: {said}", code="no-wheel", subject=package
            )
    return found[0]


def _tree(site: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(site)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mode,
        )
        for path in site.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
