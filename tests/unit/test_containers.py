"""Which container a word on the command line means."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.cli.ct_exec import describe_exit, split_report
from opsctl.containers import Place, find_place
from opsctl.errors import ConfigError, UsageError
from opsctl.passthrough import parse_inside, parse_majors, parse_node
from opsctl.site import Site, load_site

SITE = """\
hosts:
  pve1: {ssh: root@192.0.2.6}
  ct129: {pct: 129, via: pve1}
  gpu1: {ssh: root@192.0.2.7}
servers:
  glm5: {host: ct129, command: [/bin/true]}
  bare: {host: gpu1, command: [/bin/true]}
"""
TOKEN = "proxmox: {api: 'https://192.0.2.6:8006', token_id: root@pam!ops, token: {env: PVE_TOKEN}}"


def read(folder: Path, text: str) -> Site:
    path = folder / "opsctl.yaml"
    path.write_text(text)
    return load_site(path)


@pytest.mark.parametrize("word", ["129", "glm5", "ct129"])
def test_vmid_server_and_host_entry_mean_the_same_container(tmp_path: Path, word: str) -> None:
    """One node in the site: a vmid alone is enough."""
    assert find_place(read(tmp_path, SITE), word) == Place(129, "pve1", ("glm5",))


def test_a_vmid_that_the_site_does_not_name_is_on_the_only_node(tmp_path: Path) -> None:
    """Any container of the node can be named by its number."""
    assert find_place(read(tmp_path, SITE), "130") == Place(130, "pve1", ())


def test_two_nodes_need_to_be_told_apart(tmp_path: Path) -> None:
    """A vmid without a clear node is refused with the option to give."""
    site = read(tmp_path, SITE.replace("192.0.2.7}", "192.0.2.7, proxmox: {}}"))

    with pytest.raises(UsageError, match=r"any of gpu1, pve1|any of pve1, gpu1") as caught:
        find_place(site, "130")

    assert "--node" in str(caught.value.next_step)
    assert find_place(site, "130", "gpu1").node_host == "gpu1"
    assert find_place(site, "129").node_host == "pve1"


@pytest.mark.parametrize(
    ("word", "said"),
    [("bare", "not in a container"), ("glm6", "no server 'glm6'"), ("42", "start at 100")],
)
def test_what_is_no_container_is_a_usage_error(tmp_path: Path, word: str, said: str) -> None:
    """Each wrong word gets its reason, exit 2."""
    with pytest.raises(UsageError, match=said):
        find_place(read(tmp_path, SITE), word)


def test_the_proxmox_block_is_read_and_its_secret_stays_a_reference(tmp_path: Path) -> None:
    """Nothing is resolved before it is needed."""
    site = read(tmp_path, SITE.replace("192.0.2.6}", f"192.0.2.6, {TOKEN}}}"))

    access = site.hosts["pve1"].proxmox
    assert access is not None
    assert access.token is not None
    assert access.token.env == "PVE_TOKEN"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("token_id: root@pam!ops, ", "", "token_id and token go together"),
        ("root@pam!ops", "root@pam", "user@realm!name"),
        ("token: {env: PVE_TOKEN}", "token: abc", "token"),
        ("api: 'https://192.0.2.6:8006', ", "", "'api' is missing"),
        ("token: {", "user: root@pam, password: {env: P}, token: {", "exactly one login"),
        ("token: {", "fingerprint: abc, token: {", "32 pairs"),
    ],
)
def test_a_wrong_proxmox_block_is_told(tmp_path: Path, old: str, new: str, said: str) -> None:
    """Each mistake is a config error, exit 10, that never shows a secret."""
    text = SITE.replace("192.0.2.6}", f"192.0.2.6, {TOKEN.replace(old, new)}}}")

    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)

    assert said in caught.value.message
    assert "abc" not in caught.value.message


def test_devices_are_read_from_the_nodes_answer() -> None:
    """Hex numbers of stat, character majors only, the module's version in either wording."""
    text = (
        "/dev/nvidia0|character special file|c3|0|666\n/dev/nvidia-caps|directory|0|0|755\n"
        "/dev/nvidia-uvm|regular empty file|0|0|644\n==\n"
        "Character devices:\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n  8 nvidia\n==\n"
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n==\n"
    )

    node = parse_node(text)

    assert [(item.path, item.number) for item in node.devices] == [
        ("/dev/nvidia0", (195, 0)),
        ("/dev/nvidia-uvm", None),
    ]
    assert (node.majors, node.module_version) == ({"nvidia": 195, "nvidia-uvm": 511}, "580.95.05")
    assert parse_majors("") == {}


def test_the_containers_answer_is_read_also_when_it_is_bare() -> None:
    """No device, no library, no /dev/shm: absent is None."""
    bare = parse_inside("==\n==\n==\n         0     100000      65536\n==\n")
    full = parse_inside("==\n/usr/lib64/libcuda.so.570.86.15\n==\n4096 262144\n==\n0 0 1\n==\n")

    assert (bare.library_version, bare.shm_bytes, bare.is_shifted) == (None, None, True)
    assert (full.library_version, full.shm_bytes, full.is_shifted) == ("570.86.15", 1 << 30, False)


def test_the_end_of_a_command_is_told_by_its_own_report() -> None:
    """Only the report with this run's mark counts, and it is taken out of stderr."""
    assert split_report(b"oh no\n\nmark-1 3\n", "mark-1") == (3, b"oh no\n")
    assert split_report(b"mark-2 0\n", "mark-1") == (None, b"mark-2 0\n")
    assert describe_exit(137) == "137: signal 9"
    assert "no such command" in describe_exit(127)
