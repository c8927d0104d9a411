#!/usr/bin/python3 -IS
"""Bring the node's containers back to how `up` leaves them: 129 running, 130 stopped, no locks."""

import contextlib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import ctconf
import pve
import switches

RUNNING, STOPPED = "129", "130"


def main():
    with contextlib.suppress(FileNotFoundError):
        os.unlink(switches.PATH)
    for vmid in (RUNNING, STOPPED):
        config = pve.load(vmid)
        if config.settings.pop("lock", None):
            ctconf.write(vmid, config)
    if pve.is_running(STOPPED):
        pve.stop_now(STOPPED, ["--kill"])
    if not pve.is_running(RUNNING):
        pve.start(RUNNING, pve.load(RUNNING))


if __name__ == "__main__":
    try:
        main()
    except pve.Die as error:
        sys.exit(str(error))
