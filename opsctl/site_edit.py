"""Add entries to a site file as a person would: comments, order and line ends stay as they are."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from opsctl.errors import ConfigError, SafetyRefusal
from opsctl.yaml_lines import parse_yaml

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*$")
_WORDS = frozenset(["true", "false", "yes", "no", "on", "off", "null", "y", "n"])


def render_entry(
    name: str, values: Mapping[str, Any], comments: Iterable[str] = (), *, indent: int = 2
) -> list[str]:
    """Return one entry of ``hosts`` or ``servers`` as lines: a short mapping stays on one line."""
    margin, inner = " " * indent, " " * (indent + 2)
    lines = [f"{margin}# {comment}" for comment in comments]
    whole = f"{margin}{scalar(name)}: {flow(values)}"
    if len(whole) <= 90 and not lines:
        return [whole]
    lines.append(f"{margin}{scalar(name)}:")
    for key, value in values.items():
        row = f"{inner}{scalar(key)}: {flow(value)}"
        if isinstance(value, Mapping) and len(row) > 90:
            lines.append(f"{inner}{scalar(key)}:")
            for inner_key, item in value.items():
                lines += _row(f"{inner}  {scalar(inner_key)}:", item, inner + "    ")
        else:
            lines.append(row)
    return lines


def _row(head: str, value: Any, inner: str) -> list[str]:
    """Return one key and its value; a list that is too long for a line gets a line per item."""
    if not isinstance(value, list | tuple) or len(f"{head} {flow(value)}") <= 90:
        return [f"{head} {flow(value)}"]
    return [head, *(f"{inner}- {flow(item)}" for item in value)]


def scalar(value: Any) -> str:
    """Return one value as YAML: bare where it cannot be taken for anything else, else in double quotes."""
    if isinstance(value, str):
        bare = _PLAIN.match(value) and value.lower() not in _WORDS
        return value if bare else json.dumps(value)
    return "null" if value is None else json.dumps(value)


def flow(value: Any) -> str:
    """Return a value in YAML's flow style, on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(k)}: {flow(item)}" for k, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    return scalar(value)


def add_entry(
    text: str,
    section: str,
    name: str,
    values: Mapping[str, Any],
    comments: Iterable[str] = (),
    *,
    path: str = "opsctl.yaml",
) -> str:
    """Return the file's text with one entry more at the end of ``section``; nothing else changes.

    Raises:
        SafetyRefusal: the name is taken; ConfigError: the file is written in a way that this cannot extend.
    """
    before = parse_yaml(text, path).data or {}
    if name in (before.get(section) or {}):
        raise SafetyRefusal(
            f"{path}: '{name}' is there already, in {section}",
            next_step="choose another with --name, or change that entry by hand",
            code="name-taken",
            subject=name,
        )
    made = _insert(text, section, name, values, list(comments))
    after = _read_back(made, path)
    wanted = {**before, section: {**(before.get(section) or {}), name: _plain(values)}}
    if after != wanted:
        entry = "\n".join(render_entry(name, values))
        raise ConfigError(
            f"{path}: its {section} are written in a way that cannot be extended without rewriting them",
            next_step=f"add it by hand:\n{entry}",
            code="cannot-extend",
            subject=path,
        )
    return made


def _read_back(text: str, path: str) -> Any:
    try:
        return parse_yaml(text, path).data
    except ConfigError:
        return None


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _insert(
    text: str, section: str, name: str, values: Mapping[str, Any], comments: list[str]
) -> str:
    end = "\r\n" if "\r\n" in text else "\n"
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        lines = [f"{section}:", *render_entry(name, values, comments)]
        return _joined(text, len(text.splitlines()), lines, end)
    pairs = {key.value: (key, value) for key, value in root.value}
    if section not in pairs:
        lines = ["", f"{section}:", *render_entry(name, values, comments)]
        return _joined(text, _end_of(text), lines, end)
    key, value = pairs[section]
    if isinstance(value, yaml.MappingNode) and value.value and not value.flow_style:
        indent = value.value[0][0].start_mark.column
        lines = render_entry(name, values, comments, indent=indent)
        return _joined(text, _end_of_section(text, root, key, indent), lines, end)
    if isinstance(value, yaml.MappingNode) and value.value:
        at = value.end_mark.index - 1  # the closing brace
        head = text[:at].rstrip()
        comma = "" if head.endswith(",") else ","
        return f"{head}{comma} {scalar(name)}: {flow(values)}{text[at:]}"
    # nothing in it yet: `servers:`, `servers: {}` or `servers: null`
    stop = value.end_mark.index if value.end_mark.index > value.start_mark.index else None
    colon = text.index(":", key.end_mark.index) + 1
    rest = text[stop if stop is not None else colon :]
    tail, newline, below = rest.partition(end)
    lines = render_entry(name, values, comments, indent=key.start_mark.column + 2)
    head = text[:colon] + tail.rstrip()
    return head + end + end.join(lines) + end + (below if newline else "")


def _end_of(text: str) -> int:
    """Return the line after the last one that says something at the end of the file."""
    lines = text.splitlines()
    count = len(lines)
    while count and not lines[count - 1].strip():
        count -= 1
    return count


def _end_of_section(text: str, root: yaml.MappingNode, key: yaml.Node, indent: int) -> int:
    """Return the line after a block's last one; comments that stand further left belong to what follows."""
    lines = text.splitlines()
    later = [
        other.start_mark.line
        for other, _ in root.value
        if other.start_mark.line > key.start_mark.line
    ]
    count = min(later, default=len(lines))
    while count > key.start_mark.line + 1:
        line = lines[count - 1]
        if line.strip() and len(line) - len(line.lstrip()) >= indent:
            break
        if line.strip() and not line.lstrip().startswith("#"):
            break
        count -= 1
    return count


def _joined(text: str, at: int, added: list[str], end: str) -> str:
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += end
    return "".join([*lines[:at], *(line + end for line in added), *lines[at:]])


def write_atomically(path: Path, text: str, before: bytes | None) -> None:
    """Write a file whole or not at all, with the rights that it had.

    Args:
        before: what the file held when it was read; None: it must not exist yet.

    Raises:
        SafetyRefusal: it was changed or made meanwhile; ConfigError: it cannot be written.
    """
    target = Path(os.path.realpath(path))
    try:
        if before is not None and target.read_bytes() != before:
            raise SafetyRefusal(
                f"{path} was changed while opsctl worked; nothing was written",
                next_step="run it again",
                code="changed-meanwhile",
                subject=str(path),
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            _fill(number, text, target if before is not None else None)
            if before is None:
                os.link(temporary, target)  # fails where somebody was faster; replace would not
            else:
                os.replace(temporary, target)
        finally:
            if os.path.lexists(temporary):
                os.unlink(temporary)
    except FileExistsError as error:
        raise SafetyRefusal(
            f"{path} exists; it is never overwritten",
            next_step="name another file with --site",
            code="exists",
            subject=str(path),
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}", code="not-written", subject=str(path)
        ) from error


def _fill(number: int, text: str, like: Path | None) -> None:
    with os.fdopen(number, "wb") as out:
        if like is None:
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(out.fileno(), 0o644 & ~mask)
        else:
            was = like.stat()
            os.fchmod(out.fileno(), was.st_mode & 0o7777)
            if os.geteuid() == 0:
                os.fchown(out.fileno(), was.st_uid, was.st_gid)
        out.write(text.encode())
        out.flush()
        os.fsync(out.fileno())
