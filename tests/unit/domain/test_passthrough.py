"""GPU passthrough: what is wrong between node, configuration and container, and the line that mends it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from opsctl.domain.passthrough import (
    DeviceNode,
    InsideFacts,
    NodeFacts,
    judge_passthrough,
    parse_config,
    parse_rule,
)

CT = 129
GIB = 1 << 30
UVM = "/dev/nvidia-uvm"
DEVICES = (
    DeviceNode("/dev/nvidia0", (195, 0)),
    DeviceNode("/dev/nvidia1", (195, 1)),
    DeviceNode("/dev/nvidiactl", (195, 255)),
    DeviceNode(UVM, (511, 0)),
)
NODE = NodeFacts({"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 511}, DEVICES, "580.95.05")
INSIDE = InsideFacts(DEVICES, "580.95.05", 16 * GIB, ((0, 0, 4294967295),))
BY_DEV: dict[str, Any] = {
    "features": "nesting=1",
    "ostype": "debian",
    **{f"dev{number}": f"{item.path},mode=0666" for number, item in enumerate(DEVICES)},
}
BY_MOUNT: dict[str, Any] = {
    "features": "nesting=1",
    "lxc": [
        ["lxc.cgroup2.devices.allow", "c 195:* rwm"],
        ["lxc.cgroup2.devices.allow", "c 511:* rwm"],
        *(
            ["lxc.mount.entry", f"{item.path} {item.path[1:]} none bind,optional,create=file"]
            for item in DEVICES
        ),
    ],
}


def found(
    node: NodeFacts = NODE, config: dict[str, Any] = BY_DEV, inside: InsideFacts | None = INSIDE
) -> dict[str, tuple[str, str]]:
    judged = judge_passthrough(CT, node, parse_config(config), inside)
    return {item.code: (item.text, item.next) for item in (*judged.broken, *judged.doubts)}


def broken(**given: Any) -> set[str]:
    facts = {"node": NODE, "config": BY_DEV, "inside": INSIDE, **given}
    config = parse_config(facts["config"])
    judged = judge_passthrough(CT, facts["node"], config, facts["inside"])
    return {item.code for item in judged.broken}


def with_device(path: str, **changes: Any) -> tuple[DeviceNode, ...]:
    return tuple(replace(item, **changes) if item.path == path else item for item in DEVICES)


@pytest.mark.parametrize("config", [BY_DEV, BY_MOUNT], ids=["devN", "mount entries"])
def test_both_ways_of_passing_a_gpu_are_right(config: dict[str, Any]) -> None:
    """A whole setup has no finding, whether written as devN or as raw LXC lines."""
    judged = judge_passthrough(CT, NODE, parse_config(config), INSIDE)

    assert (judged.broken, judged.doubts) == ((), ())
    assert {row.inside for row in judged.rows} == {"195:0", "195:1", "195:255", "511:0"}


def test_a_major_that_changed_with_the_kernel_names_the_new_rule() -> None:
    """The rule allows 508, nvidia-uvm has 511 since the update: the line for 511 is given."""
    config = {**BY_MOUNT, "lxc": [list(item) for item in BY_MOUNT["lxc"]]}
    config["lxc"][1][1] = "c 508:* rwm"

    text, step = found(config=config)["device-not-allowed"]

    assert "major 511" in text
    assert "195, 508" in text
    assert step.endswith("lxc.cgroup2.devices.allow: c 511:* rwm")
    assert broken(config=config) == {"device-not-allowed"}


def test_a_container_with_the_old_number_is_to_be_restarted() -> None:
    """Inside it is still 508:0, the node has 511:0."""
    stale = replace(INSIDE, devices=with_device(UVM, number=(508, 0)))

    text, step = found(inside=stale)["device-stale"]

    assert "508:0" in text
    assert "511:0" in text
    assert "opsctl ct reboot 129" in step


def test_a_mount_whose_source_was_missing_left_a_plain_file() -> None:
    """create=file with a device that came later: an empty file that looks right to `ls`."""
    plain = replace(INSIDE, devices=with_device(UVM, number=None))

    assert "plain file" in found(config=BY_MOUNT, inside=plain)["device-is-a-file"][0]


def test_uvm_that_is_not_loaded_is_mended_on_the_node() -> None:
    """Loaded at first use only: after a boot without a CUDA program it is absent."""
    node = NodeFacts({"nvidia": 195}, DEVICES[:3], "580.95.05")
    inside = replace(INSIDE, devices=DEVICES[:3])

    text, step = found(node=node, inside=inside)["uvm-not-loaded"]

    assert "not loaded" in text
    assert "nvidia-modprobe -u -c=0" in step


def test_a_node_file_of_an_old_major_is_told() -> None:
    """/dev/nvidia-uvm of the last boot, kept by hand: its driver has another major now."""
    node = replace(NODE, majors={"nvidia": 195, "nvidia-uvm": 508})

    assert "major 511" in found(node=node)["node-stale-device"][0]
    assert "508" in found(node=node)["node-stale-device"][0]


def test_no_module_is_said_first() -> None:
    """After a kernel update without its module nothing else matters."""
    node = NodeFacts({}, (), None)

    assert "module-not-loaded" in broken(node=node, inside=replace(INSIDE, devices=()))


def test_a_library_of_another_version_names_both() -> None:
    """The node was updated, the container was not."""
    text, step = found(inside=replace(INSIDE, library_version="570.86.15"))["driver-mismatch"]

    assert "570.86.15" in text
    assert "580.95.05" in text
    assert "NVIDIA-Linux-x86_64-580.95.05.run --no-kernel-modules" in step
    assert "driver-library-missing" in broken(inside=replace(INSIDE, library_version=None))


def test_nothing_passed_gives_all_lines_with_free_numbers() -> None:
    """The lines begin at the first devN that is free, and name every GPU, nvidiactl and nvidia-uvm."""
    config = {"features": "nesting=1", "dev0": "/dev/ttyUSB0"}
    nothing = replace(INSIDE, devices=())

    step = found(config=config, inside=nothing)["no-gpu-passed"][1]

    assert "dev1: /dev/nvidia0,mode=0666" in step
    assert "dev4: /dev/nvidia-uvm,mode=0666" in step


def test_one_gpu_left_out_is_a_doubt_and_uvm_left_out_is_not() -> None:
    """A GPU may be left out on purpose; without nvidia-uvm no CUDA program runs."""
    without_gpu = {key: value for key, value in BY_DEV.items() if key != "dev1"}
    without_uvm = {key: value for key, value in BY_DEV.items() if key != "dev3"}
    less = [tuple(x for x in DEVICES if x.path != path) for path in ("/dev/nvidia1", UVM)]

    assert broken(config=without_gpu, inside=replace(INSIDE, devices=less[0])) == set()
    assert broken(config=without_uvm, inside=replace(INSIDE, devices=less[1])) == {
        "device-not-passed"
    }
    step = found(config=without_uvm, inside=replace(INSIDE, devices=less[1]))["device-not-passed"][
        1
    ]
    assert step.endswith("dev3: /dev/nvidia-uvm,mode=0666")


def test_an_unprivileged_container_needs_files_open_to_all() -> None:
    """Its root is another user on the node; 0660 shuts it out, and the devN line is corrected."""
    shut = replace(INSIDE, devices=with_device(UVM, mode=0o660), id_map=((0, 100000, 65536),))
    config = {**BY_DEV, "unprivileged": 1, "dev3": UVM}

    text, step = found(config=config, inside=shut)["device-no-access"]

    assert "0660" in text
    assert step.endswith("dev3: /dev/nvidia-uvm,mode=0666")
    assert "device-no-access" not in found(inside=replace(INSIDE, devices=shut.devices))


def test_small_shared_memory_and_no_nesting_are_doubts() -> None:
    """Both are told with their line, and neither makes the check fail."""
    config = {key: value for key, value in BY_DEV.items() if key != "features"}
    small = replace(INSIDE, shm_bytes=64 << 20)

    told = found(config=config, inside=small)

    assert "64 MiB" in told["shm-small"][0]
    assert "size=8G" in told["shm-small"][1]
    assert told["no-nesting"][1].endswith("features: nesting=1")
    assert broken(config=config, inside=small) == set()


def test_a_stopped_container_is_judged_by_node_and_configuration() -> None:
    """Nothing is claimed of an inside that was not seen."""
    judged = judge_passthrough(CT, NODE, parse_config(BY_DEV), None)

    assert (judged.broken, judged.doubts) == ((), ())
    assert {row.inside for row in judged.rows} == {None}


@pytest.mark.parametrize(
    ("text", "number", "allowed"),
    [
        ("c 195:* rwm", (195, 0), True),
        ("c *:* rwm", (511, 0), True),
        ("a", (511, 0), True),
        ("c 195:255 rw", (195, 0), False),
        ("b 195:* rwm", (195, 0), False),
        ("c 195:* r", (195, 0), False),
        ("nonsense", (195, 0), False),
    ],
)
def test_rules_allow_what_lxc_lets_them(text: str, number: tuple[int, int], allowed: bool) -> None:
    """Kind, numbers and access; what cannot be read allows nothing."""
    assert any(rule.allows(number) for rule in parse_rule(text)) is allowed
