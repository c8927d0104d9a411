"""The node's `pct` says and does what Proxmox VE's does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.fixture import Lab
from tests.lab.node import ctconf

pytestmark = pytest.mark.lab

CONFIG = "/etc/pve/lxc/130.conf"


@pytest.fixture
def ct130(lab: Lab) -> Iterator[Lab]:
    """Container 130 (no systemd), stopped and unlocked before and after."""
    _stop(lab)
    yield lab
    _stop(lab)


def _stop(lab: Lab) -> None:
    lab.pct("unlock", "130")
    if lab.pct("status", "130").stdout == "status: running\n":
        assert lab.pct("stop", "130").exit_code == 0


def test_configurations_are_read_and_written_as_proxmox_does() -> None:
    """Settings sorted, raw LXC lines in order, snapshots as sections; nonsense is complained about."""
    text = (
        "#why it is here\n"
        "arch: amd64\n"
        "net0: name=eth0,bridge=vmbr0,ip=10.77.1.130/16\n"
        "lxc.cgroup2.devices.allow: c 195:* rwm\n"
        "lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file\n"
        "\n[before]\narch: amd64\nsnaptime: 1700000000\n"
    )

    config, complaints = ctconf.parse(text + "what is this\n")

    assert complaints == ["what is this"]
    assert ctconf.dump(config) == text
    assert config.description == "why it is here\n"
    assert ctconf.properties(config.settings["net0"])["ip"] == "10.77.1.130/16"
    assert [key for key, _ in config.lxc] == ["lxc.cgroup2.devices.allow", "lxc.mount.entry"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", "999"], "Configuration file 'nodes/pve1/lxc/999.conf' does not exist\n"),
        (
            ["exec", "999", "--", "true"],
            "Configuration file 'nodes/pve1/lxc/999.conf' does not exist\n",
        ),
        (["exec", "130", "--", "true"], "container '130' not running!\n"),
        (["exec", "129", "--"], "missing command at /usr/share/perl5/PVE/CLI/pct.pm line 189.\n"),
        (["start", "129"], "CT 129 already running\n"),
        (["stop", "130"], "CT 130 not running\n"),
        (["shutdown", "130"], "CT 130 not running\n"),
        (["reboot", "130"], "VM 130 not running\n"),
        (["status", "abc"], "vmid: type check ('integer') failed - got 'abc'"),
        (["status", "42"], "vmid: value must have a minimum value of 100"),
        (["status"], "400 not enough arguments\npct status <vmid> [OPTIONS]\n"),
        (["frobnicate", "129"], "ERROR: unknown command 'pct frobnicate'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refusals_read_as_the_real_ones(ct130: Lab, words: list[str], message: str) -> None:
    """Each refusal is on stderr and exits 255."""
    refused = ct130.pct(*words)

    assert refused.exit_code == 255
    assert message in refused.stderr
    assert refused.stdout == ""


def test_list_and_config_read_as_the_real_ones(ct130: Lab) -> None:
    """The columns of list, and the settings in order."""
    lines = ct130.pct("list").stdout.splitlines()
    config = ct130.pct("config", "129").stdout.splitlines()

    assert lines[0].split() == ["VMID", "Status", "Lock", "Name"]
    assert lines[1].split() == ["129", "running", "ct129"]
    assert lines[2].split() == ["130", "stopped", "ct130"]
    assert config == sorted(config, key=lambda line: line.split(":")[0])
    assert "hostname: ct129" in config
    assert any(line.startswith("dev0: /dev/nvidia0") for line in config)


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], 137),
        (["/no/such/program"], 127),
        (["/etc/passwd"], 126),
    ],
    ids=["exit", "signal", "not found", "not executable"],
)
def test_exec_passes_exit_codes_on(lab: Lab, argv: list[str], code: int) -> None:
    """Exit N is N, a signal 128+N, not found 127, not executable 126."""
    assert lab.pct("exec", "129", "--", *argv).exit_code == code


def test_exec_uses_no_shell_and_passes_arguments_whole(lab: Lab) -> None:
    """Blanks, quotes, dollars and options of the command arrive as they are."""
    words = ["a b", "$HOME", "'", '"', "--", "-n", "*"]

    printed = lab.pct("exec", "129", "--", "printf", "%s\n", *words).stdout

    assert printed.splitlines() == words


def test_exec_keeps_the_callers_environment_unless_told_otherwise(lab: Lab) -> None:
    """--keep-env is on by default, as in Proxmox VE 8."""
    for flag, expected in (([], "secret\n"), (["--keep-env", "0"], ""), (["--keep-env=0"], "")):
        argv = ["env", "LEAK=secret", "pct", "exec", "129", *flag, "--", "printenv", "LEAK"]
        assert lab.on("pve1", ["/usr/bin/env", "PATH=/usr/sbin:/usr/bin", *argv]).stdout == expected


def test_a_container_starts_stops_and_reboots(ct130: Lab) -> None:
    """Each verb prints nothing, exits 0, and the state follows."""
    for verb, state in (("start", "running"), ("reboot", "running"), ("shutdown", "stopped")):
        done = ct130.pct(verb, "130")

        assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
        assert ct130.pct("status", "130").stdout == f"status: {state}\n"
    mounts = ct130.on("pve1", ["/usr/bin/cat", "/proc/mounts"]).stdout
    assert "/var/lib/lxc/130/rootfs" not in mounts


def test_a_locked_container_refuses_until_it_is_unlocked(ct130: Lab) -> None:
    """A backup's lock stands in the way of start, and `pct unlock` takes it away."""
    ct130.on("pve1", ["/usr/bin/sed", "-i", "$ a lock: backup", CONFIG])

    refused = ct130.pct("start", "130")

    assert (refused.exit_code, refused.stderr) == (255, "CT is locked (backup)\n")
    assert "backup" in ct130.pct("list").stdout
    assert ct130.pct("unlock", "130").exit_code == 0
    assert ct130.pct("start", "130").exit_code == 0


