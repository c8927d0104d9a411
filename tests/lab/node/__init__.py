"""What makes a lab host a Proxmox node: `pct`, the containers' configurations and their root layers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.lab import api, gpus, software
from tests.lab.instance import Instance
from tests.lab.rootfs import Layer

SYSTEMD_CT, PLAIN_CT = 129, 130

CONTAINER_UNIT = """\
[Unit]
Description=PVE LXC Container: %i
After=lab-host.service

[Service]
Type=simple
Delegate=yes
KillMode=mixed
TimeoutStopSec=20s
ExecStartPre=/usr/sbin/pct lab-mount %i
ExecStart=/usr/bin/lxc-start -F -n %i
ExecStopPost=-/usr/bin/umount -l /var/lib/lxc/%i/rootfs
StandardOutput=null
StandardError=file:/run/pve/ct-%i.stderr
"""
API_UNIT = """\
[Unit]
Description=The lab's Proxmox API on port 8006
After=lab-host.service

[Service]
ExecStart=/usr/bin/python3 -IS /opt/lab-src/node/api.py

[Install]
WantedBy=multi-user.target
"""
# what docs/proxmox.md asks a token to have
TOKEN_ACL = {
    "/vms": ["VM.Audit", "VM.PowerMgmt", "VM.Snapshot"],
    "/nodes/pve1": ["Sys.Audit"],
}


def install(layer: Layer, instance: Instance) -> None:
    """Put the node's own files into the layer of `pve1`."""
    layer.link("usr/sbin/pct", "/opt/lab-src/node/pct.py")
    layer.link("usr/bin/pvesh", "/opt/lab-src/node/pvesh.py")
    layer.put("etc/systemd/system/pve-container@.service", CONTAINER_UNIT)
    layer.put("etc/pve/nodes/pve1/lxc/129.conf", container_config(instance, SYSTEMD_CT), 0o640)
    layer.put("etc/pve/nodes/pve1/lxc/130.conf", container_config(instance, PLAIN_CT), 0o640)
    layer.link("etc/pve/lxc", "nodes/pve1/lxc")
    layer.link("etc/pve/local", "nodes/pve1")
    layer.put("etc/lxc/default.conf", "lxc.net.0.type = empty\n")
    install_api(layer, instance)


def install_api(layer: Layer, instance: Instance) -> None:
    """Give the node its API: certificate, one user, one token, and the unit that serves."""
    known = api.folder(instance)
    layer.copy(api.ca_file(instance), "etc/pve/pve-root-ca.pem")
    layer.copy(known / "node.pem", "etc/pve/nodes/pve1/pve-ssl.pem")
    layer.copy(known / "node.key", "etc/pve/nodes/pve1/pve-ssl.key", 0o640)
    token = {"secret": api.secret_file(instance, "token").read_text(), "acl": TOKEN_ACL}
    users = {
        "users": {api.USER: api.secret_file(instance, "password").read_text()},
        "tokens": {api.TOKEN_ID: token},
    }
    layer.put("etc/pve/priv/lab-users.json", json.dumps(users), 0o600)


def shared_folders(instance: Instance, vmid: int | None = None) -> list[Path]:
    """Return what a host or container sees, read only, under its path on this machine.

    The cache holds the environments of real SGLang; the interpreters that they were made with, and the
    one that runs the lab, are there as well when they are not the distribution's. Container 129 is to
    patch SGLang: it has the cache in its own root file system, copied on write, where that can be.
    """
    made_with = [
        python.resolve().parents[1] for python in instance.cache.glob("sglang/*/bin/python")
    ]
    pythons = sorted({Path(sys.base_prefix).resolve(), *made_with})
    cache = [] if vmid == SYSTEMD_CT and _cache_is_below_the_root(instance) else [instance.cache]
    return [*cache, *(place for place in pythons if not place.is_relative_to("/usr"))]


def _cache_is_below_the_root(instance: Instance) -> bool:
    """Say whether the lower layer of a container, this machine's root, contains the cache."""
    cache = instance.cache
    return cache.is_relative_to("/var/cache") and cache.stat().st_dev == Path("/").stat().st_dev


def container_config(instance: Instance, vmid: int) -> str:
    """Return the Proxmox configuration of a lab container."""
    lines = [
        "arch: amd64",
        "cores: 2",
        "features: nesting=1",
        f"hostname: ct{vmid}",
        "memory: 16384",
        "mp0: /opt/lab-src,mp=/opt/lab-src,ro=1",
        "mp1: /var/lib/lab-gpu,mp=/var/lib/lab-gpu",
        *(
            f"mp{number}: {path},mp={path},ro=1"
            for number, path in enumerate(shared_folders(instance, vmid), 2)
        ),
        _network(vmid),
        "ostype: debian",
        f"rootfs: local:{vmid}/vm-{vmid}-disk-0.raw,size=64G",
        "swap: 0",
    ]
    if vmid == SYSTEMD_CT:
        lines += [f"dev{index}: {node}" for index, node in enumerate(gpus.NODES)]
        lines.append("onboot: 1")
    else:
        lines.append("entrypoint: /usr/bin/tini -- /usr/bin/sleep infinity")
    return "\n".join(sorted(lines)) + "\n"


def build_container(instance: Instance, vmid: int) -> None:
    """Fill the layer of a container; `pct start` mounts it on the node."""
    layer = Layer(instance.run_dir / "hosts/pve1/images" / str(vmid) / "upper", f"ct{vmid}")
    layer.create(shown="var/cache" if vmid == SYSTEMD_CT else None)
    layer.put("etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 ct{vmid}\n10.77.1.1 pve1\n")
    layer.add_users([], "")
    layer.put("var/lib/lab-gpu-view", "processes hidden\n")
    if vmid == SYSTEMD_CT:
        software.install_gpu_software(layer, instance)
        software.install_server(layer)


def _network(vmid: int) -> str:
    mac = f"02:4C:77:01:01:{vmid - 100:02d}"
    return f"net0: name=eth0,bridge=vmbr0,hwaddr={mac},ip=10.77.1.{vmid}/16,type=veth"
