"""Find out, before anything is stopped, whether the launch can work."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any

from opsctl.agent.read import read_gpus
from opsctl.domain.gpu import resolve_gpus
from opsctl.domain.gpu_health import judge_health
from opsctl.domain.launch import LaunchPlan, value_of
from opsctl.domain.launch_line import matches_command
from opsctl.domain.preflight import Verdict, Wanted, judge_preflight
from opsctl.domain.process import launch_line, masked
from opsctl.domain.speculation import (
    OLD_WORKER_PATCHES,
    Means,
    Resolution,
    unused_old_worker_patch,
)
from opsctl.facts import GpuReport
from opsctl.output import Finding
from opsctl.patch_library import load_library
from opsctl.records import dataclass
from opsctl.site import Server
from opsctl.steps.base import Effect, StepContext, StepOutcome, StepResult
from opsctl.steps.launch_plan import (
    make_launch_plan,
    resolve_speculation,
    server_argv,
    survey_environment,
)
from opsctl.steps.passthrough import look_at_passthrough

PROGRAMS = ("ninja", "nvcc", "gcc")
PARSER_TIMEOUT_S = 120.0  # building SGLang's parser took 5.5 s on two calm cores
MODEL_FLAGS = ("--speculative-draft-model-path", "--tokenizer-path")
NO_GPUS = ("no-library", "no-devices")


@dataclass(frozen=True, slots=True)
class Preflight:
    """Check port, shared memory, models, disks, GPUs, driver, toolchain, and the flags by the parser."""

    check_arguments: bool = True
    name = "preflight"
    effect = Effect.READ

    def describe(self) -> str:
        return "check that the launch can work"

    def preview(self, ctx: StepContext) -> list[str]:
        return []

    def run(self, ctx: StepContext) -> StepResult:
        has_parser = self.check_arguments and ctx.server.python is not None
        with ThreadPoolExecutor(max_workers=4) as pool:
            passing = pool.submit(look_at_passthrough, ctx)
            surveying = pool.submit(survey, ctx)
            reading = pool.submit(read_gpus, ctx.session.gpu_agent)
            parsing = pool.submit(parse_arguments, ctx) if has_parser else None
            surveyed, report = surveying.result(), reading.result()
            parser = parsing.result() if parsing else None
            passthrough = passing.result()
        wish = resolve_speculation(ctx, (surveyed["interpreter"] or {}).get("package_version"))
        known_flags = (parser or {}).get("flags") or ()
        plan = make_launch_plan(
            ctx,
            known_flags=known_flags,
            interpreter=surveyed["interpreter"],
            gpu_model=gpu_model(ctx, report),
            wish=wish,
        )
        verdict = judge(ctx, plan, surveyed, parser, report)
        unused = unused_patches(ctx, (surveyed["interpreter"] or {}).get("package_version"))
        problems = (*verdict.problems, *speculation_problems(ctx, wish, known_flags), *unused)
        verdict = Verdict(
            (*problems, *passthrough.problems),
            verdict.unsure,
            (*verdict.warnings, *passthrough.warnings),
        )
        return result_of(verdict, plan, surveyed, wish, (parser or {}).get("kept_since"))


def speculation_problems(
    ctx: StepContext, wish: Resolution | None, known_flags: Sequence[str]
) -> list[Finding]:
    """Say why the wish for speculation cannot be fulfilled; flags of a patch are proven when it is staged."""
    if wish is None:
        return []
    if wish.means is Means.REFUSED:
        return [Finding("speculation-refused", ctx.server_name, wish.reason, wish.way_out or "")]
    if wish.means is Means.PATCH and not ctx.values.get("patch", True):
        text = f"speculation.disable_above needs {', '.join(wish.patches)}, and --no-patch leaves it out"
        return [Finding("speculation-refused", ctx.server_name, text, "leave --no-patch away")]
    missing = [name for name in wish.args if known_flags and f"--{name}" not in known_flags]
    if wish.means is Means.FLAG and missing:
        text = f"this version's parser does not know --{', --'.join(missing)}"
        return [
            Finding(
                "speculation-refused",
                ctx.server_name,
                text,
                "opsctl speculation explain SERVER",
            )
        ]
    return []


def unused_patches(ctx: StepContext, version: str | None) -> list[Finding]:
    """Name each patch of the series that this launch would not put in play: its pass would be none."""
    if version is None or not ctx.values.get("patch", True):
        return []
    listed = [one for one in ctx.server.patches if one in OLD_WORKER_PATCHES]
    why = unused_old_worker_patch(version, ctx.server.args, survey_environment(ctx))
    return [Finding("patch-not-in-play", one, *why) for one in listed] if why else []


def survey(ctx: StepContext) -> dict[str, Any]:
    """Measure the machine where the server runs."""
    server = ctx.server
    request = {
        "port": server.port,
        "python": server.python,
        "cwd": server.cwd,
        "user": server.user,
        "env": survey_environment(ctx),
        "paths": model_paths(server),
        "folders": [log_folder(ctx), state_folder(ctx)],
        "programs": list(PROGRAMS),
    }
    return ctx.session.agent.call("preflight.survey", request, timeout_s=40.0)


def parse_arguments(ctx: StepContext) -> dict[str, Any]:
    """Let the installed version's own parser read the flags, in a child process.

    A flag that only a listed patch brings is unknown to it until that patch is in place: then the others
    are asked alone, and the patch's own flags are proven when it is staged.
    """
    reply = ask_parser(ctx, ctx.server)
    promised = promised_flags(ctx)
    if reply["ok"] is not False or not promised:
        return reply
    rest = {name: value for name, value in ctx.server.args.items() if f"--{name}" not in promised}
    if len(rest) == len(ctx.server.args):
        return reply
    return ask_parser(ctx, ctx.server.model_copy(update={"args": rest}))


def promised_flags(ctx: StepContext) -> set[str]:
    """Return the flags that the server's patches show in the help text once they are in place."""
    if not ctx.values.get("patch", True) or not ctx.server.patches:
        return set()
    library = load_library(ctx.patch_folder)
    variants = [
        variant for one in ctx.server.patches if one in library for variant in library[one].variants
    ]
    words = [word for variant in variants for word in variant.proof.help_shows]
    return {word for word in words if word.startswith("--")}


