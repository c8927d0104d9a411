"""The lab's site file and README: what an operator of these hosts would have written."""

from __future__ import annotations

import json
from typing import Any

from tests.lab import api, gpus
from tests.lab.instance import Instance

REAL_VERSION = "0.5.12.post1"
HELD_MIB = 40960  # lab GPU memory that a real scheduler holds on each GPU

CORNERS_SITE = """\
# The lab with its odd corners. pve1 and ct129 are one machine; node1 is pve1 under its other address,
# as a GPU host often is; gpu1 is another machine with GPUs of its own. pve1-ops logs in without root
# and uses sudo -n; the sudo of pve1-asks wants a password.
hosts:
  pve1: {{ssh: root@10.77.1.1, config_file: {config}, known_hosts: {known}}}
  node1: {{ssh: root@10.77.1.3, config_file: {config}, known_hosts: {known}}}
  gpu1: {{ssh: root@10.77.1.2, config_file: {config}, known_hosts: {known}}}
  pve1-ops: {{ssh: ops@10.77.1.1, become: sudo, config_file: {config}, known_hosts: {known}}}
  pve1-asks: {{ssh: asks@10.77.1.1, become: sudo, config_file: {config}, known_hosts: {known}}}
  ct129: {{pct: 129, via: pve1}}
  ct130: {{pct: 130, via: pve1}}
  ct129-ops: {{pct: 129, via: pve1-ops}}
  here: {{local: true}}
servers:
  # One machine: the container uses the GPUs of the node that it lives on.
  glm5:
    host: ct129
    gpus: {{host: node1, select: all, expect: 8}}
    port: 30000
    python: /opt/sglang/bin/python
    model: /models/GLM-5-NVFP4
    args: {{tp: 8, host: 0.0.0.0}}
    smoke: {{levels: [1, 2, 5, 10]}}
  # Two machines: the site file names GPUs that this server cannot be using.
  glm5-elsewhere:
    host: ct129
    gpus: {{host: gpu1, select: all, expect: 8}}
    port: 30000
    python: /opt/sglang/bin/python
    model: /models/GLM-5-NVFP4
    args: {{tp: 8, host: 0.0.0.0}}
  # A server on the bare GPU host.
  plain:
    host: gpu1
    port: 30001
    python: /opt/sglang/bin/python
    model: /models/GLM-5-NVFP4
    args: {{tp: 8, host: 0.0.0.0}}
"""
TIDY_SITE = """\
# The lab: a Proxmox node, its container, and another GPU machine. The odd corners are in corners.yaml.
hosts:
  pve1: {{ssh: root@10.77.1.1, config_file: {config}, known_hosts: {known}}}
  gpu1: {{ssh: root@10.77.1.2, config_file: {config}, known_hosts: {known}}}
  ct129: {{pct: 129, via: pve1}}
servers:
"""
STAND_IN = {
    "port": 30000,
    "python": "/opt/sglang/bin/python",
    "model": "/models/GLM-5-NVFP4",
    "args": {"tp": 8, "host": "0.0.0.0"},
}


def corners_site(instance: Instance) -> str:
    """Return corners.yaml, which the tests use; with real SGLang too, where it is installed."""
    text = CORNERS_SITE.format(config=instance.ssh_config, known=instance.keys / "known_hosts")
    for name, port, eagle in (("real", 30010, False), ("real-eagle", 30011, True)):
        server = real_server(instance, port, eagle)
        if server:
            text += _server(name, server, "node1")
    return text


def tidy_site(instance: Instance) -> str:
    """Return opsctl.yaml: glm5, real SGLang with EAGLE-3 where it is installed, and its stand-in."""
    text = TIDY_SITE.format(config=instance.ssh_config, known=instance.keys / "known_hosts")
    real = real_server(instance, 30000, True)
    text += _server("glm5", real or STAND_IN, "pve1")
    return text + _server("standin", STAND_IN | {"port": 30001}, "pve1")


def api_site(instance: Instance) -> str:
    """Return api.yaml: the node reached through its API with a token, trusted by its CA."""
    access = {
        "api": "https://10.77.1.1:8006",
        "token_id": api.TOKEN_ID,
        "token": {"file": str(api.secret_file(instance, "token"))},
        "ca_file": str(api.ca_file(instance)),
    }
    text = TIDY_SITE.format(config=instance.ssh_config, known=instance.keys / "known_hosts")
    hosts = text.removesuffix("servers:\n").replace(
        "pve1: {", f"pve1: {{proxmox: {json.dumps(access)}, "
    )
    return f"{hosts}  ct130: {{pct: 130, via: pve1}}\nservers:\n" + _server(
        "glm5", STAND_IN, "pve1"
    )


def real_server(instance: Instance, port: int, eagle: bool) -> dict[str, Any] | None:
    """Return how the site file launches real SGLang on the CPU in ct129, None where it is not built."""
    from tests.lab.sglang import environment, launch

    prefix = instance.cache / "sglang"
    if not environment.is_built(prefix, REAL_VERSION):
        return None
    hold = ",".join(f"{index}:{HELD_MIB}" for index in range(gpus.COUNT))
    start = launch.launch(REAL_VERSION, port, eagle=eagle, hold=hold, host="0.0.0.0", prefix=prefix)
    flags = _flags(start.argv[3:])
    model = flags.pop("model-path")
    del flags["port"]
    return {"port": port, "python": start.argv[0], "model": model, "args": flags, "env": start.env}


def _flags(words: list[str]) -> dict[str, Any]:
    """Return a command line's flags as the site file writes them; a flag without a value is true."""
    flags: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word.removeprefix("--")
            flags[name] = True
        else:
            flags[name] = int(word) if word.isdigit() else word
    return flags


def _server(name: str, server: dict[str, Any], owner: str) -> str:
    """Return one entry of ``servers``; its values are JSON, which is YAML and needs no library."""
    gpu_set = {"host": owner, "select": "all", "expect": gpus.COUNT}
    whole = {"host": "ct129", "gpus": gpu_set, **server, "smoke": {"levels": [1, 2, 5, 10]}}
    rows = [f"    {key}: {json.dumps(value)}" for key, value in whole.items()]
    return "\n".join([f"  {name}:", *rows, ""])


def fleet_site(instance: Instance, addresses: list[str]) -> str:
    """Return opsctl.yaml of a fleet: hosts h1, h2, ... and one server on each."""
    lines = ["# A fleet of plain sshd hosts.", "hosts:"]
    access = f"config_file: {instance.ssh_config}, known_hosts: {instance.keys / 'known_hosts'}"
    for number, address in enumerate(addresses, 1):
        lines.append(f"  h{number}: {{ssh: root@{address}, {access}}}")
    lines.append("servers:")
    for number in range(1, len(addresses) + 1):
        launch = "python: /opt/sglang/bin/python, model: /models/GLM-5-NVFP4"
        lines.append(f"  s{number}: {{host: h{number}, port: 30000, {launch}}}")
    return "\n".join(lines) + "\n"


def rootless_site(instance: Instance, user: str, port: int | None) -> str:
    """Return opsctl.yaml of a lab without root."""
    lines = ["# The lab without root.", "hosts:", "  here: {local: true}"]
    if port is not None:
        access = f"config_file: {instance.ssh_config}, known_hosts: {instance.keys / 'known_hosts'}"
        lines.append(f"  me: {{ssh: '{user}@127.0.0.1:{port}', {access}}}")
    return "\n".join(lines) + "\nservers: {}\n"
