"""Before a launch in a container: what of its GPU passthrough would keep the new process from its GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from opsctl.domain.launch import value_of
from opsctl.domain.preflight import Verdict
from opsctl.errors import OpsctlError
from opsctl.output import Finding
from opsctl.steps.base import StepContext

if TYPE_CHECKING:
    from opsctl.session import ServerSession

# Seen on the node or inside, and fatal for a process that starts now. What is only inferred from the
# configuration (a cgroup rule, a mode) or may be on purpose is told, and does not refuse.
REFUSES = frozenset(
    {
        "module-not-loaded",
        "uvm-not-loaded",
        "uvm-no-device",
        "device-stale",
        "device-is-a-file",
        "device-missing-inside",
        "driver-mismatch",
    }
)
NOTHING = Verdict((), (), ())


def look_at_passthrough(ctx: StepContext) -> Verdict:
    """Return what refuses and what warns; nothing for a server outside of containers or without GPUs.

    What could not be looked at is a warning here: a server that runs proves more than the check.
    """
    session = cast("ServerSession", ctx.session)
    if getattr(session, "container", None) is None or not wants_gpus(ctx):
        return NOTHING
    from opsctl.containers import find_place, open_container
    from opsctl.passthrough import examine

    try:
        place = find_place(session.hosts.site, session.server.host)
        container = open_container(session.hosts, place)
        try:
            judged = examine(session.hosts, place, container).judged
        finally:
            container.api.close()
    except OpsctlError as error:
        text = f"whether the GPUs are passed through could not be looked at: {error.message}"
        return Verdict(
            (), (), (Finding("passthrough-unknown", ctx.server_name, text, error.next_step or ""),)
        )
    return judge(judged.broken, judged.doubts, expects=ctx.server.gpus.expect is not None)


def judge(broken: tuple[Finding, ...], doubts: tuple[Finding, ...], *, expects: bool) -> Verdict:
    """Split the check's findings; a container without any GPU refuses only where GPUs are expected."""
    refusing = REFUSES | ({"no-gpu-passed"} if expects else set())
    return Verdict(
        tuple(finding for finding in broken if finding.code in refusing),
        (),
        (*(finding for finding in broken if finding.code not in refusing), *doubts),
    )


def wants_gpus(ctx: StepContext) -> bool:
    """Say whether the server is to use GPUs of NVIDIA: not with ``--device cpu``, nor a foreign command."""
    if ctx.server.command is not None:
        return ctx.server.gpus.expect is not None
    flags = [word for name, value in ctx.server.args.items() for word in (f"--{name}", str(value))]
    return value_of(flags, ("--device",)) in (None, "cuda")
