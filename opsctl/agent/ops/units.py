"""systemd units of this host: what they are, and asking for their stop. Decides nothing."""

from __future__ import annotations

import os
import subprocess

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context

BOOTED = "/run/systemd/system"  # there when systemd is process 1: sd_booted(3)
KEYS = "Id,LoadState,ActiveState,SubState,MainPID,Restart,KillMode,ControlGroup,Result"


def show(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return ``units``: systemctl's properties of each unit of the request's ``units``."""
    found = []
    for unit in request["units"]:
        done = systemctl(["show", "-p", KEYS, "--", unit], 10.0, context)
        lines = done.stdout.decode("utf-8", "replace").splitlines()
        shown = dict(line.split("=", 1) for line in lines if "=" in line)
        found.append({"unit": unit, "properties": shown})
    return {"units": found}


def stop(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Ask systemd to stop ``unit`` and return at once; its processes are watched elsewhere.

    Returns:
        ``outcome``: asked, denied or failed; ``detail``: systemctl's words.
    """
    done = systemctl(["stop", "--no-block", "--", request["unit"]], 15.0, context)
    words = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode == 0:
        return {"outcome": "asked", "detail": words}
    denied = "authenticat" in words.lower() or "denied" in words.lower()
    return {"outcome": "denied" if denied else "failed", "detail": words}


def system_state(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return ``state``: what systemd says of the whole system (running, degraded, stopping...), else None.

    Where systemd is not process 1 its systemctl says "offline", always; that is no state of a shutdown.
    """
    if not os.path.isdir(BOOTED):
        return {"state": None}
    try:
        done = systemctl(["is-system-running"], 10.0, context)
    except context.Error:
        return {"state": None}
    return {"state": done.stdout.decode("utf-8", "replace").strip() or None}


def systemctl(
    words: list[str], timeout_s: float, context: Context
) -> subprocess.CompletedProcess[bytes]:
    """Run systemctl; its absence and its hanging have names."""
    argv = ["systemctl", "--no-ask-password", *words]
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=timeout_s,
        )
    except FileNotFoundError as error:
        raise context.Error("missing-program", "systemctl") from error
    except subprocess.TimeoutExpired as error:
        text = "systemctl %s did not end within %.0f s" % (words[0], timeout_s)
        raise context.Error("timeout", text) from error


OPERATIONS = {"show": show, "stop": stop, "system_state": system_state}