def ask_parser(ctx: StepContext, server: Server) -> dict[str, Any]:
    """Ask the parser about one set of arguments."""
    argv = server_argv(server)
    request = {
        "python": ctx.server.python,
        "cwd": ctx.server.cwd,
        "env": survey_environment(ctx),
        "flags": argv[argv.index("sglang.launch_server") + 1 :],
        "timeout_s": PARSER_TIMEOUT_S - 5,
    }
    return ctx.session.agent.call("preflight.arguments", request, timeout_s=PARSER_TIMEOUT_S)


def model_paths(server: Any) -> list[str]:
    """Return the folders that the launch will read; names of a model hub are not looked at."""
    named = [
        server.model or "",
        *(value_of(server_argv(server), (flag,)) or "" for flag in MODEL_FLAGS),
    ]
    return [path for path in named if path.startswith("/")]


def log_folder(ctx: StepContext) -> str:
    return ctx.server.log_dir or "/var/log/opsctl"


def state_folder(ctx: StepContext) -> str:
    return ctx.server.state_dir or "/var/lib/opsctl"


def gpu_model(ctx: StepContext, report: GpuReport) -> str | None:
    """Return the name of the GPUs; several kinds are joined, in order of their names."""
    uuids, _ = resolve_gpus(ctx.server.gpus.select, report)
    names = {gpu.name for gpu in report.gpus if gpu.uuid in uuids and gpu.name}
    return ", ".join(sorted(names)) or None


