"""Measuring a server with and without speculation: restarts by the playbook, smokes in between."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from opsctl.cli.app import App
from opsctl.errors import CheckFailed, SmokeFailed, UsageError
from opsctl.site import Server, Site, load_site
from opsctl.smoke.playbook_restart import PlaybookRestart

SMOKE_S = 4 * 3600.0
PREFIX = "speculative-"


def sides_by_measuring(
    app: App, name: str, repeats: int, levels: str | None, profile: str
) -> tuple[str, str]:
    """Return the run ids of both sides, measured in turns; the server ends as its site says.

    Raises:
        UsageError: the server has no speculative flags to leave out.
        SmokeFailed: one of the sides did not pass its levels.
    """
    site = load_site(app.site_path)
    variants = write_variants(app.state() / "tune", site, name)
    app.confirm(
        f"restart {name} {2 * repeats + 1} times, without speculation and with it, and load it?"
    )
    local = site.host(site.server(name).host).local
    way = site.server(name).smoke.from_ or ("here" if local else "host")  # no tunnel in the times
    runs: dict[str, list[str]] = {side: [] for side in variants}
    try:
        for _ in range(repeats):
            for side, path in variants.items():
                PlaybookRestart(name, path, app.state_dir, _say)(f"tune: measure the {side}")
                runs[side].append(_smoke(app, name, path, side, levels, profile, way))
    finally:
        back = PlaybookRestart(name, site.path, app.state_dir, _say)
        back("tune: back to what the site says")
    return ",".join(runs["baseline"]), ",".join(runs["speculation"])


def write_variants(folder: Path, site: Site, name: str) -> dict[str, Path]:
    """Write one site file per side: without the speculative flags, and with them all the time."""
    from opsctl.domain.launch import safe_name

    server = site.server(name)
    if not any(flag.startswith(PREFIX) for flag in server.args):
        raise UsageError(
            f"{name} has no --{PREFIX}* flags: there is nothing to tune",
            next_step="add speculative-algorithm and its friends to the server's args",
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    plain = {flag: value for flag, value in server.args.items() if not flag.startswith(PREFIX)}
    found = {}
    for side, args in (("baseline", plain), ("speculation", dict(server.args))):
        body = _dump(site)
        body["servers"][name] = _server(server) | {"args": args}
        path = folder / f"{safe_name(name)}-{side}.yaml"
        path.write_text(json.dumps(body, indent=1), encoding="utf-8")
        found[side] = path
    return found


def _dump(site: Site) -> dict[str, Any]:
    body: dict[str, Any] = site.model_dump(mode="json", exclude_unset=True)
    if site.patch_folder is not None:  # the copy lies elsewhere
        body["patches_dir"] = str(site.patch_folder.absolute())
    return body


def _server(server: Server) -> dict[str, Any]:
    """Return a server without its wish to switch off: both sides run one way throughout."""
    body: dict[str, Any] = server.model_dump(mode="json", exclude_unset=True)
    body.pop("speculation", None)
    body.pop("on_failure", None)
    return body


def _smoke(
    app: App, name: str, site: Path, side: str, levels: str | None, profile: str, way: str
) -> str:
    """Smoke the server as a run of its own, and return the run's id."""
    argv = [sys.executable, "-m", "opsctl", "smoke", name, "--site", str(site), "--json"]
    argv += ["--profile", profile, "--label", side, "--no-down", "--from", way]
    argv += ["--levels", levels] if levels is not None else []
    argv += ["--state", str(app.state())]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=SMOKE_S
        )
        document = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise CheckFailed(f"the smoke of the {side} gave no result: {error}") from error
    if document["exit_code"] != 0:
        first = (document["findings"] or [{"text": document["outcome"]}])[0]
        raise SmokeFailed(
            f"the {side} did not pass: {first['text']}",
            next_step=f"opsctl show {document['run']}",
            subject=name,
        )
    return str(document["run"])


def plan_text(app: App, name: str, repeats: int) -> str:
    """Return what measuring would do, from the site alone."""
    server = load_site(app.site_path).server(name)
    flags = [flag for flag in server.args if flag.startswith(PREFIX)]
    return "\n".join(
        [
            f"{repeats} time(s): restart {name} without {', '.join(flags) or 'any flag'}; smoke it",
            f"{repeats} time(s): restart {name} with them, never switched off; smoke it",
            f"restart {name} as its site says",
        ]
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
