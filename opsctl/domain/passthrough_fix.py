"""The lines of a container's configuration that must change for its GPUs; pure: text in, text out.

Sources: pve-container's parser (settings before the first ``[section]``, raw ``lxc.*`` lines among them),
``dev[n]`` since Proxmox VE 8.1, lxc.container.conf (mount entries, cgroup2 device rules).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from opsctl.domain.passthrough import (
    GPU,
    OPTIONAL,
    CtConfig,
    DeviceNode,
    NodeFacts,
    judge_passthrough,
    parse_config,
    parse_rule,
)
from opsctl.output import Finding
from opsctl.records import dataclass

ALLOW = "lxc.cgroup2.devices.allow"
FIRST_WITH_DEV = (8, 1)
NEEDED = ("/dev/nvidiactl", "/dev/nvidia-uvm")
_SECTION = re.compile(r"\[[a-z][a-z0-9_:-]+\]\s*$", re.IGNORECASE)
_RAW = re.compile(r"(lxc\.[a-z0-9_.-]+)(?::|\s*=)\s*(.*?)\s*$")
_SETTING = re.compile(r"([a-z][a-z_]*\d*):\s*(.+?)\s*$")


@dataclass(frozen=True, slots=True)
class Edit:
    """One line to add (``old`` None) or to put in another's place, and why."""

    old: str | None
    new: str
    why: str

    @property
    def verb(self) -> str:
        return "add" if self.old is None else "change"

    @property
    def key(self) -> str:
        return self.new.partition(":")[0]

    def lines(self) -> list[str]:
        """Return it as a difference shows it."""
        return [*([f"- {self.old}"] if self.old is not None else []), f"+ {self.new}"]


def settings_of(text: str) -> dict[str, Any]:
    """Return the configuration of now from a file's text, as the API's ``config`` gives it.

    What stands below ``[pve:pending]`` or a snapshot's name is not of now.
    """
    found: dict[str, Any] = {}
    lxc: list[list[str]] = []
    for line in lines_of(text)[: end_of_main(text)]:
        raw, setting = _RAW.match(line), _SETTING.match(line)
        if line.startswith("#"):
            continue
        if raw:
            lxc.append([raw[1], raw[2]])
        elif setting:
            found[setting[1]] = setting[2]
    return {**found, **({"lxc": lxc} if lxc else {})}


def text_of(config: Mapping[str, Any]) -> str:
    """Return the API's ``config`` as a file's text: settings sorted, then the raw ``lxc.*`` lines."""
    lines = [
        f"{key}: {value}"
        for key, value in sorted(config.items())
        if key not in ("lxc", "description", "digest")
    ]
    lines += [f"{key}: {value}" for key, value in config.get("lxc") or []]
    return "\n".join(lines) + "\n"


def api_settings(edits: Sequence[Edit]) -> dict[str, str]:
    """Return what of the edits the API can set: devN, as parameters."""
    return {
        edit.key: edit.new.partition(":")[2].strip()
        for edit in edits
        if re.fullmatch(r"dev\d+", edit.key)
    }


def lines_of(text: str) -> list[str]:
    """Return the lines as the node counts them: only a line feed ends one, also in somebody's note."""
    return text.removesuffix("\n").split("\n") if text else []


def end_of_main(text: str) -> int:
    """Return the line before which new settings go: after the last one that is not in a section."""
    lines = lines_of(text)
    count = next((n for n, line in enumerate(lines) if _SECTION.match(line)), len(lines))
    while count and not lines[count - 1].strip():
        count -= 1
    return count


def plan_edits(text: str, node: NodeFacts, pve_version: tuple[int, int] | None) -> list[Edit]:
    """Return what must change in a configuration, so that the node's GPUs are passed as they are now.

    Only what keeps a GPU from working: a GPU that the configuration leaves out beside others stays out.

    Args:
        text: the whole file.
        node: the node's devices and majors.
        pve_version: None where it is not known; below 8.1 there is no devN.
    """
    config = parse_config(settings_of(text))
    by_mount = _passes_by_mount(config) or (
        pve_version is not None and pve_version < FIRST_WITH_DEV and not config.devs
    )
    devices = [device for device in node.devices if device.number is not None]
    gpus = [device for device in devices if GPU.match(device.path)]
    passed = [device for device in gpus if config.source_of(device.path)]
    wanted = [
        *(passed or gpus),
        *(device for device in devices if device.path in NEEDED),
        *(d for d in devices if d.path in OPTIONAL and config.source_of(d.path)),
    ]
    edits = _missing(wanted, config, by_mount)
    edits += _rules(text, wanted, config, node, by_mount)
    return edits + _modes(text, wanted, config)