def judge(
    ctx: StepContext,
    plan: LaunchPlan,
    surveyed: Mapping[str, Any],
    parser: Mapping[str, Any] | None,
    report: GpuReport,
) -> Verdict:
    """Join the facts and judge them."""
    server = ctx.server
    uuids, missing = resolve_gpus(server.gpus.select, report)
    has_gpus = report.state not in NO_GPUS or server.gpus.expect is not None
    wanted = Wanted(
        argv=plan.argv,
        port=server.port,
        log_folder=log_folder(ctx),
        state_folder=state_folder(ctx),
        nofile=server.nofile,
        is_sglang=server.python is not None,
        gpu_report=report if has_gpus else None,
        gpus=tuple(gpu for gpu in report.gpus if gpu.uuid in uuids),
        expected_gpus=server.gpus.expect,
        ours=own_holders(ctx, surveyed["port"]["holders"]),
        env=plan.public_env,
    )
    verdict = judge_preflight(wanted, surveyed, parser)
    health = judge_health(report, uuids)
    return Verdict(
        (*verdict.problems, *missing, *(item.finding for item in health if item.refuses)),
        verdict.unsure,
        (*verdict.warnings, *(item.finding for item in health if not item.refuses)),
    )


def own_holders(ctx: StepContext, holders: list[dict[str, Any]]) -> frozenset[int]:
    """Return the pids on the port that are this server by record, by their command line, or below such a one.

    This only keeps the preflight from calling the running server a stranger; the stop proves identity.
    """
    launches = [*ctx.data_of("look").get("running", []), ctx.data_of("look").get("launched") or {}]
    recorded = {(one.get("pid"), one.get("start_ticks")) for one in launches}
    ours = {one.get("pid") for one in launches if one.get("state") == "running"}
    ours |= {
        one["pid"]
        for one in holders
        if (one["pid"], one["start_ticks"]) in recorded or is_own_line(ctx.server, one)
    }
    return frozenset(
        one["pid"] for one in holders if one["pid"] in ours or ours & set(one.get("parents") or ())
    )


def is_own_line(server: Any, holder: Mapping[str, Any]) -> bool:
    argv = tuple(holder["argv"])
    if server.command is not None:
        return matches_command(argv, tuple(server.command))
    line = launch_line(argv, holder.get("exe"))
    return line is not None and line.port in (None, server.port)


def shown(surveyed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the survey as it is kept and printed: no secret of a command line on the port."""
    port = surveyed.get("port")
    if not port:
        return dict(surveyed)
    holders = [{**one, "argv": masked(one["argv"])} for one in port.get("holders") or ()]
    return {**surveyed, "port": {**port, "holders": holders}}


def result_of(
    verdict: Verdict,
    plan: LaunchPlan,
    surveyed: Mapping[str, Any],
    wish: Resolution | None = None,
    kept_since_s: float | None = None,
) -> StepResult:
    """Say what stands in the way, or that nothing does; and whether the parser's answer is an earlier one."""
    data: dict[str, Any] = {
        "launch": plan.to_json(),
        "survey": shown(surveyed),
        "speculation": {"means": wish.means.value, "reason": wish.reason} if wish else None,
        "speculation_patches": list(wish.patches) if wish else [],
    }
    findings = (*verdict.problems, *verdict.unsure, *verdict.warnings)
    if verdict.exit_code:
        outcome = StepOutcome.FAILED if verdict.problems else StepOutcome.UNKNOWN
        return StepResult(outcome, findings=findings, data=data, exit_code=verdict.exit_code)
    version = plan.package_version or "no package version"
    program = f"sglang {version}" if plan.package else PurePosixPath(plan.argv[0]).name
    count = len(verdict.warnings)
    notes = f", {count} warning{'s' if count > 1 else ''}" if count else ""
    flags = "flags accepted"
    if kept_since_s is not None:
        asked = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(kept_since_s))
        flags += f" (asked {asked} UTC; nothing that the parser reads has changed since)"
    data["summary"] = f"{program}, {flags}, port and disks fit{notes}"
    return StepResult(StepOutcome.DONE, findings=findings, data=data)