def test_a_snapshot_brings_files_and_settings_back(ct130: Lab) -> None:
    """Take, change, roll back, forget."""
    assert ct130.pct("start", "130").exit_code == 0
    write = ["exec", "130", "--", "sh", "-c"]
    ct130.pct(*write, "echo before >/root/file")
    assert ct130.pct("snapshot", "130", "clean", "--description", "as new").exit_code == 0
    ct130.pct(*write, "echo after >/root/file; rm /etc/hostname")

    assert ct130.pct("rollback", "130", "clean", "--start", "1").exit_code == 0

    files = ct130.pct("exec", "130", "--", "cat", "/root/file", "/etc/hostname").stdout
    assert files == "before\nct130\n"
    assert "clean" in ct130.pct("listsnapshot", "130").stdout
    assert ct130.pct("delsnapshot", "130", "clean").exit_code == 0
    assert "clean" not in ct130.pct("listsnapshot", "130").stdout
    again = ct130.pct("rollback", "130", "clean")
    assert (again.exit_code, again.stderr) == (255, "snapshot 'clean' does not exist\n")


def test_files_go_in_and_out(lab: Lab) -> None:
    """push and pull copy one file; a missing one is named."""
    lab.on("pve1", ["/bin/sh", "-c", "echo content >/root/outside"])

    assert lab.pct("push", "129", "/root/outside", "/root/inside", "--perms", "600").exit_code == 0
    assert lab.pct("pull", "129", "/root/inside", "/root/back").exit_code == 0

    assert lab.on("pve1", ["/bin/cat", "/root/back"]).stdout == "content\n"
    assert lab.on("ct129", ["/usr/bin/stat", "-c", "%a", "/root/inside"]).stdout == "600\n"
    refused = lab.pct("pull", "129", "/no/such/file", "/root/back")
    assert refused.exit_code == 255
    assert "No such file or directory" in refused.stderr


def test_a_missing_device_node_keeps_the_container_down(ct130: Lab) -> None:
    """dev0 names a node that is not there: start says which."""
    ct130.on("pve1", ["/usr/bin/sed", "-i", "$ a dev0: /dev/nvidia99", CONFIG])
    try:
        refused = ct130.pct("start", "130")
    finally:
        ct130.on("pve1", ["/usr/bin/sed", "-i", "/^dev0/d", CONFIG])

    assert (refused.exit_code, refused.stderr) == (255, "Device /dev/nvidia99 does not exist\n")


def test_killing_pct_exec_leaves_the_command_running(lab: Lab) -> None:
    """As in life: the far side has to end by itself."""
    argv = ["exec", "129", "--", "sh", "-c", "echo started; exec sleep 987"]
    lxc = ["lxc-attach", "-P", str(lab.instance.dir / "lxc"), "-n", "pve1", "--clear-env", "--"]
    with lab.popen([*lxc, "/usr/sbin/pct", *argv]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        find = ["/usr/bin/pgrep", "-f", "lxc-attach -n 129 .*sleep 987"]
        client = lab.on("pve1", find).stdout.split()[0]

        lab.on("pve1", ["/usr/bin/kill", "-9", client])
        process.wait(10)

        left = lab.on("ct129", ["/usr/bin/pgrep", "-f", "^sleep 987$"]).stdout.split()
        assert len(left) == 1
        lab.on("ct129", ["/usr/bin/kill", "-9", left[0]])
