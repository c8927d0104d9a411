"""Which way a container's lines are written, and what is said where it cannot be."""

from __future__ import annotations

from typing import Any

from opsctl.domain.passthrough_fix import Edit, api_settings, apply_edits, settings_of, text_of
from opsctl.passthrough_config import ByApi, still_pending

CONFIG: dict[str, Any] = {
    "arch": "amd64",
    "description": "an operator's note\nof two lines",
    "dev0": "/dev/nvidia0",
    "digest": "ab12",
    "lxc": [["lxc.cgroup2.devices.allow", "c 195:* rwm"]],
    "unprivileged": 1,
}
DEVICE = Edit(None, "dev1: /dev/nvidia-uvm,mode=0666", "not passed")
MODE = Edit("dev0: /dev/nvidia0", "dev0: /dev/nvidia0,mode=0666", "shuts users out")
RULE = Edit(
    "lxc.cgroup2.devices.allow: c 508:* rwm", "lxc.cgroup2.devices.allow: c 511:* rwm", "uvm"
)


class Told:
    """A container whose node knows this configuration."""

    vmid = 129

    def __init__(self) -> None:
        self.orders: list[Any] = []

    def config(self) -> dict[str, Any]:
        return dict(CONFIG)

    def configure(self, settings: dict[str, str], digest: str | None) -> None:
        self.orders.append((settings, digest))

    def pending(self) -> list[str]:
        return ["dev0", "memory"]


def by_api(login: str) -> tuple[Told, ByApi]:
    told: Any = Told()
    return told, ByApi(told, login)


def test_the_apis_answer_reads_as_the_file_does() -> None:
    """Settings and raw lines, without the note and the digest; edits apply to it."""
    text = text_of(CONFIG)

    assert settings_of(text) == {
        "arch": "amd64",
        "dev0": "/dev/nvidia0",
        "unprivileged": "1",
        "lxc": [["lxc.cgroup2.devices.allow", "c 195:* rwm"]],
    }
    assert "dev0: /dev/nvidia0,mode=0666\n" in apply_edits(text, [MODE, DEVICE])


def test_root_writes_devices_with_the_digest_that_was_read() -> None:
    """Added and changed ones as parameters; what waits for the next start is found again."""
    told, config = by_api("root@pam")
    edits = [DEVICE, MODE]

    assert config.refusal(edits) is None
    config.write(edits, "not used")

    wanted = {"dev1": "/dev/nvidia-uvm,mode=0666", "dev0": "/dev/nvidia0,mode=0666"}
    assert told.orders == [(wanted, "ab12")]
    assert api_settings(edits) == wanted
    assert still_pending(told, edits) == ["dev0"]  # type: ignore[arg-type]


def test_a_token_of_root_is_not_root() -> None:
    """Proxmox compares the whole name: the words for root on the node, and the ways for opsctl."""
    refusal = by_api("root@pam!ops")[1].refusal([DEVICE])

    assert refusal is not None
    assert "only root@pam itself set devices; root@pam!ops may not" in refusal.text
    assert "pct set 129 --dev1 /dev/nvidia-uvm,mode=0666" in refusal.next
    assert "`user: root@pam` with its password" in refusal.next


def test_raw_lines_are_for_nobody_through_the_api() -> None:
    """Not even for root@pam: the line, its file, and what it replaces are named."""
    refusal = by_api("root@pam")[1].refusal([DEVICE, RULE])

    assert refusal is not None
    assert "by anybody" in refusal.text
    assert f"`{RULE.new}` in /etc/pve/lxc/129.conf in the place of `{RULE.old}`" in refusal.next
    assert "with its password" not in refusal.next
