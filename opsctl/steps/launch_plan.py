"""Put one launch together from the site's entry and from what was found on the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opsctl.domain.launch import (
    RUN_DIR,
    SECRET,
    LaunchPlan,
    base_environment,
    flags_of,
    log_path,
)
from opsctl.domain.speculation import PATCH, Resolution, resolve
from opsctl.errors import ConfigError
from opsctl.patch_library import load_library
from opsctl.steps.base import StepContext
from opsctl.templates import render_list

if TYPE_CHECKING:
    from opsctl.site import Server

CONFIG = "speculation.json"
STRICT_PORTS = (
    "--strict-ports"  # sglang: do not move to another port when this one is taken (#21320)
)


def server_argv(server: Server, extra_flags: Sequence[str] = ()) -> list[str]:
    """Return the server's argv: its own command, or SGLang's from the template."""
    if server.command is not None:
        return list(server.command)
    flags = [*flags_of(server.args), *extra_flags]
    values = {
        "python": server.python,
        "model": server.model,
        "port": server.port,
        "flags": flags,
        "address": server.address,
    }
    return render_list("sglang", values)


def public_environment(server: Server) -> dict[str, str]:
    """Return the site's environment with each secret replaced by a word."""
    return {name: value if isinstance(value, str) else SECRET for name, value in server.env.items()}


def survey_environment(ctx: StepContext) -> dict[str, str]:
    """Return the environment in which the launch interpreter is asked: the server's, without secrets."""
    base = base_environment(ctx.run_id, ctx.server_name, ctx.server.python)
    plain = {name: value for name, value in ctx.server.env.items() if isinstance(value, str)}
    return {**base, **plain}


def full_environment(ctx: StepContext, plan: LaunchPlan) -> dict[str, str]:
    """Return the environment of the launch, secrets resolved now. Raises ConfigError for a missing one."""
    base = base_environment(plan.run, ctx.server_name, ctx.server.python)
    given = {
        name: secret_of(ctx, name) if value == SECRET else value
        for name, value in plan.public_env.items()
    }
    return {**base, **given}


def secret_of(ctx: StepContext, name: str) -> str:
    """Resolve the site's reference for ``name`` now."""
    found = ctx.server.env.get(name)
    if found is None or isinstance(found, str):
        raise ConfigError(f"the site has no secret for {name}", subject=ctx.server_name)
    return found.resolve()


def resolve_speculation(ctx: StepContext, version: str | None) -> Resolution | None:
    """Return how the server's ``speculation.disable_above`` is fulfilled by this version; None: no wish."""
    server = ctx.server
    if server.speculation is None or server.python is None or version is None:
        return None
    patch = load_library(ctx.patch_folder).get(PATCH)
    env = {name: value for name, value in server.env.items() if isinstance(value, str)}
    return resolve(
        version,
        server.args,
        env,
        server.speculation.disable_above,
        server.speculation.margin,
        patch is not None and patch.variant(version) is not None,
    )


def make_launch_plan(
    ctx: StepContext,
    *,
    known_flags: Sequence[str],
    interpreter: Mapping[str, Any] | None,
    gpu_model: str | None,
    wish: Resolution | None = None,
) -> LaunchPlan:
    """Build the launch of this run. Patches are filled in once they are staged."""
    server = ctx.server
    added = dict(wish.args) if wish else {}
    flags = [item.replace("{config}", f"{RUN_DIR}/{CONFIG}") for item in flags_of(added)]
    if STRICT_PORTS in known_flags and "strict-ports" not in server.args:
        flags.append(STRICT_PORTS)
    added_env = dict(wish.env) if wish else {}
    return LaunchPlan(
        run=ctx.run_id,
        server=ctx.server_name,
        argv=tuple(server_argv(server, flags)),
        port=server.port,
        address=server.address,
        log=log_path(server.log_dir, ctx.server_name, ctx.run_id),
        cwd=server.cwd or "/",
        user=server.user,
        nofile=server.nofile,
        public_env={**public_environment(server), **added_env},
        package=(interpreter or {}).get("package") if server.python else None,
        package_version=(interpreter or {}).get("package_version"),
        gpu_model=gpu_model,
        files={CONFIG: wish.config} if wish and wish.config else {},
    )


def systemd_argv(plan: LaunchPlan) -> list[str]:
    """Return the systemd-run argv of a launch."""
    values = {
        "unit": plan.unit,
        "server": plan.server,
        "run": plan.run,
        "log": plan.log,
        "nofile": plan.nofile,
        "cwd": plan.cwd,
        "user": plan.user,
        "argv": plan.argv,
    }
    return render_list("systemd-run", values)
