"""What `opsctl doctor` says of each precondition: ok, warn, bad or unknown, why, and the mend; pure.

What is judged elsewhere (preflight, health, passthrough, memory, patches) is only grouped here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from opsctl.domain.leftovers import judge_leftovers
from opsctl.domain.preflight import ENOUGH_FILES, LOG_FREE_BYTES
from opsctl.facts import Host, Leftover
from opsctl.output import Finding
from opsctl.records import dataclass

SKEW_WARN_S = (
    2.0  # run times, log lines and certificates of two machines are compared by their clocks
)
SHM_LEAST_BYTES = 512 << 20
_UNIT = re.compile(r"opsctl-(.+)-\d{8}-\d{6}-[0-9a-f]{4}\.service$")
ROOT_FREE_BYTES = 2 << 30
PREFLIGHT_GROUPS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("port", ("port-in-use",), "the port is free, or this server's own"),
    ("model", ("model-unreadable",), "its folders can be read"),
    ("log-disk", ("log-disk",), "writable, with room"),
    ("state-disk", ("state-disk",), "writable, with room"),
    ("shm-nccl", ("shm-too-small",), "large enough for this server"),
    ("backends", ("unsupported-arch",), "the chosen backends run on these GPUs"),
    ("driver-major", ("driver-mismatch",), "the driver's CUDA serves torch's"),
    ("ulimit-server", ("nofile",), "enough file descriptors for this server"),
    ("proxy-server", ("proxy",), "no proxy between the server and its own warm-up"),
    ("gpu-count", (
        "gpu-count", "gpu-unknown", "gpu-fault", "gpu-missing", "more-gpus", "gpu-selection", "node-rank",
    ), "as many as the arguments want"),
    ("sglang", ("no-sglang",), "installed for the launch interpreter"),
    ("arguments", ("arguments", "arguments-unknown"), "accepted by the installed parser"),
    ("toolchain", ("toolchain",), "ninja and nvcc are on the server's PATH"),
)  # fmt: skip


class State(StrEnum):
    """How one precondition is. What could not be looked at is unknown, never ok."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One precondition of one subject: its state, the reason, and what to do.

    ``command`` is the shell command that mends it on the subject's host, where there is one.
    """

    name: str
    state: State
    text: str
    mend: str = ""
    subject: str = ""
    command: str = ""

    @property
    def next(self) -> str:
        """Return what to do, the command with it."""
        return ": ".join(part for part in (self.mend, self.command) if part)

    def of(self, subject: str) -> Check:
        """Return it with its subject, where it has none of its own."""
        return self if self.subject else replace(self, subject=subject)

    def finding(self) -> Finding:
        """Return it as a finding of the document."""
        return Finding(f"{self.name}-{self.state.value}", self.subject, self.text, self.next)


def from_finding(name: str, state: State, finding: Finding) -> Check:
    """Take over what another judge found."""
    about = f"{finding.subject}: " if finding.subject else ""
    return Check(name, state, f"{about}{finding.text}", finding.next)


def exit_code_of(checks: Iterable[Check], transport: int | None = None) -> int:
    """Return the contract's code: a host not reached is 30 or 40, then bad 20, unknown 21, else 0."""
    states = {check.state for check in checks}
    if transport is not None:
        return transport
    return 20 if State.BAD in states else 21 if State.UNKNOWN in states else 0


def judge_rights(uid: int, way: str) -> Check:
    """Without root another user's processes, device holders and the kernel log cannot be read."""
    if uid == 0:
        return Check("rights", State.OK, f"root, by {way}")
    text = f"user id {uid}: other users' processes, their devices and the kernel log cannot be read"
    return Check("rights", State.WARN, text, "reach it as root, or with become: sudo (sudo -n)")


def judge_python(host: Host, *, has_pidfd: bool) -> Check:
    """The agent needs 3.8; without pidfd a signal goes by number after a last look."""
    if has_pidfd:
        return Check("python", State.OK, f"{host.python}, with pidfd")
    text = f"{host.python} has no pidfd: signals go by number, after a last check of the identity"
    return Check("python", State.WARN, text, "Python 3.9 or newer, on a kernel of 5.3 or newer")


def judge_clock(skew_s: float, round_trip_s: float) -> Check:
    """Compare clocks; half of the round trip is what is not known."""
    doubt_s = round_trip_s / 2
    if abs(skew_s) - doubt_s <= SKEW_WARN_S:
        return Check(
            "clock", State.OK, f"{skew_s:+.2f} s from this machine (within {doubt_s:.2f} s)"
        )
    text = f"{skew_s:+.1f} s from this machine: times of logs and runs will not agree"
    return Check(
        "clock",
        State.WARN,
        text,
        "on the machine that is wrong",
        command="timedatectl set-ntp true",
    )


def judge_machine(facts: Mapping[str, Any], *, serves: bool, gpus: int) -> list[Check]:
    """Judge memory, disks, limits, daemons and units of one machine or container.

    Args:
        serves: whether a server of the site runs here.
        gpus: how many GPUs there are here.
    """
    checks = [*_folders(facts["folders"])]
    if serves:
        checks += [_shm(facts["shm"]), _files(facts)]
    checks.append(_units(facts["units"]))
    if facts["nvswitch"]:
        checks.append(_fabric(facts["daemons"]))
    if gpus > 1:
        checks.append(_iommu(facts["iommu_groups"]))
    return checks


