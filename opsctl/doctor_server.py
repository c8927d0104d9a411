"""Look at every precondition of one server: the second half of `opsctl doctor`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opsctl.agent.read import read_gpus
from opsctl.domain import doctor as domain
from opsctl.domain import doctor_gpu, versions
from opsctl.domain.doctor import Check, State
from opsctl.domain.gpu import resolve_gpus
from opsctl.domain.launch import tensor_parallel
from opsctl.errors import ConfigError, OpsctlError
from opsctl.facts import GpuReport
from opsctl.on_host import typed_here
from opsctl.output import Finding
from opsctl.session import ServerSession
from opsctl.steps.base import MonotonicClock, StepContext

if TYPE_CHECKING:
    from opsctl.site import Host

log = logging.getLogger(__name__)


class Quiet:
    """A reporter for steps that only look."""

    def say(self, text: str) -> None:
        """Keep a line for the log."""
        log.info("%s", text)

    def progress(self, text: str) -> None:
        """Say nothing: a look has no progress to show."""


def tried(name: str, look: Callable[[], list[Check]]) -> list[Check]:
    """Return what a look found, or that it could not look and why."""
    try:
        return look()
    except OpsctlError as error:
        return [Check(name, State.UNKNOWN, error.message, error.next_step or "")]


def examine_server(session: ServerSession, reached: set[str], *, parse: bool) -> list[Check]:
    """Look at a server's secrets, packages and patches, and what the preflight of a launch would say.

    Args:
        reached: the hosts with an agent.
        parse: ask the installed parser about the flags, which takes seconds.
    """
    checks = _secrets(session)
    if session.server.host not in reached or session.gpu_owner not in reached:
        text = "not looked at: a host that it touches was not reached"
        checks += [Check(one, State.UNKNOWN, text) for one in ("preflight", "packages", "patches")]
    else:
        checks += tried("machine", lambda: [_one_machine(session)])
        checks += tried("preflight", lambda: _launch(session, parse=parse))
        checks += tried("gpu-memory", lambda: _held_by_others(session))
        checks += tried("patches", lambda: _patches(session))
    host = session.server.host
    entry = session.hosts.site.host(host)
    return [placed(check.of(session.name), host, entry) for check in checks]


def placed(check: Check, host: str, entry: Host) -> Check:
    """Return a check whose command can be typed here: through the way to its host."""
    if not check.command:
        return check
    return replace(check, command=typed_here(host, entry, check.command))


def _secrets(session: ServerSession) -> list[Check]:
    from opsctl.secret import SecretRef

    server = session.server
    named = {key: value for key, value in server.env.items() if isinstance(value, SecretRef)}
    named |= {"api_key": server.api_key} if server.api_key is not None else {}
    checks = []
    for key, reference in named.items():
        try:
            reference.resolve()
        except ConfigError as error:
            checks.append(
                Check("secrets", State.BAD, f"{key}: {error.message}", error.next_step or "")
            )
    return checks or ([Check("secrets", State.OK, f"{len(named)} can be read")] if named else [])


def _one_machine(session: ServerSession) -> Check:
    machine = session.machine
    if machine.one is None:
        step = "name the node as gpus.host if the container uses its GPUs"
        return Check("machine", State.UNKNOWN, machine.describe(), step)
    return Check("machine", State.OK, machine.describe())


def context_of(session: ServerSession) -> StepContext:
    """Return the context in which the preflight's functions look; nothing of it is kept."""
    return StepContext(
        server=session.server,
        server_name=session.name,
        run_id="doctor",
        session=session,
        clock=MonotonicClock(),
        reporter=Quiet(),
        patch_folder=session.hosts.site.patch_folder,
        begun_s=time.time(),
    )


def _launch(session: ServerSession, *, parse: bool) -> list[Check]:
    """Ask what the preflight asks, in the same way, and judge versions and architecture beside it."""
    from opsctl.steps import preflight
    from opsctl.steps.launch_plan import make_launch_plan

    ctx = context_of(session)
    ask_parser = parse and session.server.python is not None
    with ThreadPoolExecutor(4, thread_name_prefix="doctor") as pool:
        surveying = pool.submit(preflight.survey, ctx)
        reading = pool.submit(read_gpus, session.gpu_agent)
        versioning = pool.submit(_read_packages, session, ctx)
        parsing = pool.submit(preflight.parse_arguments, ctx) if ask_parser else None
        surveyed, report, packages = surveying.result(), reading.result(), versioning.result()
        parser = parsing.result() if parsing else None
    plan = make_launch_plan(
        ctx,
        known_flags=(parser or {}).get("flags") or (),
        interpreter=surveyed["interpreter"],
        gpu_model=preflight.gpu_model(ctx, report),
    )
    verdict = preflight.judge(ctx, plan, surveyed, parser, report)
    checks = domain.group_preflight(
        verdict.problems, verdict.unsure, verdict.warnings, parsed=ask_parser
    )
    checks += doctor_gpu.judge_nccl(
        session.server.env, tensor_parallel(plan.argv) if report.gpus else 1
    )
    return checks + _fits(session, surveyed["interpreter"], report, packages)