def _passes_by_mount(config: CtConfig) -> bool:
    mounted = any(source == "/dev" or source.startswith("/dev/nvidia") for source in config.mounts)
    return mounted and not any(path.startswith("/dev/nvidia") for path in config.devs)


def _missing(wanted: Sequence[DeviceNode], config: CtConfig, by_mount: bool) -> list[Edit]:
    edits = []
    taken = {int(key[3:]) for key in config.devs.values()}
    for device in wanted:
        if config.source_of(device.path) is not None:
            continue
        why = f"{device.path} is not passed"
        if by_mount:
            place = device.path.lstrip("/")
            line = f"lxc.mount.entry: {device.path} {place} none bind,optional,create=file"
            edits.append(Edit(None, line, why))
            continue
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        taken.add(number)
        edits.append(Edit(None, f"dev{number}: {device.path},mode=0666", why))
    return edits


def _rules(
    text: str, wanted: Sequence[DeviceNode], config: CtConfig, node: NodeFacts, by_mount: bool
) -> list[Edit]:
    """Allow the majors of the devices that are mounted by hand; devN lines bring their rule along."""
    edits: list[Edit] = []
    done: set[int] = set()
    stale = stale_rules(text, node)
    for device in wanted:
        number = device.number
        assert number is not None
        source = config.source_of(device.path)
        by_hand = source == "lxc.mount.entry" or (source is None and by_mount)
        covered = number[0] in done or any(rule.allows(number) for rule in config.rules)
        if not by_hand or covered:
            continue
        done.add(number[0])
        new = f"{ALLOW}: c {number[0]}:* rwm"
        old = stale.pop(0) if stale else None
        why = f"no rule allows {device.path}, which is {number[0]}:{number[1]} now"
        if old is not None:
            why += "; no driver of this node has the old major"
        edits.append(Edit(old, new, why))
    return edits


def stale_rules(text: str, node: NodeFacts) -> list[str]:
    """Return the rules for a whole major that no driver of the node has: a kernel update left them behind."""
    majors = set(node.majors.values())
    found = []
    for line in lines_of(text)[: end_of_main(text)]:
        raw = _RAW.match(line)
        if raw is None or raw[1] != ALLOW:
            continue
        rules = parse_rule(raw[2])
        if any(
            rule.kind == "c" and rule.minor is None and rule.major and rule.major not in majors
            for rule in rules
        ):
            found.append(line)
    return found


def _modes(text: str, wanted: Sequence[DeviceNode], config: CtConfig) -> list[Edit]:
    """Let the users of an unprivileged container in: the node's root owns what devN makes."""
    if not config.unprivileged:
        return []
    edits = []
    for device in wanted:
        key = config.devs.get(device.path)
        line = next((one for one in lines_of(text) if key and one.startswith(f"{key}:")), None)
        if line is None:
            continue
        mode = re.search(r"mode=(0?[0-7]{3,4})", line)
        if mode is not None and int(mode[1], 8) & 0o006 == 0o006:
            continue
        if mode is None and re.search(r"\b[ug]id=", line):
            continue  # given to one user on purpose
        new = line.replace(mode[0], "mode=0666") if mode else f"{line.rstrip()},mode=0666"
        edits.append(Edit(line, new, f"{device.path} shuts the container's users out"))
    return edits


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Return the file's text with the edits; every other line stays as it is, in its place."""
    lines = lines_of(text)
    end = end_of_main(text)
    for edit in edits:
        if edit.old is not None:
            lines[lines.index(edit.old, 0, end)] = edit.new
    added = [edit.new for edit in edits if edit.old is None]
    lines[end:end] = sorted((one for one in added if one.startswith("dev")), key=_dev_number) + [
        one for one in added if not one.startswith("dev")
    ]
    return "\n".join(lines) + "\n"


def _dev_number(line: str) -> int:
    return int(re.match(r"dev(\d+)", line)[1])  # type: ignore[index]


def left_after(vmid: int, text: str, node: NodeFacts) -> list[Finding]:
    """Return what stays broken with a new text, as far as node and configuration tell."""
    return list(judge_passthrough(vmid, node, parse_config(settings_of(text)), None).broken)


def difference(edits: Sequence[Edit]) -> list[str]:
    """Return the edits as lines for people: each with its reason."""
    rows: list[str] = []
    for edit in edits:
        rows += [f"  {line}" for line in edit.lines()]
        rows.append(f"      ({edit.why})")
    return rows
