"""The lab's site file and README: what an operator of these hosts would have written."""

from __future__ import annotations

from tests.lab.instance import Instance

HOSTS_SITE = """\
# The lab. pve1 and ct129 are one machine; node1 is pve1 under its other address, as a GPU host often
# is; gpu1 is another machine with GPUs of its own. pve1-ops logs in without root and uses sudo -n;
# the sudo of pve1-asks wants a password.
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
DEMO_SITE = """\
# The lab as a demonstration shows it: a Proxmox node, its container, and another GPU machine.
hosts:
  pve1: {{ssh: root@10.77.1.1, config_file: {config}, known_hosts: {known}}}
  gpu1: {{ssh: root@10.77.1.2, config_file: {config}, known_hosts: {known}}}
  ct129: {{pct: 129, via: pve1}}
servers:
  glm5:
    host: ct129
    gpus: {{host: pve1, select: all, expect: 8}}
    port: 30000
    python: /opt/sglang/bin/python
    model: /models/GLM-5-NVFP4
    args: {{tp: 8, host: 0.0.0.0}}
    smoke: {{levels: [1, 2, 5, 10]}}
"""


def hosts_site(instance: Instance) -> str:
    """Return opsctl.yaml of a lab with hosts."""
    return HOSTS_SITE.format(config=instance.ssh_config, known=instance.keys / "known_hosts")


def demo_site(instance: Instance) -> str:
    """Return demo.yaml: the same world without the odd corners that tests need."""
    return DEMO_SITE.format(config=instance.ssh_config, known=instance.keys / "known_hosts")


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
