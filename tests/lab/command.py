"""The lab's command line; `python -m tests.lab --help` explains it."""

from __future__ import annotations

import argparse
import os
import sys

from tests.lab import gpu_command, gpus, lifecycle
from tests.lab.enter import exec_inside, require_ready
from tests.lab.errors import LabError
from tests.lab.fixture import Lab, holders
from tests.lab.instance import Instance, find_instance

EPILOG = """\
The lab is two hosts in a network of their own, without a route outside:
  pve1   10.77.1.1   a Proxmox node with `pct`, eight GPUs, and container 129 (systemd) running,
                     container 130 (no systemd) stopped. 10.77.1.3 is its second address (node1).
  gpu1   10.77.1.2   another machine: its own boot id and its own eight GPUs.
Users: root; ops (sudo without a password); asks (sudo wants one: "lab").

  python -m tests.lab up                        bring it up; a second time is quick
  python -m tests.lab run -- opsctl status      this checkout's opsctl (or any program) in the lab;
                                                OPSCTL_SITE is .lab/NAME/opsctl.yaml. Hosts that
                                                refuse, and the like, are in corners.yaml beside it
  python -m tests.lab shell ct129               a shell on pve1, gpu1, ct129 or ct130
  python -m tests.lab gpu fault lost --gpu 3    break something; `gpu --help` lists what
  python -m tests.lab down                      leaves nothing

OPSCTL_LAB=NAME gives a lab of your own beside others (default opsctl-lab), in .lab/NAME of the
checkout ($OPSCTL_LAB_DIR/NAME). $OPSCTL_LAB_CACHE (default /var/cache/opsctl-lab) survives `down`;
every host and container sees it read only under the same path, and this folder as /opt/lab-src.
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(argv)
    try:
        return int(options.function(find_instance(), options) or 0)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab",
        description="A small Proxmox and GPU world for opsctl's tests: real sshd, LXC, systemd, "
        "NVML library; no GPU needed.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="bring the lab up")
    what = up.add_mutually_exclusive_group()
    what.add_argument("--no-root", action="store_true", help="without containers, as this user")
    what.add_argument(
        "--fleet", type=int, default=0, metavar="N", help="N plain sshd hosts instead"
    )
    up.set_defaults(function=_up)
    down = commands.add_parser("down", help="take it down; leaves nothing")
    down.set_defaults(function=_down)
    status = commands.add_parser("status", help="what is up (exit 1: nothing)")
    status.set_defaults(function=_status)
    run = commands.add_parser("run", help="run a program inside the lab: run -- CMD ARGS")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD")
    run.set_defaults(function=_run)
    shell = commands.add_parser("shell", help="a shell on a host")
    shell.add_argument(
        "host", help="pve1, gpu1, ct129, ct130, h1..hN, or any name of the ssh_config"
    )
    shell.set_defaults(function=_shell)
    gpu_command.add_to(commands)
    return parser


def _up(instance: Instance, options: argparse.Namespace) -> int:
    if options.no_root:
        from tests.lab import rootless

        record = rootless.up(instance)
    else:
        record = lifecycle.up(instance, fleet=options.fleet)
    print(f"lab {instance.name} is up ({record.mode}, built in {record.seconds} s): {instance.dir}")
    for lack in record.missing:
        print(f"  lacks: {lack}")
    return 0


def _down(instance: Instance, options: argparse.Namespace) -> int:
    there = lifecycle.down(instance)
    print(f"lab {instance.name} is {'down' if there else 'not up; nothing to do'}")
    return 0


def _status(instance: Instance, options: argparse.Namespace) -> int:
    record = instance.ready_record()
    if record is None:
        print(f"lab {instance.name} is not up")
        return 1
    print(f"lab {instance.name} is up: {record.mode}, built in {record.seconds} s")
    print(f"  state {instance.dir}\n  site  {instance.site_file}\n  ssh   -F {instance.ssh_config}")
    for lack in record.missing:
        print(f"  lacks {lack}")
    if record.mode == "hosts":
        listing = Lab(instance, record).pct("list").stdout
        print(
            "  containers of pve1:\n" + "".join(f"    {row}\n" for row in listing.splitlines()),
            end="",
        )
    if record.mode == "fleet":
        print(f"  hosts h1 to h{record.fleet}")
        return 0
    for folder in sorted(instance.gpu_dirs.iterdir()):
        on = [fault.line().strip() for fault in gpus.read_faults(folder)]
        text = f"{len(holders(folder))} holder(s) of memory; faults: {', '.join(on) or 'none'}"
        print(f"  GPUs of {folder.name}: {text}")
    return 0


def _run(instance: Instance, options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise LabError("say what to run: python -m tests.lab run -- CMD")
    exec_inside(instance, command)
    return 0


def _shell(instance: Instance, options: argparse.Namespace) -> int:
    require_ready(instance)
    host, words = options.host, []
    if host in ("ct129", "ct130"):
        host, words = "pve1", ["pct", "enter", host.removeprefix("ct")]
    terminal = ["-t"] if os.isatty(0) else ["-T"]
    exec_inside(instance, ["ssh", "-F", str(instance.ssh_config), *terminal, host, *words])
    return 0
