"""Real SGLang in container 129: GPU memory of eight lab GPUs, seen and translated by the node."""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.lab import gpus
from tests.lab.fixture import Lab, wait_until
from tests.lab.sglang import environment, in_lab, models
from tests.lab.sglang.launch import Launch
from tests.lab.sglang.server import READY, READY_TIMEOUT_S

pytestmark = [pytest.mark.lab, pytest.mark.sglang, pytest.mark.timeout(400)]
VERSION = environment.VERSIONS[0]
PORT = 30100
LOG = "/var/log/sglang-lab-test.log"
HELD_MIB = 88000


@contextmanager
def serving(lab: Lab, host: str, start: Launch) -> Iterator[int]:
    """Start a server on a host as an operator would by hand; yields its pid there."""
    settings = [f"{name}={value}" for name, value in start.env.items()]
    script = f'echo $$ >/run/lab-sglang.pid; exec "$@" >{LOG} 2>&1 </dev/null'
    words = ["/usr/bin/env", "-C", "/root", *settings, "/bin/sh", "-c", script, "sh", *start.argv]
    done = lab.on(host, ["/usr/bin/setsid", "-f", *words])
    assert done.exit_code == 0, done.stderr
    try:
        wait_until(lambda: READY in log(lab, host), READY_TIMEOUT_S, "SGLang is ready")
        yield int(lab.on(host, ["/bin/cat", "/run/lab-sglang.pid"]).stdout)
    finally:
        lab.on(host, ["/bin/sh", "-c", "kill -9 $(cat /run/lab-sglang.pid)"])


def log(lab: Lab, host: str) -> str:
    return lab.on(host, ["/bin/cat", LOG]).stdout


def generate(address: str, prompt: list[int], tokens: int) -> list[int]:
    """Ask for a greedy answer over the lab's network."""
    with closing(http.client.HTTPConnection(address, PORT, timeout=60)) as connection:
        sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body = json.dumps({"input_ids": prompt, "sampling_params": sampling})
        connection.request("POST", "/generate", body, {"content-type": "application/json"})
        found: list[int] = json.loads(connection.getresponse().read())["output_ids"]
        return found


def test_eagle_in_container_129_holds_the_nodes_gpus(clean_lab: Lab) -> None:
    """The node sees one scheduler of lxc/129 hold all eight GPUs; TERM frees them; the copy is editable."""
    hold = ",".join(f"{gpu}:{HELD_MIB}" for gpu in range(gpus.COUNT))
    start = in_lab.launch_on(clean_lab, "ct129", VERSION, PORT, eagle=True, hold=hold)
    with serving(clean_lab, "ct129", start) as pid:
        assert generate("10.77.1.129", [5], 8) == models.expected(5, 8)

        query = ["/usr/bin/nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        assert clean_lab.on("pve1", query).stdout.split() == [str(HELD_MIB)] * gpus.COUNT
        apps = ["/usr/bin/nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
        [holder] = set(clean_lab.on("pve1", apps).stdout.split())
        title = clean_lab.on("pve1", ["/bin/cat", f"/proc/{holder}/cmdline"]).stdout
        cgroup = clean_lab.on("pve1", ["/bin/cat", f"/proc/{holder}/cgroup"]).stdout
        assert title.rstrip("\0") == "sglang::scheduler"
        assert "/lxc/129/ns" in cgroup

        clean_lab.on("ct129", ["/bin/kill", "-TERM", str(pid)])
        started = time.monotonic()
        used = lambda: set(clean_lab.on("pve1", query).stdout.split())  # noqa: E731
        wait_until(lambda: used() == {"0"}, 20, "the memory is free")
        assert time.monotonic() - started < 15, (
            "SIGTERM is polled every 5 s, then the server drains"
        )

    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    package = f"/opt/sglang-{VERSION}/lib/{python}/site-packages/sglang"
    assert clean_lab.on("ct129", ["/bin/touch", f"{package}/edited"]).exit_code == 0
    in_lab.uninstall(clean_lab, "ct129", VERSION)
    assert clean_lab.on("ct129", ["/usr/bin/test", "-e", package]).exit_code == 1
