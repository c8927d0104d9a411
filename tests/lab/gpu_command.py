"""`python -m tests.lab gpu ...`: look at the lab's GPUs, break them, repair them."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from tests.lab import gpus
from tests.lab.enter import require_ready
from tests.lab.errors import LabError
from tests.lab.fixture import Lab, holders
from tests.lab.instance import Instance


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `gpu` command with its verbs."""
    epilog = "faults:\n" + "".join(
        f"  {name:27}{meaning}{f' (default {default})' if default else ''}\n"
        for name, (_, default, meaning) in gpus.FAULTS.items()
    )
    gpu = commands.add_parser(
        "gpu",
        help="list the lab's GPUs, switch faults on and off",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = gpu.add_subparsers(required=True, metavar="VERB")
    listing = verbs.add_parser("list", help="GPUs and the faults that are on")
    listing.set_defaults(function=_list)
    fault = verbs.add_parser("fault", help="switch a fault on")
    fault.add_argument("name", choices=sorted(gpus.FAULTS), metavar="NAME")
    fault.add_argument("--gpu", type=int, help="index; without it: all eight")
    fault.add_argument("--value", help="MiB, Celsius, word; see `gpu --help`")
    fault.set_defaults(function=_fault)
    clear = verbs.add_parser("clear", help="switch faults off: all (Xids too), or those named")
    clear.add_argument("name", nargs="?", choices=sorted(gpus.FAULTS), metavar="NAME")
    clear.add_argument("--gpu", type=int)
    clear.set_defaults(function=_clear)
    hold = verbs.add_parser("hold", help="a process of its own that holds memory")
    hold.add_argument("--gpu", type=int, default=0)
    hold.add_argument("--mib", type=int, default=1024)
    hold.add_argument("--display", action="store_true", help="a display server (type G, Xorg)")
    hold.add_argument("--ignore-term", action="store_true", help="only SIGKILL ends it")
    hold.set_defaults(function=_hold)
    release = verbs.add_parser(
        "release", help="end every process that holds memory of the host's GPUs"
    )
    release.set_defaults(function=_release)
    xid = verbs.add_parser("xid", help="write an Xid to the host's kernel log")
    xid.add_argument("code", type=int, help="e.g. 79: GPU has fallen off the bus")
    xid.add_argument("--gpu", type=int, default=0)
    xid.set_defaults(function=_xid)
    for verb in (listing, fault, clear, hold, release, xid):
        verb.add_argument(
            "--host", default="pve1", help="pve1 (default), gpu1, here, h1..hN; hold: ct129 too"
        )


def folder_of(instance: Instance, host: str) -> Path:
    """Return the folder of the GPUs that ``host`` owns."""
    require_ready(instance)
    folder = instance.gpu_dirs / host
    if not (folder / "gpus").exists():
        known = ", ".join(sorted(path.name for path in instance.gpu_dirs.iterdir()))
        raise LabError(f"{host} owns no GPUs in this lab; owners: {known}")
    return folder


def _list(instance: Instance, options: argparse.Namespace) -> int:
    folder = folder_of(instance, options.host)
    for index, uuid in enumerate(gpus.uuids(folder)):
        print(f"{index} {uuid} {gpus.NAME}")
    for fault in gpus.read_faults(folder):
        print("fault " + fault.line().rstrip())
    return 0


def _fault(instance: Instance, options: argparse.Namespace) -> int:
    folder = folder_of(instance, options.host)
    fault = gpus.set_fault(folder, options.name, options.gpu, options.value)
    print(f"on: {fault.line().rstrip()}: {gpus.FAULTS[fault.name][2]}")
    return 0


def _clear(instance: Instance, options: argparse.Namespace) -> int:
    folder = folder_of(instance, options.host)
    gpus.clear_faults(folder, options.name, options.gpu)
    if options.name is None and options.gpu is None:
        gpus.clear_xids(folder)
    return 0


def _xid(instance: Instance, options: argparse.Namespace) -> int:
    print(gpus.add_xid(folder_of(instance, options.host), options.code, options.gpu))
    return 0


def _hold(instance: Instance, options: argparse.Namespace) -> int:
    argv = ["--gpu", str(options.gpu), "--mib", str(options.mib), "--detach"]
    if options.display:
        argv += ["--kind", "graphics", "--title", "Xorg", "--argv0", "/usr/lib/xorg/Xorg"]
    if options.ignore_term:
        argv.append("--ignore-term")
    done = Lab(instance, require_ready(instance)).on(
        options.host, ["/usr/bin/python3", "/opt/lab-src/hold.py", *argv]
    )
    print((done.stdout or done.stderr).strip())
    return done.exit_code


def _release(instance: Instance, options: argparse.Namespace) -> int:
    folder = folder_of(instance, options.host)
    pids = holders(folder)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    print(f"ended {len(pids)} process(es)")
    return 0
