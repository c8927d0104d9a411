"""Becoming root through sudo, without ever being asked for a password."""

from __future__ import annotations

import re
from collections.abc import Sequence

from opsctl.errors import TransportError

_ASKS = (
    "a password is required",
    "a terminal is required",
    "no tty present",
    "must have a tty",
    "interactive authentication is required",
)
_PROGRAM_MISSING = re.compile(r"sudo: (?!sudo:)\S.*: command not found")
_DENIES = (
    "not in the sudoers file",
    "may not run sudo",
    "is not allowed to",
    "not allowed to execute",
)


def with_sudo(argv: Sequence[str]) -> list[str]:
    """Return ``argv`` run as root; -n makes sudo fail instead of asking."""
    return ["sudo", "-n", "--", *argv]


def explain_sudo(
    name: str, user: str | None, exit_code: int | None, stderr: bytes
) -> TransportError | None:
    """Return the refusal that sudo itself printed, or None when sudo let the command run."""
    if exit_code not in (None, 1, 127):
        return None
    text = stderr.decode("utf-8", "replace")
    said = [line for line in text.splitlines() if "sudo" in line.lower()]
    if any(_PROGRAM_MISSING.match(line) for line in said):
        return None  # sudo let it through; the program is not there
    who = user or "YOUR-USER"
    for line in said:
        lower = line.lower()
        if any(word in lower for word in _ASKS):
            why = f"{name}: sudo wants a password or a terminal"
        elif any(word in lower for word in _DENIES):
            why = f"{name}: sudo does not let {who} run commands as root"
        elif "not found" in lower or "no such file" in lower:
            return TransportError(
                f"{name}: sudo is not installed",
                next_step="install sudo there, or reach the host as root without `become: sudo`",
                code="sudo-missing",
                subject=name,
            )
        elif exit_code == 1 and line.startswith("sudo:") and len(said) == 1:
            why = f"{name}: sudo refused ({line[5:].strip()})"  # in another language
        else:
            continue
        return TransportError(
            why,
            next_step="on that host, as root: "
            f"echo '{who} ALL=(root) NOPASSWD: ALL' > /etc/sudoers.d/opsctl"
            + (f" and 'Defaults:{who} !requiretty'" if "tty" in lower else ""),
            code="sudo-refused",
            subject=name,
        )
    return None
