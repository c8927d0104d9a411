"""The exact lines that mend a container's configuration, and every other line left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opsctl.domain.passthrough import DeviceNode, NodeFacts
from opsctl.domain.passthrough_fix import apply_edits, left_after, plan_edits, settings_of
from tests.unit.domain.test_passthrough import NODE

CT = 129
BY_DEV = """\
#a note of the operator
arch: amd64
dev0: /dev/nvidia0,mode=0666
dev2: /dev/nvidiactl,mode=0666
features: nesting=1
hostname: ct129

[pve:pending]
dev9: /dev/nvidia-uvm

[before]
dev0: /dev/nvidia7
"""
BY_MOUNT = """\
arch: amd64
features: nesting=1
lxc.cgroup2.devices.allow: c 195:* rwm
lxc.cgroup2.devices.allow: c 508:* rwm
lxc.cgroup2.devices.allow: c 226:* rwm
lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file
lxc.mount.entry: /dev/nvidiactl dev/nvidiactl none bind,optional,create=file
lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file
"""
WITH_DRM = replace(NODE, majors={**NODE.majors, "drm": 226})


def mended(text: str, node: NodeFacts = NODE, version: tuple[int, int] | None = (8, 2)) -> str:
    """Return the text after the planned edits; nothing that a line can mend is left in it."""
    after = apply_edits(text, plan_edits(text, node, version))
    assert left_after(CT, after, node) == []
    assert plan_edits(after, node, version) == []  # a second time there is nothing to do
    return after


def test_a_missing_uvm_gets_the_first_free_dev_line_of_the_part_of_now() -> None:
    """What is pending or in a snapshot neither counts nor changes; GPU 1 is left out on purpose."""
    after = mended(BY_DEV)

    assert after == BY_DEV.replace(
        "hostname: ct129\n", "hostname: ct129\ndev1: /dev/nvidia-uvm,mode=0666\n"
    )


def test_a_rule_for_a_major_that_no_driver_has_is_changed_in_its_place() -> None:
    """nvidia-uvm was 508 and is 511 since the kernel's update; the rule for 226 (drm) stays."""
    (edit,) = plan_edits(BY_MOUNT, WITH_DRM, None)

    assert (edit.verb, edit.old) == ("change", "lxc.cgroup2.devices.allow: c 508:* rwm")
    assert mended(BY_MOUNT, WITH_DRM) == BY_MOUNT.replace("508", "511")


def test_a_rule_for_a_major_that_another_driver_has_now_stays() -> None:
    """Somebody else's device may need it: a line is added instead."""
    node = replace(WITH_DRM, majors={**WITH_DRM.majors, "hidraw": 508})

    after = mended(BY_MOUNT, node)

    assert "c 508:* rwm" in after
    assert after.endswith("lxc.cgroup2.devices.allow: c 511:* rwm\n")


def test_a_container_without_gpus_gets_all_of_the_node() -> None:
    """As devN lines, or as mounts with their rules on a node before 8.1."""
    bare = "arch: amd64\nfeatures: nesting=1\n"

    by_dev, by_mount = mended(bare), mended(bare, version=(7, 4))

    assert [line.split(":")[0] for line in by_dev.splitlines()[2:]] == [
        "dev0",
        "dev1",
        "dev2",
        "dev3",
    ]
    assert "dev0" not in by_mount
    assert by_mount.count("lxc.mount.entry") == 4
    assert by_mount.count("devices.allow") == 2


def test_a_missing_device_follows_the_way_of_the_others() -> None:
    """Mounts stay mounts, with the rule that they need."""
    text = BY_MOUNT.replace(BY_MOUNT.splitlines()[-1] + "\n", "").replace("c 508", "c 511")

    after = mended(text, WITH_DRM)

    assert after == text + BY_MOUNT.splitlines()[-1] + "\n"


def test_users_of_an_unprivileged_container_are_let_in() -> None:
    """A devN line without a mode is root's alone; one that was given to a user stays his."""
    text = (
        "unprivileged: 1\nfeatures: nesting=1\ndev0: /dev/nvidia0\ndev1: /dev/nvidiactl,mode=0660\n"
    )
    text += "dev2: /dev/nvidia-uvm,gid=44\n"

    after = mended(text)

    assert "dev0: /dev/nvidia0,mode=0666\n" in after
    assert "dev1: /dev/nvidiactl,mode=0666\n" in after
    assert "dev2: /dev/nvidia-uvm,gid=44\n" in after


@pytest.mark.parametrize(
    "text", [BY_MOUNT.replace("508", "511"), BY_DEV.replace("dev2", "dev2: /dev/nvidia-uvm\ndev3")]
)
def test_a_right_configuration_has_no_edit(text: str) -> None:
    """Nothing is ever changed without need."""
    assert plan_edits(text, WITH_DRM, (8, 2)) == []


def test_what_is_wrong_on_the_node_is_left_and_named() -> None:
    """No line loads a module: uvm that is absent on the node stays a finding."""
    node = NodeFacts({"nvidia": 195}, tuple(d for d in NODE.devices if "uvm" not in d.path), "580")
    text = BY_DEV.replace("dev2", "dev1")

    assert plan_edits(text, node, None) == []
    assert [finding.code for finding in left_after(CT, text, node)] == ["uvm-not-loaded"]


def test_settings_are_read_as_the_api_gives_them() -> None:
    """Notes, snapshots and pending values are not settings of now."""
    found = settings_of(BY_DEV + "\n")

    assert found["dev0"] == "/dev/nvidia0,mode=0666"
    assert "dev9" not in found
    assert settings_of(BY_MOUNT)["lxc"][0] == ["lxc.cgroup2.devices.allow", "c 195:* rwm"]
    assert settings_of("lxc.mount.entry = a b none\n")["lxc"] == [["lxc.mount.entry", "a b none"]]


def test_a_plain_file_under_a_devices_name_is_no_device() -> None:
    """The node's own /dev can be wrong too; it is not passed on."""
    node = replace(NODE, devices=(*NODE.devices[:-1], DeviceNode("/dev/nvidia-uvm", None)))

    assert all("uvm" not in edit.new for edit in plan_edits(BY_DEV, node, None))


@pytest.mark.parametrize("sign", ["\u2028", "\x0c", "\x85", "\r"])
def test_a_note_with_a_sign_that_only_python_takes_for_a_line_end_stays_one_line(sign: str) -> None:
    """Cut there, its second half would be a setting that nobody wrote."""
    note = f"#see the wiki{sign}dev1: /dev/nvidia7"

    after = mended(BY_DEV.replace("#a note of the operator", note))

    assert after.split("\n")[0] == note
    assert "dev1: /dev/nvidia-uvm,mode=0666" in after.split("\n")