def _held_by_others(session: ServerSession) -> list[Check]:
    """Say what a restart would refuse: who else holds the server's GPUs, and stays when it is stopped."""
    from opsctl.domain.held_after import CODE, in_words, way_out
    from opsctl.steps.gpu_memory import what_stays

    staying = what_stays(context_of(session))
    if not staying:
        return [Check("gpu-memory", State.OK, "no other process is seen to hold its GPUs")]
    finding = Finding(CODE, session.name, in_words(staying), way_out(staying, session.name))
    return [domain.from_finding("gpu-memory", State.BAD, finding)]


def _read_packages(session: ServerSession, ctx: StepContext) -> Mapping[str, Any] | None:
    from opsctl.steps.launch_plan import survey_environment

    server = session.server
    if server.python is None:
        return None
    request = {"python": server.python, "cwd": server.cwd, "env": survey_environment(ctx)}
    return session.agent.call(
        "doctor.packages", {**request, "names": versions.NAMES}, timeout_s=40.0
    )


def _fits(
    session: ServerSession,
    interpreter: Mapping[str, Any] | None,
    report: GpuReport,
    packages: Mapping[str, Any] | None,
) -> list[Check]:
    """Judge versions against each other, and against the GPUs of the server."""
    if packages is None:
        return []
    server = session.server
    on_gpu = server.args.get("device") in (None, "cuda")
    checks = versions.judge_packages(packages, python=str(server.python), on_gpu=on_gpu)
    if not report.gpus or not on_gpu:
        return checks
    uuids, _ = resolve_gpus(server.gpus.select, report)
    gpus = [gpu for gpu in report.gpus if gpu.uuid in uuids]
    capabilities = [gpu.compute_capability for gpu in gpus if gpu.compute_capability]
    cuda = (interpreter or {}).get("torch_cuda")
    driver = report.kernel_module_version or report.driver_version
    checks.append(versions.judge_driver(driver, cuda, asks_torch=versions.asks_torch(packages)))
    checks += versions.judge_architecture(capabilities, cuda, packages.get("nvcc"))
    return checks + doctor_gpu.judge_sm120(server.args, capabilities)


def _patches(session: ServerSession) -> list[Check]:
    """Compare the installed package with the server's series: drift is what an upgrade leaves."""
    from opsctl.patch_library import find_patch, load_library
    from opsctl.steps.patch import look, target_of

    server = session.server
    if server.python is None:
        return []
    library = load_library(session.hosts.site.patch_folder)
    for one in server.patches:
        find_patch(library, one)
    target = target_of(server, session.name)
    wanted = [library[one] for one in server.patches] or list(library.values())
    checks = []
    for package in dict.fromkeys((patch.package, patch.module) for patch in wanted):
        seen = look(session.agent, target, library, package, first=tuple(server.patches))
        checks += _patch_states(session, seen.reports)
    return checks


def _patch_states(session: ServerSession, reports: Any) -> list[Check]:
    series = session.server.patches
    checks = []
    for report in reports:
        state = report.state.value
        named = report.patch.id
        if state in ("drifted", "conflict") and (named in series or state == "drifted"):
            text = f"{named}: {report.detail or state}"
            checks.append(Check("patches", State.BAD, text, f"opsctl patch status {session.name}"))
        elif named in series and state == "absent":
            text = f"{named} is in the server's series and is not applied"
            step = "the next restart applies it"
            if report.patch.status.value == "known-bad":
                step = "it is known to be bad: a restart refuses it; take it out of `patches`"
            checks.append(Check("patches", State.WARN, text, step))
    applied = [report.patch.id for report in reports if report.state.value == "applied"]
    shown = f"applied: {', '.join(applied)}" if applied else "no patch stands"
    return checks or [Check("patches", State.OK, f"{shown}; no drift")]