def _shm(room: Mapping[str, Any]) -> Check:
    if room.get("error"):
        return Check("shm", State.UNKNOWN, f"/dev/shm: {room['error']}", "mount a tmpfs there")
    total, free = room["total_bytes"], room["free_bytes"]
    shown = f"/dev/shm has {total >> 20} MiB, {free >> 20} MiB free"
    if total < SHM_LEAST_BYTES:
        text = f"{shown}; {SHM_LEAST_BYTES >> 20} MiB are the least for several GPUs"
        return Check("shm", State.WARN, text, "mount it larger (size=, --shm-size)")
    if free < SHM_LEAST_BYTES:
        return Check("shm", State.WARN, shown, "see what fills it: ls -lS /dev/shm; opsctl status")
    return Check("shm", State.OK, shown)


def _folders(folders: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    checks = []
    for path, room in folders.items():
        least = ROOT_FREE_BYTES if path == "/" else LOG_FREE_BYTES
        if room.get("error"):
            checks.append(Check("disk", State.UNKNOWN, f"{path}: {room['error']}"))
        elif room["free_bytes"] < least:
            text = f"{path}: {room['free_bytes'] >> 20} MiB free, {least >> 20} are wanted"
            checks.append(Check("disk", State.BAD, text, "make room there"))
        else:
            checks.append(Check("disk", State.OK, f"{path}: {room['free_bytes'] >> 30} GiB free"))
    return checks


def _files(facts: Mapping[str, Any]) -> Check:
    hard = facts["nofile"][1]
    if facts["limits_raisable"] or hard < 0 or hard >= ENOUGH_FILES:
        return Check(
            "ulimit", State.OK, f"open files: {'raisable' if facts['limits_raisable'] else hard}"
        )
    text = f"open files: at most {hard}; each request in flight is a connection"
    return Check(
        "ulimit", State.WARN, text, "raise it in limits.conf or in the container's configuration"
    )


def _units(units: Sequence[Mapping[str, str]] | None) -> Check:
    if units is None:
        text = "no systemd to ask: servers are launched under opsctl's own supervisor"
        return Check("units", State.OK, text)
    failed = [one["unit"] for one in units if one["active"] == "failed"]
    if failed:
        count = "a launch" if len(failed) == 1 else f"{len(failed)} launches"
        text = f"{count} ended by no stop of opsctl: {', '.join(failed[:3])}"
        server = _UNIT.match(failed[0])
        logs = f"`opsctl logs {server[1]}` tells why; " if server else ""
        step = f"{logs}the next launch or stop of the server clears it, and so does"
        command = f"systemctl reset-failed {' '.join(failed)}"
        return Check("units", State.WARN, text, step, command=command)
    return Check("units", State.OK, f"{len(units)} units of opsctl, none failed")


def _fabric(daemons: Sequence[str]) -> Check:
    if "nv-fabricmanager" in daemons:
        return Check("fabric-manager", State.OK, "runs: the NVSwitches are set up")
    text = "there are NVSwitches, and no nv-fabricmanager: CUDA will say 'system not yet initialized' (802)"
    return Check(
        "fabric-manager",
        State.BAD,
        text,
        "in the same version as the driver",
        command="systemctl start nvidia-fabricmanager",
    )


def _iommu(groups: int | None) -> Check:
    if groups is None:
        return Check(
            "iommu", State.UNKNOWN, "sysfs does not tell about the IOMMU", "look on the node"
        )
    if groups == 0:
        return Check(
            "iommu", State.OK, "does not translate: copies between GPUs are not redirected"
        )
    text = f"the IOMMU translates for {groups} devices: copies between GPUs over PCIe can hang or be wrong"
    step = "iommu=pt on the kernel's command line, ACS off; until then NCCL_P2P_DISABLE=1 in env"
    return Check("iommu", State.WARN, text, step)


def judge_left(leftovers: Sequence[Leftover]) -> Check:
    """Judge what dead servers left behind; what lives is none, nor a free lock file of opsctl's own."""
    judged = [one for one in judge_leftovers(leftovers) if one.removes]
    dead = [one.leftover for one in judged if one.leftover.kind != "lock-file"]
    if not dead:
        return Check("leftovers", State.OK, "nothing of a dead server")
    size = sum(one.size_bytes or 0 for one in dead)
    text = f"{len(dead)} files of dead servers, {size >> 20} MiB: {', '.join(one.path for one in dead[:3])}"
    return Check(
        "leftovers",
        State.WARN,
        text,
        "the next stop or restart of the server sweeps them",
    )


def group_preflight(
    problems: Sequence[Finding],
    unsure: Sequence[Finding],
    warnings: Sequence[Finding],
    *,
    parsed: bool,
) -> list[Check]:
    """Turn the preflight's verdict into checks: one per group, ok where it found nothing.

    Args:
        parsed: whether the installed parser was asked.
    """
    marked = [
        *((State.BAD, finding) for finding in problems),
        *((State.UNKNOWN, finding) for finding in unsure),
        *((State.WARN, finding) for finding in warnings),
    ]
    known = {code: name for name, codes, _ in PREFLIGHT_GROUPS for code in codes}
    checks = [
        from_finding(known[finding.code], state, finding)
        for state, finding in marked
        if finding.code in known
    ]
    seen = {check.name for check in checks}
    for name, _, text in PREFLIGHT_GROUPS:
        if name not in seen and (parsed or name != "arguments"):
            checks.append(Check(name, State.OK, text))
    return checks
