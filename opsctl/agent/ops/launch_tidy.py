"""Far side of the tidying after a launch or a stop: units of ours that are over, and the oldest records."""

from __future__ import annotations

import os
import shutil
import time

from opsctl.agent.ops import launch_find

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself is not imported on the host: it costs 4 ms
    from typing import Any

    from opsctl.agent.remote import Context


def tidy(request: dict[str, Any], context: Context) -> dict[str, Any]:
    """Forget what is over on one port: dead units of ours, and the oldest folders above ``keep``.

    How a unit ended is kept in its folder (exit.json) before systemd forgets it.
    """
    ended = [
        one for one in launch_find.records(request, context)["records"] if one["state"] != "running"
    ]
    cleared, removed = [], []
    for index, one in enumerate(ended):
        if one["run"] == request["run"]:
            continue
        folder = launch_find.run_dir(request, one["run"], context)
        if one.get("via") == "systemd" and one.get("unit_state"):
            forget_unit(one, folder, context)
            cleared.append(one["unit"])
        elif one.get("unit_gone") or (one["via"] != "systemd" and one["state"] == "exited"):
            mark_forgotten(folder, one["boot_id"])
        if index >= request.get("keep", 20):
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(one["run"])
    return {"units": cleared, "removed": removed}


def forget_unit(one: dict[str, Any], folder: str, context: Context) -> None:
    """Wait until systemd is done with an ended unit, keep how it ended, and let systemd forget it."""
    exit_words = one["exit"]
    if not one["unit_state"].startswith("failed"):
        launch_find.command(["systemctl", "stop", one["unit"]], 15.0, context)
        shown = launch_find.show_unit(one["unit"], context)
        if shown.get("ActiveState") == "failed":
            exit_words = launch_find.unit_exit(shown)
        elif shown.get("ActiveState") in launch_find.LIVING:
            return  # it was started again meanwhile: it is no remains
    if exit_words and not os.path.exists(os.path.join(folder, "exit.json")):
        launch_find.write_whole(
            os.path.join(folder, "exit.json"), dict(exit_words, at_s=time.time())
        )
    launch_find.command(["systemctl", "reset-failed", one["unit"]], 15.0, context)


def mark_forgotten(folder: str, boot_id: str) -> None:
    """Note that an end was seen, and that systemd need not be asked again in this boot; best effort."""
    try:
        with open(os.path.join(folder, launch_find.FORGOTTEN), "w") as out:
            out.write(boot_id)
    except OSError:
        pass


OPERATIONS = {"tidy": tidy}
