"""The demo: a crashed server's remains in container 129 are stopped by proof, and a real one is brought up.

`make demo` runs it. As root: the lab's Proxmox node, container 129, real SGLang on the CPU. Without
root: the same commands on this machine, with the stand-in for SGLang, and it says what it leaves out.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.lab import lifecycle, packages, rootfs
from tests.lab.enter import enter_argv, lab_environment
from tests.lab.errors import LabError
from tests.lab.fixture import Lab
from tests.lab.instance import CHECKOUT, Instance, Record, find_instance

VERSION = "0.5.12.post1"
PORT = 30000
HELD_MIB = 20480
RESTART_S = 400
BOLD, PLAIN = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")


def main() -> int:
    """Run the demo and return 0 when every command ended as it should."""
    from tests.lab.sglang.installer import BuildError

    started = time.monotonic()
    instance = find_instance()
    code = 1
    try:
        code = _with_root(instance) if os.geteuid() == 0 else _without_root(instance)
    except (LabError, BuildError) as error:
        print(f"demo: {error}", file=sys.stderr)
    finally:
        say("taking the lab down")
        lifecycle.down(instance, keep_logs=code != 0)
    if code != 0 and lifecycle.any_logs(instance):
        _indented(f"the logs of its hosts are kept in {instance.log_dir}")
    verdict = "done" if code == 0 else "FAILED"
    say(f"{verdict} in {time.monotonic() - started:.0f} s")
    return code


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n{BOLD}== {text}{PLAIN}", flush=True)


def _indented(text: str) -> None:
    print(f"   {text}", flush=True)


def _with_root(instance: Instance) -> int:
    from tests.lab.sglang import environment

    rootfs.check_machine()
    say(f"real SGLang {VERSION} for the CPU (the first time: 1 GB to fetch, a minute or two)")
    with ThreadPoolExecutor(1) as beside:
        debian = beside.submit(packages.install, packages.NEEDED)
        environment.build(environment.default_prefix(), VERSION, _indented)
        debian.result()
    say("the lab: a Proxmox node with eight GPUs and container 129")
    record = lifecycle.up(instance)
    lab = Lab(instance, record)
    lab.clean_gpus()
    say("a server has crashed in container 129: its schedulers live on and hold the GPUs")
    _leave_remains(lab)
    return _tour(instance, record, _site(instance, container=True), lab)


def _without_root(instance: Instance) -> int:
    from tests.lab import rootless

    say("not root: no containers, no Proxmox node, and the stand-in instead of real SGLang")
    record = rootless.up(instance)
    return _tour(instance, record, _site(instance, container=False))


def _leave_remains(lab: Lab) -> None:
    """Start the stand-in in the container by hand, as of old, and kill its main process."""
    serve = [
        "/opt/sglang/bin/python", "-m", "sglang.launch_server", "--model-path", str(_model()),
        "--port", str(PORT), "--tp", "4", "--lab-orphans", "--lab-leave-shm",
    ]  # fmt: skip
    detached = 'echo $$ >/run/by-hand.pid; exec "$@" >/var/log/by-hand.log 2>&1 </dev/null'
    done = lab.on("ct129", ["/usr/bin/setsid", "-f", "/bin/sh", "-c", detached, "by-hand", *serve])
    if done.exit_code != 0:
        raise LabError(f"the demo's server did not start: {done.stderr}")
    deadline = time.monotonic() + 20
    while "ready to roll" not in lab.on("ct129", ["/bin/cat", "/var/log/by-hand.log"]).stdout:
        if time.monotonic() > deadline:
            raise LabError("the demo's server did not become ready")
        time.sleep(0.2)
    main = lab.on("ct129", ["/bin/cat", "/run/by-hand.pid"]).stdout.strip()
    lab.on("ct129", ["/bin/kill", "-9", main])
    time.sleep(0.5)


def _model() -> Path:
    from tests.lab.sglang import environment, models

    return models.write(environment.default_prefix() / "models")[0]


def _site(instance: Instance, *, container: bool) -> Path:
    """Write the demo's site file and return it."""
    if container:
        from tests.lab.sglang.launch import launch

        hold = ",".join(f"{gpu}:{HELD_MIB}" for gpu in range(4))
        made = launch(VERSION, PORT, hold=hold)
        python, argv, env = made.argv[0], made.argv[3:], made.env
        hosts = {
            "pve1": {"ssh": "root@10.77.1.1", "config_file": str(instance.ssh_config)},
            "ct129": {"pct": 129, "via": "pve1"},
        }
        place = {"host": "ct129", "gpus": {"host": "pve1", "select": "all", "expect": 8}}
    else:
        from tests.lab import standin

        model = instance.dir / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text("{}")
        python, argv = sys.executable, ["--model-path", str(model), "--tp", "4"]
        env = {"PYTHONPATH": str(standin.SITE)}
        hosts = {"here": {"local": True}}
        place = {"host": "here", "gpus": {"select": "all", "expect": 8}}
    arguments = _arguments(argv)
    server = {
        **place,
        "port": PORT,
        "python": python,
        "model": arguments.pop("model-path"),
        "args": arguments,
        "env": env,
        **({} if container else _own_folders(instance)),
        "smoke": {"levels": [1, 2, 5, 10], "tokens": 16},
    }
    arguments.pop("port", None)
    servers = {"glm5": server, **({"standin": _stand_in(place)} if container else {})}
    path = instance.dir / "demo.yaml"
    path.write_text(json.dumps({"hosts": hosts, "servers": servers}, indent=1))
    return path


