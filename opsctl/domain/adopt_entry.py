"""A proven server written down as an entry of the site file: what is taken over, what never is; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import PurePosixPath
from typing import Any

from opsctl.domain.adopt import SECRET_VALUE, Running, Started
from opsctl.domain.launch import DEFAULT_LOG_DIR, SYSTEM_PATH, tensor_parallel
from opsctl.domain.launch_line import LaunchLine, abbreviates_secret, arguments_of_launch
from opsctl.domain.protection import is_login_unit, unit_of
from opsctl.errors import CouldNotTell
from opsctl.output import Finding
from opsctl.records import dataclass

_NUMBER = re.compile(r"-?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?$")


_FLAG_NAME = re.compile(r"[a-z0-9][a-z0-9-]*$")


_OWN_KEYS = ("port", "model-path", "model")


_ANYWHERE = (None, "0.0.0.0", "::", "[::]", "127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of ``servers``. ``values`` hold references where the process has secrets."""

    name: str
    values: Mapping[str, Any]
    findings: tuple[Finding, ...] = ()
    comments: tuple[str, ...] = field(default=())


def read_flags(argv: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """Return an SGLang command line's flags as the site file writes them, and those given twice.

    As argparse takes them: the last one counts. Raises CouldNotTell for a word that belongs to no flag.
    """
    flags: dict[str, list[str]] = {}
    twice: list[str] = []
    current: list[str] | None = None
    joined = False
    for word in arguments_of_launch(argv) or ():
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            if not _FLAG_NAME.match(name):
                raise CouldNotTell(f"'--{name}' is no flag that a site file can name", code="flag")
            if name in flags:
                twice.append(name)
            current = flags[name] = [value] if equals else []
            joined = bool(equals)
        elif current is None or joined or (word.startswith("-") and not _NUMBER.match(word)):
            raise CouldNotTell(
                "its command line has a word that belongs to no flag",
                next_step="write this server's entry by hand: `opsctl config example`",
                code="positional",
            )
        else:
            current.append(word)
    return {name: _typed(values) for name, values in flags.items()}, twice


def _typed(values: list[str]) -> Any:
    if not values:
        return True
    typed = [_scalar(value) for value in values]
    return typed[0] if len(typed) == 1 else typed


def _scalar(text: str) -> str | int | float:
    """Return a number where it is written back as it was read; all else stays text."""
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if str(value) == text:
            return value
    return text


def name_for(line: LaunchLine, model: str, port: int, taken: Iterable[str]) -> str:
    """Return a free name for the entry, from the served name or the model's last part."""
    known = set(taken)
    words = line.served_name or PurePosixPath(model).name
    base = re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-.") or "sglang"
    base = base if not base.isdigit() else f"server-{base}"
    for name in (base, f"{base}-{port}", *(f"{base}-{port}-{n}" for n in range(2, 100))):
        if name not in known:
            return name
    raise CouldNotTell(f"no free name like '{base}'", next_step="give one with --name")


def make_entry(
    name: str,
    host: str,
    found: Running,
    started: Started,
    *,
    port: int,
    model: str,
    uuids: Sequence[str],
    gpu_state: str,
    user: str | None,
    version: str | None,
    when: str,
) -> Entry:
    """Write a proven server down as an entry of the site file.

    Args:
        uuids: the GPUs whose memory its processes hold; empty where NVML names none.
        gpu_state: how reading the GPUs went; without a library or devices there is nothing to select.
        user: its owner, where that is not the user that the host is reached as.
    """
    argv = found.root.argv
    flags, twice = read_flags(argv)
    args, notes = _split_flags(flags, started)
    values: dict[str, Any] = {"host": host}
    if uuids:
        values["gpus"] = {"select": list(uuids), "expect": len(uuids)}
    elif gpu_state not in ("no-library", "no-devices"):
        notes.append(_gpus_unknown(argv))
    values["port"] = port
    address = flags.get("host")
    if address not in _ANYWHERE and isinstance(address, str):
        values["address"] = address
    values |= {"python": started.interpreter or found.line.interpreter, "model": model}
    values |= {"args": args, "env": _environment(started)}
    if user is not None:
        values["user"] = user
    if started.cwd not in (None, "/"):
        values["cwd"] = started.cwd
    log = started.output or ""
    if log.startswith("/") and not log.startswith("/dev/") and not log.endswith("(deleted)"):
        folder = str(PurePosixPath(log).parent)
        if folder not in (DEFAULT_LOG_DIR, "/", "/tmp", "/var/tmp"):  # no place for logs to come
            values["log_dir"] = folder
    secret_flags = [flag for flag in flags if _is_secret_flag(flag)]
    if any("api-key".startswith(flag) for flag in secret_flags):
        values["api_key"] = {"env": f"{re.sub(r'[^A-Z0-9]+', '_', name.upper())}_API_KEY"}
    pid = f"pid {found.pid} on {host}"
    comments = [f"adopted from {pid} ({version or 'sglang of unknown version'}), {when}"]
    if log.startswith("/") and not log.startswith("/dev/"):
        comments.append(f"its log until the next launch: {log}")
    comments += [
        f"left out: --{flag} of its command line; name a file that holds it: args: {{config: FILE}}"
        for flag in secret_flags
    ]
    notes += _notes(name, found, started, twice, secret_flags)
    return Entry(name, {k: v for k, v in values.items() if v != {}}, tuple(notes), tuple(comments))


def _split_flags(
    flags: Mapping[str, Any], started: Started
) -> tuple[dict[str, Any], list[Finding]]:
    """Take the flags that stay flags; a secret inside of a value is left out and told."""
    args: dict[str, Any] = {}
    notes: list[Finding] = []
    for name, value in flags.items():
        if name in _OWN_KEYS or _is_secret_flag(name):
            continue
        if re.search(SECRET_VALUE, str(value)):
            text = "its value looks like a secret, so it was left out"
            notes.append(
                Finding("flag-left-out", f"--{name}", text, "add it by hand, if it is none")
            )
            continue
        args[name] = value
    return args, notes


def _is_secret_flag(name: str) -> bool:
    found = re.search(r"(?i)(^|-)(token|secret|password|passwd|api-?key|credentials?)$", name)
    return bool(found) or abbreviates_secret(name)


def _environment(started: Started) -> dict[str, Any]:
    env: dict[str, Any] = dict(started.env or {})
    own = str(PurePosixPath(started.interpreter or "/").parent)
    path = env.pop("PATH", "")
    if {part for part in path.split(":") if part} - {*SYSTEM_PATH.split(":"), own, "/usr/games"}:
        env["PATH"] = path
    return {**env, **{name: {"env": name} for name in started.secrets}}


def _gpus_unknown(argv: Sequence[str]) -> Finding:
    count = tensor_parallel(argv)
    text = f"NVML names no memory of its processes; the arguments ask for {count} GPU(s)"
    return Finding("gpus-not-known", "gpus", text, "add gpus: {select: [UUID, ...]} to the entry")


def _notes(
    name: str, found: Running, started: Started, twice: Sequence[str], secret_flags: Sequence[str]
) -> list[Finding]:
    notes = []
    for flag in secret_flags:
        text = (
            "it is on the server's command line, where every user of the host can read it; left out"
        )
        step = "put it into a file of the server's user, and name that file: args: {config: FILE}"
        notes.append(Finding("secret-flag", f"--{flag}", text, step))
    for secret in started.secrets:
        text = "a secret of its environment: written as a reference, without its value"
        step = f"export {secret}=... where you run opsctl, or read it from a file or a command"
        notes.append(Finding("secret-reference", f"{name}.env.{secret}", text, step))
    if started.other_secrets:
        text = f"not taken over: {', '.join(started.other_secrets)}"
        notes.append(
            Finding("secrets-left", name, text, "name one with --env if the server needs it")
        )
    if started.env is None:
        text = "its environment cannot be read, so env is empty"
        step = "adopt it as its own user or as root (--sudo)"
        notes.append(Finding("environment-unknown", name, text, step))
    for flag in twice:
        notes.append(
            Finding("flag-twice", f"--{flag}", "given more than once; the last one was taken")
        )
    if "serve" in found.root.argv[:4] and "sglang.launch_server" not in found.root.argv:
        text = (
            "started by `sglang serve`; opsctl launches the same flags as -m sglang.launch_server"
        )
        notes.append(Finding("launched-by-serve", name, text))
    unit = unit_of(found.root.cgroup)
    if unit is not None and not unit.startswith("opsctl-"):
        notes.append(_unit_note(name, unit, found))
    return notes


def _unit_note(name: str, unit: str, found: Running) -> Finding:
    """Tell whose the unit is. Only one that holds nothing else may be disabled: ssh.service is a way in."""
    if is_login_unit(unit, found.beside):
        text = f"started from a login ({unit}); that unit is not its own: leave it alone"
        return Finding("login-unit", name, text)
    if found.beside:
        text = f"runs in {unit} beside others, so that unit is not its own; it may start it again"
        step = f"before opsctl takes over, see what else it runs: systemctl status {unit}"
        return Finding("shared-unit", name, text, step)
    text = f"systemd owns it as {unit}, and may start it again whenever opsctl stops it"
    step = f"when opsctl takes over: systemctl disable {unit} (see its Restart=)"
    return Finding("managed-by-unit", name, text, step)