def _stand_in(place: dict[str, Any]) -> dict[str, Any]:
    """Return a second server of the container: the stand-in for SGLang."""
    launch = {"python": "/opt/sglang/bin/python", "model": str(_model()), "args": {"tp": 4}}
    return {**place, "port": PORT + 1, **launch}


def _own_folders(instance: Instance) -> dict[str, str]:
    """Return where a user who is not root keeps logs and records."""
    return {name: str(instance.dir / name) for name in ("log_dir", "state_dir")}


def _arguments(argv: Sequence[str]) -> dict[str, object]:
    """Return a command line's flags as the site file's ``args``."""
    found: dict[str, object] = {}
    name = ""
    for word in argv:
        if word.startswith("--"):
            name = word[2:]
            found[name] = True
        else:
            found[name] = word
    return found


def _stop_container(lab: Lab) -> None:
    """Leave container 129 as it is found at night: stopped, by nobody knows whom."""
    done = lab.pct("stop", "129")
    if done.exit_code != 0:
        raise LabError(f"the demo's container did not stop: {done.stderr}")


def _exit_words(code: int, good: Sequence[int], because: str) -> str:
    """Return how a command ended; one that ends badly on purpose must not look like a failure."""
    if code not in good:
        return f"exit {code}, NOT as expected"
    return f"exit {code}, as expected: {because}" if code and because else f"exit {code}"


def _tour(instance: Instance, record: Record, site: Path, lab: Lab | None = None) -> int:
    state = instance.dir / "demo-state"
    environment = {"OPSCTL_SITE": str(site), "XDG_STATE_HOME": str(state)}

    def opsctl(
        *words: str, good: Sequence[int] = (0,), because: str = "", timeout_s: float = 60
    ) -> bool:
        print(f"\n{BOLD}$ opsctl {shlex.join(words)}{PLAIN}", flush=True)
        began = time.monotonic()
        done = subprocess.run(
            enter_argv(instance, record, [sys.executable, "-m", "opsctl", *words], CHECKOUT),
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            env=lab_environment(instance, record, environment),
            check=False,
        )
        took = f"{time.monotonic() - began:.1f} s"
        print(f"({_exit_words(done.returncode, good, because)}, {took})", flush=True)
        return done.returncode in good

    try:
        passed = opsctl("status", "glm5")
        held = (20,) if lab is not None else (0, 20)
        passed &= opsctl("gpu", "verify", "glm5", good=held, because="the cards are held")
        passed &= opsctl("stop", "glm5", "--dry-run")
        passed &= opsctl("restart", "glm5", "--yes", timeout_s=RESTART_S)
        passed &= opsctl("status", "glm5")
        passed &= opsctl("history")
        passed &= opsctl("show", "last")
        passed &= opsctl("stop", "glm5", "--yes", "--sweep")
        passed &= opsctl("gpu", "verify", "glm5")
        if lab is not None:
            say(
                "the container itself is found stopped (the server in it: the stand-in, to be quick)"
            )
            _stop_container(lab)
            passed &= opsctl("ct", "status", "standin", good=(20,), because="it is stopped")
            passed &= opsctl("restart", "standin", "--yes", "--no-smoke", timeout_s=RESTART_S)
            _indented(
                "what it says of ninja and nvcc is about the lab: there is no CUDA toolkit in"
            )
            _indented("it, and the stand-in builds no kernels")
            passed &= opsctl("ct", "status", "standin")
    except subprocess.TimeoutExpired as error:
        print(f"demo: a command took longer than {error.timeout:.0f} s", file=sys.stderr)
        return 1
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
